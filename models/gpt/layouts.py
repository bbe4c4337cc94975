"""Ways to cut this family over a mesh: those of every dense model."""

from models.common.layouts import LAYOUTS, data_parallel, fully_sharded, tensor_parallel, two_d, zero1

__all__ = ["LAYOUTS", "data_parallel", "fully_sharded", "tensor_parallel", "two_d", "zero1"]
