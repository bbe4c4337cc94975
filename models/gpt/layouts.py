"""Ways to cut this family over a mesh: those of every dense model, its decoder in pipeline stages, and those with experts."""

from models.sharding import expert_layouts
from models.sharding.layouts import LAYOUTS as DENSE
from models.sharding.layouts import pipelines

WITH_EXPERTS = expert_layouts.of_stack("decoder")
LAYOUTS = DENSE | pipelines("decoder") | WITH_EXPERTS
