"""The layouts of two towers: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the model.

Where the loss compares all pairs, vectors are cut as the batch is (models/parts/pairs.py).
"""

from models.sharding.layout import Pipeline, rules
from models.sharding.layouts import ANY, STAGES, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE

GPIPE = Pipeline(microbatches=2, schedule="gpipe")
VISION, TEXT = "vision_tower", "text_tower"

towers = Recipe(
    "towers",
    also(TENSOR, batch=("stage", "data")),
    STAGES,
    ANY,
    components=((VISION, rules(layers="stage", batch="data")),),
    pipelines=((f"{VISION}.encoder", GPIPE),),
)
"""The image tower in p pipeline stages, its batch over x, tensor parallel over y; the text tower's batch over stages and x."""

_PLAIN = ("data_parallel", "zero1", "fully_sharded", "fsdp_within_data", "tensor_parallel", "sequence_parallel", "two_d")
LAYOUTS = {name: DENSE[name] for name in _PLAIN} | table(towers)
