"""Ways to cut this family over a mesh: those of every dense model, and its encoder in pipeline stages."""

from models.common.layouts import LAYOUTS as DENSE
from models.common.layouts import pipelines

LAYOUTS = DENSE | pipelines("encoder")
