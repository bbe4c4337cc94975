"""Decoders with mixtures of experts: GLaM's, the released ones, and a small one that runs on a CPU.

The released ones are dropless, whatever else is in the batch; where the training of one is not published, data and optimizer are
those of gpt.llama2_70b, and its batch is 4M tokens. The counts of parameters are exact.
"""

from dataclasses import replace

from configs import gpt
from configs.experiment import Experiment
from models.parts.moe.config import MoeConfig
from models.sharding.layouts import data_parallel

KEPT = "dispatched+returned+attention_in+attention_out"


def moe_quickstart() -> Experiment:
    """gpt.quickstart with 8 experts in every second layer, two a token (GShard's gating)."""
    e = gpt.quickstart()
    moe = MoeConfig(experts=8, group_size=256)
    return replace(e, name="gpt.moe_quickstart", model=replace(e.model, moe=moe), layout=data_parallel(1, 1))
