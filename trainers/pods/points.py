"""Runs on TPU pods with published throughput, rebuilt: what modelled figures are compared with (trainers/pods/calibration.py).

Each is made of the zoo's own configs as it was run: sizes, batch, mesh, and what the backward pass kept. Where a source leaves
something open, its docstring says what was chosen. Not among them, and why: docs/PODS.md.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import AdamW, Exponential
from models.execution import Quantization
from models.parts.attention.config import QkNorm, Sinusoidal
from models.parts.moe.config import ExpertsConfig, SharedExpert, TopK
from models.parts.nested import changed
from models.sharding.layout import Layout
from models.sharding.layouts import fully_sharded, over_slices, two_d
from trainers.runtime.chips import USUAL, parse_slice


@dataclasses.dataclass(frozen=True)
class Point:
    """A published run.

    Attributes:
      experiment: makes the run's experiment.
      topology: the slice that it ran on.
      mfu: model FLOPs utilisation by PaLM's definition, as published or from the published step time.
      group: who published it; the error of a prediction is also taken without a whole group.
      source: where it stands.
      kernel: whether long rows' attention is computed by a kernel; there was none before the second half of 2023.
      options: the set of compiler options that is nearest to the run's own (trainers/runtime/chips.py).
    """

    experiment: Callable[[], Experiment]
    topology: str
    mfu: float
    group: str
    source: str
    kernel: bool = False
    options: str = USUAL


def _mlperf_480b() -> Experiment:
    e = registry.load("bert.mlperf_480b")
    return replace(e, execution=replace(e.execution, remat="full"))


def _mlperf_200b() -> Experiment:
    e = registry.load("bert.mlperf_200b")
    execution = replace(e.execution, remat="attention_in+context+attention_out")
    return replace(e, execution=execution, layout=replace(two_d(64, 16), name="mlperf_200b"))


def _maxtext_v4(e: Experiment) -> Experiment:
    execution = replace(e.execution, remat="full", loss_chunks=1)
    return replace(e, execution=execution, layout=fully_sharded(e.layout.devices, 1))


def _palm_540b() -> Experiment:
    e = registry.load("gpt.palm_540b")  # half of the batch: one pod of the two
    return replace(e, data=replace(e.data, batch_size=1024), execution=replace(e.execution, remat="full"))


def _pax(layers: int, dim: int, rows: int, mesh: tuple[int, int]) -> Experiment:
    """Pax's decoders (paxml's lm_cloud.py, c4.py and model_params.py): heads of 128, GELU of 4 widths, rows of 1024 tokens,
    capped logits, a scale per dimension of the queries, sinusoidal positions, Adam with weights in single precision.

    The chart is of runs on C4, for which c4.py has 16B and 32B, both with SAVE_NOTHING: a layer is recomputed.

    Args:
      rows: of each chip.
      mesh: (data, mdl).
    """
    e = registry.load("gpt.maxtext_22b")
    model = changed(
        e.model,
        {
            "positions": Sinusoidal(),
            "vocab": 32_000,
            "layers": layers,
            "model_dim": dim,
            "feed_forward.hidden_dim": 4 * dim,
            "feed_forward.bias": True,
            "feed_forward.activation": "gelu_tanh",
            "attention.heads": dim // 128,
            "attention.head_dim": 128,
            "attention.per_dim_scale": True,
            "attention.logit_cap": 50.0,
            "norm.kind": "layer",
            "norm.bias": True,
            "output.cap": 30.0,
            "output.tied": True,
        },
    )
    layout = two_d(*mesh)
    schedule = Exponential(peak=2.5e-4, steps=300_000, warmup=4000, floor=0.1)
    return replace(
        e,
        model=model,
        layout=layout,
        data=replace(e.data, batch_size=rows * layout.devices, length=1024),
        optimizer=AdamW(schedule=schedule, b2=0.99, weight_decay=1e-3),
        train=replace(e.train, clip_norm=5.0),
        eval=replace(e.eval, batch_size=layout.devices),
        execution=replace(e.execution, remat="full", loss_chunks=1),
    )


def _maxtext_v5(scale: int, rows: int, layout: Layout, remat: str = "full", offload: str = "none") -> Experiment:
    """MaxText's decoders for v5e and v5p: heads of 128, gated SiLU, rows of 2048 tokens.

    Args:
      scale: its `global_parameter_scale`, a power of two: each doubles heads and the hidden dimension, then the model dimension,
        then layers.
      rows: of each chip.
      remat: MaxText's "full" recomputes a layer, its "minimal" keeps the products of weights: "dots".
      offload: its "qkv_proj_offloaded" is "attention_in".
    """
    e = registry.load("gpt.maxtext_22b")
    whole, remainder = divmod(scale.bit_length() - 1, 3)
    hidden = 2 ** (whole + (remainder > 0))
    model = changed(
        e.model,
        {
            "layers": 16 * 2**whole,
            "model_dim": 2048 * 2 ** (whole + (remainder > 1)),
            "feed_forward.hidden_dim": 7168 * hidden,
            "feed_forward.activation": "silu",
            "feed_forward.gated": True,
            "attention.heads": 16 * hidden,
            "attention.head_dim": 128,
        },
    )
    execution = replace(e.execution, remat=remat, offload=offload, loss_chunks=4)
    data = replace(e.data, batch_size=rows * layout.devices, length=2048)
    return replace(e, model=model, execution=execution, layout=layout, data=data)


def _recipe(
    name: str,
    devices: int,
    rows: int,
    length: int,
    offload: str = "none",
    *,
    remat: str = "full",
    quantization: Quantization = "none",
    **model: Any,
) -> Experiment:
    """A recipe of tpu-recipes, MaxText under FSDP over all devices: a mixture's experts are gathered as all other weights are,
    and its tokens stay where they are.

    Logits in four parts were chosen here, so that they fit; most recipes compute them whole.

    Args:
      rows: of each device.
      offload: what the recipe keeps in the host's memory: its decoder_layer_input is "layer_in", its query_proj, key_proj and
        value_proj are "attention_in", its out_proj is "attention_out", its mlpwo is "ffn_out".
      remat: what it keeps in the device's, by the same names; the backward pass computes the rest of a layer again.
      model: what differs from the named experiment's.
    """
    e = registry.load(name)
    return replace(
        e,
        model=changed(e.model, model),
        layout=fully_sharded(devices, 1),
        data=replace(e.data, batch_size=devices * rows, length=length),
        eval=replace(e.eval, batch_size=devices),
        execution=replace(e.execution, remat=remat, offload=offload, quantization=quantization, exchange_parts=1, loss_chunks=4),
    )


def _published(topology: str, seconds: float, mfu: float, name: str, rows: int, length: int, offload: str, **how: Any) -> Point:
    """A recipe's point.

    Args:
      seconds: of a step, as the recipe's page prints it; the FLOPs of `mfu` are those that the page counts for v6e. For v5p it
        counts half of attention, and `mfu` is derived from the step time and all of it.
    """
    pod = parse_slice(topology)
    folder = {"v6e": "trillium", "tpu7x": "ironwood"}.get(pod.chip.name, pod.chip.name)
    source = f"derived from tpu-recipes, training/{folder}, {seconds:.3f} s"
    options = "scoped_vmem" if "scoped_vmem" in pod.chip.options else USUAL  # which all of these recipes ask for
    experiment = functools.partial(_recipe, name, pod.devices, rows, length, offload, **how)
    return Point(experiment, topology, mfu, "MaxText", source, kernel=True, options=options)


MLPERF = "derived from MLPerf 1.1 logs"
V4 = "MaxText's README of 2023"
PAX = "Pax's README, read off its chart (3 %)"
V5E = "MaxText's README of its v5e configurations"
V5P = "MaxText's README of its v5p configurations"
TIERS = "derived from MaxText's table of optimized models"
_QKV = "layer_in+attention_in"
_QKVO = f"{_QKV}+attention_out"
# Sizes of models that are no experiments of their own.
_405B: dict[str, Any] = {"layers": 126, "model_dim": 16_384, "feed_forward.hidden_dim": 53_248, "attention.heads": 128}
_8X22B: dict[str, Any] = {
    "vocab": 32_768,
    "layers": 56,
    "model_dim": 6144,
    "feed_forward.hidden_dim": 16_384,
    "attention.heads": 48,
}
_235B: dict[str, Any] = {
    "layers": 94,
    "model_dim": 4096,
    "attention.heads": 64,
    "moe.experts.hidden_dim": 1536,
    "moe.capacity.factor": 8.0,  # of eight choices, which are even, as the recipe's are
}
_DROPLESS: dict[str, Any] = {"moe.capacity.factor": 8.0, "moe.group_size": 8192}  # of eight choices: as many slots as choices
_EVEN: dict[str, Any] = _DROPLESS | {"moe.group_size": 4096}  # for rows of 4096; routing is random there
_TWO = over_slices(fully_sharded(256, 1), 2)


def _v5p_mixtral() -> Experiment:
    """Its recipe drops no token and recomputes a layer from its input; slots here are as many as choices, and routing is even."""
    slots: dict[str, Any] = {"moe.capacity.factor": 2.0}
    return _recipe("gpt.mixtral_8x7b", 128, 36, 4096, **slots)


def _v5p_scout() -> Experiment:
    """Llama 4 Scout: 48 layers of 5120, 16 experts of 8192, one a token beside one that all pass. It drops no token either.

    Rows of 8192 are not longer than the chunks in which its attention is local. Chosen here: layers' inputs stay on the chip,
    where the recipe has them in the host's memory, since a step with offload takes ten times as long to compile; all layers
    rotate queries and keys (three of four there), whose norms come before that and have scales (after it and without there).
    """
    model: dict[str, Any] = {
        "vocab": 202_048,
        "layers": 48,
        "model_dim": 5120,
        "feed_forward.hidden_dim": 8192,
        "attention.heads": 40,
        "attention.qk_norm": QkNorm(kind="rms"),
        "positions.base": 5e5,
        "moe.experts": ExpertsConfig(count=16, shared=SharedExpert(hidden_dim=8192)),
        "moe.router": TopK(choices=1, score="sigmoid"),
        "moe.capacity.factor": 1.0,
        "moe.group_size": 8192,
    }
    return _recipe("gpt.mixtral_8x7b", 128, 8, 8192, **model)


def _v5p_maverick() -> Experiment:
    """Llama 4 Maverick: Scout's widths, every second layer a mixture of 128 experts, the others dense ones of 16384.

    Its mesh is 32 x 4, of which four chips share a matrix. Chosen here: what Scout's is, and that a layer keeps its input alone
    (queries, keys, values and the attention's output wait in the host's memory there).
    """
    sizes: dict[str, Any] = {"feed_forward.hidden_dim": 16_384, "moe.every": 2}
    experts = ExpertsConfig(count=128, hidden_dim=8192, shared=SharedExpert(hidden_dim=8192))
    e = _v5p_scout()
    model = changed(e.model, sizes | {"moe.experts": experts})
    return replace(e, model=model, layout=two_d(32, 4), data=replace(e.data, batch_size=4 * 128))


def _v5p_gpt3() -> Experiment:
    """MLPerf 4.0's script in MaxText: rows of 2048 in int8, 64 x 8 chips, of which eight share a matrix."""
    e = _recipe("gpt.gpt3_175b", 512, 4, 2048, quantization="int8")
    return replace(e, layout=two_d(64, 8))


POINTS = {
    "mlperf_480b": Point(_mlperf_480b, "v4:8x16x16", 0.475, "MLPerf", f"{MLPERF}, 22.74 s a step"),
    "mlperf_200b": Point(_mlperf_200b, "v4:8x8x16", 0.531, "MLPerf", f"{MLPERF}, 16.83 s a step"),
    "maxtext_22b": Point(lambda: _maxtext_v4(registry.load("gpt.maxtext_22b")), "v4:4x4x4", 0.567, "MaxText", V4),
    "maxtext_52b": Point(lambda: _maxtext_v4(registry.load("gpt.maxtext_52b")), "v4:4x4x12", 0.560, "MaxText", V4),
    "palm_540b": Point(_palm_540b, "v4:12x16x16", 0.462, "PaLM", "arXiv 2204.02311, section 4.1, from memory"),
    "pax_16b": Point(lambda: _pax(36, 6144, 16, (16, 2)), "v4:2x4x4", 0.424, "Pax", PAX),
    "pax_32b": Point(lambda: _pax(40, 8192, 8, (16, 4)), "v4:4x4x4", 0.423, "Pax", PAX),
    "pax_128b": Point(lambda: _pax(71, 12_288, 4, (64, 4)), "v4:4x8x8", 0.486, "Pax", PAX),
    "pax_256b": Point(lambda: _pax(80, 16_384, 4, (64, 8)), "v4:8x8x8", 0.532, "Pax", PAX),
    "pax_1024b": Point(lambda: _pax(142, 24_576, 2, (256, 8)), "v4:8x16x16", 0.536, "Pax", PAX),
    "v5e_16b": Point(lambda: _maxtext_v5(16, 6, fully_sharded(256, 1)), "v5e:16x16", 0.611, "MaxText", V5E, kernel=True),
    "v5e_32b": Point(lambda: _maxtext_v5(32, 4, fully_sharded(256, 1)), "v5e:16x16", 0.669, "MaxText", V5E, kernel=True),
    "v5e_64b": Point(lambda: _maxtext_v5(64, 2, fully_sharded(256, 1)), "v5e:16x16", 0.599, "MaxText", V5E, kernel=True),
    "v5e_128b": Point(
        lambda: _maxtext_v5(128, 1, two_d(16, 16), offload="attention_in"), "v5e:16x16", 0.5606, "MaxText", V5E, True
    ),
    "v5e_16b_2_slices": Point(lambda: _maxtext_v5(16, 6, _TWO), "2xv5e:16x16", 0.5937, "MaxText", V5E, kernel=True),
    "v5e_32b_2_slices": Point(lambda: _maxtext_v5(32, 4, _TWO), "2xv5e:16x16", 0.6481, "MaxText", V5E, kernel=True),
    "v5e_64b_2_slices": Point(lambda: _maxtext_v5(64, 2, _TWO), "2xv5e:16x16", 0.5666, "MaxText", V5E, kernel=True),
    "v5p_64b": Point(lambda: _maxtext_v5(64, 3, two_d(16, 4), "dots"), "v5p:4x4x4", 0.7031, "MaxText", V5P, kernel=True),
    "v5p_128b": Point(lambda: _maxtext_v5(128, 1, two_d(16, 8), "dots"), "v5p:4x4x8", 0.6868, "MaxText", V5P, kernel=True),
    "v5p_128b_256": Point(lambda: _maxtext_v5(128, 1, two_d(32, 8), "dots"), "v5p:4x8x8", 0.6883, "MaxText", V5P, kernel=True),
    "v5p_256b": Point(lambda: _maxtext_v5(256, 1, two_d(64, 8), "dots"), "v5p:8x8x8", 0.6709, "MaxText", V5P, kernel=True),
    "v5p_128b_2_slices": Point(
        lambda: _maxtext_v5(128, 1, over_slices(two_d(16, 8), 2), "dots"), "2xv5p:4x4x8", 0.6634, "MaxText", V5P, kernel=True
    ),
    "v5p_256b_2_slices": Point(
        lambda: _maxtext_v5(256, 1, over_slices(two_d(64, 8), 2), "dots"), "2xv5p:8x8x8", 0.6299, "MaxText", V5P, kernel=True
    ),
    "v5p_512b": Point(lambda: _maxtext_v5(512, 2, two_d(64, 8)), "v5p:8x8x8", 0.640, "MaxText", V5P, kernel=True),
    "v5p_1024b": Point(lambda: _maxtext_v5(1024, 2, two_d(128, 8)), "v5p:8x8x16", 0.5535, "MaxText", V5P, kernel=True),
    "v5p_1024b_2048": Point(lambda: _maxtext_v5(1024, 2, two_d(256, 8)), "v5p:8x16x16", 0.648, "MaxText", V5P, kernel=True),
    "v6e_llama31_8b": _published("v6e:16x16", 4.546, 0.4547, "gpt.llama3_1_8b", 4, 8192, _QKVO),
    "v6e_llama31_8b_128": _published("v6e:8x16", 4.602, 0.4491, "gpt.llama3_1_8b", 4, 8192, _QKVO),
    "v6e_llama31_8b_64": _published("v6e:8x8", 5.652, 0.4572, "gpt.llama3_1_8b", 5, 8192, _QKVO),
    "v6e_llama31_8b_32": _published("v6e:4x8", 3.495, 0.4436, "gpt.llama3_1_8b", 3, 8192, _QKVO),
    "v6e_llama31_8b_16": _published("v6e:4x4", 3.393, 0.4570, "gpt.llama3_1_8b", 3, 8192, _QKVO),
    "v6e_llama31_8b_8": _published("v6e:2x4", 3.443, 0.4503, "gpt.llama3_1_8b", 3, 8192, _QKVO),
    "v6e_mistral_7b": _published("v6e:2x4", 6.320, 0.4706, "gpt.mistral_7b", 6, 8192, _QKVO),
    "v6e_llama31_70b": _published("v6e:16x16", 42.656, 0.5036, "gpt.llama3_70b", 5, 8192, _QKV),
    "v6e_llama31_70b_128": _published("v6e:8x16", 34.786, 0.4940, "gpt.llama3_70b", 4, 8192, _QKV),
    "v6e_llama31_70b_64": _published("v6e:8x8", 18.688, 0.4598, "gpt.llama3_70b", 2, 8192, _QKV),
    "v6e_llama2_70b": _published("v6e:16x16", 9.052, 0.4382, "gpt.llama2_70b", 2, 4096, "attention_in"),
    "v6e_gpt3_175b": _published("v6e:16x16", 17.182, 0.4193, "gpt.gpt3_175b", 3, 2048, "none"),
    "v5p_llama31_405b": _published("v5p:8x8x8", 131.474, 0.7128, "gpt.llama3_1_8b", 2, 8192, "context+ffn_out", **_405B),
    "v5p_llama2_70b": Point(
        lambda: _recipe("gpt.llama2_70b", 512, 2, 4096, remat="attention_in+attention_out+ffn_out"),
        "v5p:8x8x8",
        0.6701,
        "MaxText",
        f"{TIERS}, 692 tokens/s a chip",
        kernel=True,
    ),
    "v5p_gpt3_175b_int8": Point(
        _v5p_gpt3, "v5p:8x8x8", 0.8655, "MaxText", "derived from tpu-recipes, training/v5p, 22.197 s", kernel=True
    ),
    "v6e_gpt3_175b_int8": _published("v6e:16x16", 14.245, 0.5057, "gpt.gpt3_175b", 3, 2048, "none", quantization="int8"),
    "v5p_mixtral_8x7b": Point(
        _v5p_mixtral, "v5p:4x4x8", 0.5256, "MaxText", f"{TIERS}, 2,909 tokens/s a chip", True, options="scoped_vmem"
    ),
    "v5p_llama4_scout": Point(
        _v5p_scout,
        "v5p:4x4x8",
        0.5458,
        "MaxText",
        "derived from tpu-recipes, training/v5p, 31.652 s",
        kernel=True,
        options="scoped_vmem",
    ),
    "v5p_llama4_maverick": Point(
        _v5p_maverick,
        "v5p:4x4x8",
        0.3486,
        "MaxText",
        "derived from tpu-recipes, training/v5p, 24.792 s",
        kernel=True,
        options="scoped_vmem",
    ),
    "v6e_mixtral_8x7b": _published("v6e:16x16", 13.484, 0.3293, "gpt.mixtral_8x7b", 12, 4096, _QKVO),
    "v6e_mixtral_8x22b": _published("v6e:16x16", 24.706, 0.3622, "gpt.mixtral_8x7b", 8, 4096, _QKVO, **_8X22B),
    "v5p_deepseek_v3": _published("v5p:8x8x8", 90.668, 0.4046, "gpt.deepseek_v3", 6, 8192, "layer_in+attention_out", **_DROPLESS),
    "tpu7x_qwen3_235b": _published("tpu7x:4x8x8", 30.87, 0.3078, "gpt.qwen3_30b_a3b", 16, 4096, "layer_in", **_235B),
    "tpu7x_qwen3_235b_fp8": _published(
        "tpu7x:4x8x8", 27.67, 0.3434, "gpt.qwen3_30b_a3b", 16, 4096, "layer_in", quantization="fp8", **_235B
    ),
    "tpu7x_deepseek_v3": _published("tpu7x:4x4x8", 27.02, 0.2956, "gpt.deepseek_v3", 8, 4096, "layer_in", **_EVEN),
    "tpu7x_deepseek_v3_256": _published("tpu7x:4x8x8", 26.79, 0.2981, "gpt.deepseek_v3", 8, 4096, "layer_in", **_EVEN),
    "tpu7x_llama31_70b": _published(
        "tpu7x:4x4x4", 12.20, 0.5605, "gpt.llama3_70b", 2, 8192, "none", remat="attention_in+context"
    ),
    "tpu7x_llama31_70b_256": _published(
        "tpu7x:4x8x8", 12.27, 0.5573, "gpt.llama3_70b", 2, 8192, "none", remat="attention_in+context"
    ),
    "tpu7x_llama31_70b_fp8": _published(
        "tpu7x:4x4x4", 7.93, 0.8623, "gpt.llama3_70b", 2, 8192, "none", remat="attention_in+context", quantization="fp8"
    ),
    "tpu7x_llama31_70b_256_fp8": _published(
        "tpu7x:4x8x8", 7.95, 0.8601, "gpt.llama3_70b", 2, 8192, "none", remat="attention_in+context", quantization="fp8"
    ),
}
