"""Ways to cut this family over a mesh: those of every dense model, and its decoder in pipeline stages."""

from models.sharding.layouts import LAYOUTS as DENSE
from models.sharding.layouts import pipelines

LAYOUTS = DENSE | pipelines("decoder")
