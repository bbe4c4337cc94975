"""The report of a measured experiment, of tiny models of all families: complete, consistent, and null where nothing is known."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from configs import registry
from configs.experiment import Experiment
from models.gpt.model import Gpt
from tests.helpers.models import varied
from tests.helpers.programs import program
from trainers import step
from trainers.hlo import parsing
from trainers.hlo.model_flops import model_flops, program_flops
from trainers.hlo.parsing import HloError
from trainers.hlo.products import total
from trainers.measure import peaks, profile, throughput
from trainers.measure.meter import Meter
from trainers.measure.mlperf_log import Request
from trainers.measure.mlperf_rules import complaints, read
from trainers.measure.throughput import Subject
from trainers.plan import make_plan

KEYS = {
    "experiment",
    "step_s_median",
    "step_s_p10",
    "step_s_p90",
    "tokens_per_s",
    "mfu",
    "hfu",
    "peak_flops",
    "compile_s",
    "first_step_s",
    "peak_memory_gib",
    "input_stall_share",
    "versions",
}


def tiny(name: str, **model) -> Experiment:
    e = registry.tiny(registry.load(name))
    return varied(e, **model)


def measured_quickly(dtype: str) -> float:
    """A host's peak by a small product."""
    return MEASURED(dtype, long=1e-6, times=1)


MEASURED = peaks.measured


# --- FLOPs --------------------------------------------------------------------------------------------------------


def compiled(e: Experiment) -> jax.stages.Compiled:
    return step.compile_step(make_plan(e, jax.devices()[: e.layout.devices]))


@pytest.mark.integration
def test_a_program_s_products_are_counted_in_loops():
    """Four layers in a loop have the model's FLOPs without recomputation, which the compiler's own count falls short of, and with
    it as many as the traced gradient has."""
    plain, again = (tiny("gpt.quickstart", layers=4, remat=remat) for remat in ("none", "full"))
    done = compiled(plain)
    assert total(parsing.parse(done.as_text() or "")) == model_flops(plain)
    assert (done.cost_analysis() or {})["flops"] < model_flops(plain)
    more = total(parsing.parse(compiled(again).as_text() or ""))
    assert more == program_flops(again) > 1.2 * model_flops(again)
    assert model_flops(again) == model_flops(plain)


LOOP = """
%body (s: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %s = (s32[], f32[8,8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %y = f32[8,8] get-tuple-element(%s), index=1
  %p = f32[8,8] dot(%y, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[8,8]) tuple(%i, %p)
}

%condition (s2: (s32[], f32[8,8])) -> pred[] {
  %s2 = (s32[], f32[8,8]) parameter(0)
  ROOT %go = pred[] custom-call(%s2), custom_call_target="TopK"
}

%twice (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8] parameter(0)
  %a2 = f32[8,8] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %a3 = f32[8,8] dot(%a2, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%other (b: f32[8,8]) -> f32[8,8] {
  %b = f32[8,8] parameter(0)
  %b2 = f32[8,8] dot(%b, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %b3 = f32[8,8] dot(%b, %b2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%once (c: f32[8,8]) -> f32[8,8] {
  %c = f32[8,8] parameter(0)
  ROOT %c2 = f32[8,8] dot(%c, %c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
CALL = '%c = (f32[8,3], s8[16]) custom-call(%l, %r), custom_call_target="{}", backend_config={{{}}}'
GEMM = '"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}'
TRIPS = ', backend_config={"known_trip_count":{"n":"5"}}'
CHOICE = "%c = f32[8,8] conditional(%g, %m, %m), true_computation=%twice, false_computation=%"
WHILE = "%c = (s32[], f32[8,8]) while(%m2), condition=%condition, body=%body"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (WHILE + TRIPS, 5 * 1024),
        (WHILE, "how often loop %c"),
        (CHOICE + "other", 2048),
        (CHOICE + "once", "which branch of a conditional"),
        (CALL.format("__cublas$lt$matmul", GEMM), 2 * 8 * 3 * 4),
        (CALL.format("__cudnn$fmhaSoftmax", ""), "custom call '__cudnn$fmhaSoftmax'"),
        (CALL.format("TopK", ""), 0),
    ],
)
def test_what_cannot_be_counted_is_not(line, expected):
    """Loops count as often as they run, cuBLAS's calls by their sizes; what is unknown is an error that names it, not a guess."""
    p = program(
        "%l = f32[8,4] parameter(1)",
        "%r = f32[4,3] parameter(2)",
        "%m = f32[8,8] parameter(3)",
        "%g = pred[] parameter(4)",
        "%m2 = (s32[], f32[8,8]) parameter(5)",
        line,
        "ROOT %z = f32[500] copy(%x)",
        before=LOOP,
    )
    if isinstance(expected, str):
        with pytest.raises(HloError, match=expected.replace("$", r"\$")):
            total(p)
    else:
        assert total(p) == expected


# --- the report ---------------------------------------------------------------------------------------------------


GPT = tiny("gpt.quickstart", layers=4, remat="none")
BERT, SPARSE = tiny("bert.quickstart"), tiny("gpt.moe_quickstart", remat="full")


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def report(trace) -> Callable[[Experiment], dict]:
    """Measures an experiment, once; the decoder with a log and the mixture with a profile."""

    @functools.cache
    def measure(e: Experiment) -> dict:
        log = Request(folder=trace.parent / "logs") if e is GPT else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peaks, "measured", measured_quickly)
            return json.loads(json.dumps(throughput.measure(e, 3, trace if e is SPARSE else None, log)))

    return measure


@pytest.mark.integration
@pytest.mark.parametrize(
    "e", [GPT, pytest.param(BERT, marks=pytest.mark.slow), pytest.param(SPARSE, marks=pytest.mark.nightly)], ids=lambda e: e.name
)
def test_reports_are_complete_and_consistent(report, e):
    """Each report has all keys and goes through JSON; times and shares are in order."""
    figures = report(e)
    assert figures.keys() >= KEYS and figures["steps"] == 3 and not figures["notes"]
    assert 0 < figures["step_s_p10"] <= figures["step_s_median"] <= figures["step_s_p90"]
    assert figures["tokens"] == e.data.batch_size * 16  # full rows
    assert figures["mfu"] > 0 < figures["hfu"] and figures["tokens_per_s"] > figures["examples_per_s"] > 0
    assert 0 <= figures["input_stall_share"] < 1 and figures["compile_s"] > 0 and figures["peak_memory_gib"] > 0
    assert figures["first_step_s"] > figures["compile_s"]
    assert {"jax", "jaxlib", "flax", "python"} <= figures["versions"].keys()
    text = throughput.as_text(figures)
    assert all(word in text for word in ("MFU", "HFU", "PaLM", "matrix product", "tokens/s", "rows/s", "waited for input"))


@pytest.mark.integration
def test_rates_by_hand(monkeypatch):
    """Steps of 1 and 3 s, with a second of waiting for input in them: 2 s a step, so that 16 rows of 16 tokens are 128 tokens/s,
    and a device that could do four times the model's FLOPs in a second has an MFU of one eighth."""
    p = make_plan(GPT, jax.devices()[:1])
    timed = Meter(lambda batch: batch, lambda number: number)
    timed.windows, timed.stalls, timed.outputs = [[1.0, 3.0]], [0.0, 1.0], [{"tokens": 250.0}, {"tokens": 262.0}]
    monkeypatch.setattr(peaks, "peak", lambda devices, dtype: (4.0 * model_flops(GPT), "a toy"))
    figures = throughput.report(Subject(p, step.compile_step(p), 0.5, timed))
    assert figures["step_s_mean"] == 2 and figures["input_stall_share"] == 1 / 4
    assert figures["tokens_per_s"] == figures["tokens_per_s_per_chip"] == 128 and figures["examples_per_s"] == 8
    assert figures["mfu"] == figures["hfu"] == 1 / 8  # nothing is computed again, see above


@pytest.mark.integration
def test_throughput_is_told_in_the_models_units(monkeypatch):
    """A model that counts images and pixels has their rates, in its order, and no tokens."""

    def units(self, batch):
        return {"pixels": batch["tokens"].size, "images": batch["tokens"].shape[0]}

    monkeypatch.setattr(Gpt, "units", units)
    monkeypatch.setattr(peaks, "measured", measured_quickly)
    figures = throughput.measure(GPT, 1)
    assert list(figures["units_per_s"]) == ["pixels", "images"] and "tokens_per_s" not in figures
    assert figures["images"] == GPT.data.batch_size and figures["pixels_per_s"] == figures["units_per_s"]["pixels"]
    text = throughput.as_text(figures)
    assert "pixels/s" in text and "images/s" in text and "tokens" not in text.replace("random tokens", "")


@pytest.mark.integration
def test_what_was_measured_is_logged(report):
    """A log in MLPerf's form of the counted steps, that our rules pass."""
    figures = report(GPT)
    path = Path(figures["mlperf_log"])
    assert complaints(path) == []
    steps = [event.value["step_time"] for event in read(path) if event.key == "tracked_stats"]
    assert len(steps) == 3 and sum(steps) / 3 == pytest.approx(figures["step_s_mean"], rel=1e-3)


@pytest.mark.integration
def test_what_is_unknown_is_null(monkeypatch):
    """Without a known peak there is neither MFU nor HFU, without countable FLOPs no HFU; notes say why, other numbers stay."""
    monkeypatch.setattr(peaks, "peak", lambda devices, dtype: (None, "no peak is known of a 'TPU v9'"))
    figures = throughput.measure(GPT, 1)
    assert figures["mfu"] is None and figures["hfu"] is None and figures["tokens_per_s"] > 0 and figures["hardware_flops"] > 0
    assert figures["notes"] == ["no MFU, no HFU: no peak is known of a 'TPU v9'"]
    assert "MFU        unknown" in throughput.as_text(figures)

    def refuse(program):
        raise HloError("%c: the FLOPs of custom call 'x' are not in the program")

    monkeypatch.undo()
    monkeypatch.setattr(peaks, "measured", lambda dtype: 1e9)
    monkeypatch.setattr(throughput.products, "total", refuse)
    figures = throughput.measure(GPT, 1)
    assert figures["mfu"] > 0 and figures["hfu"] is None and figures["hardware_flops"] is None
    assert figures["notes"] == ["no HFU: %c: the FLOPs of custom call 'x' are not in the program"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("TPU v4", 8 * 275e12), ("TPU v5 lite", 8 * 197e12), ("NVIDIA H100 80GB HBM3", 8 * 989.4e12), ("TPU v9", None)],
)
def test_peaks_of_accelerators_are_the_published_ones(monkeypatch, kind, expected):
    """As many times the chip's own as there are devices; of an unknown kind none, and the line names it."""
    monkeypatch.setattr(jax, "devices", lambda: [type("Device", (), {"platform": "tpu", "device_kind": kind})])
    value, name = peaks.peak(8, "float32")
    assert value == expected and kind in name


@pytest.mark.integration
def test_two_experiments_are_compared(monkeypatch):
    """Both reports are there, with the ratio of their medians; what the process shares is null."""
    monkeypatch.setattr(peaks, "measured", measured_quickly)
    figures = throughput.compare(GPT, BERT, 6)
    a, b = figures["a"], figures["b"]
    assert figures["ratio"]["median"] == pytest.approx(b["step_s_median"] / a["step_s_median"])
    assert figures["ratio"]["p10"] <= figures["ratio"]["p90"]
    assert a.keys() == b.keys() >= KEYS and a["steps"] == b["steps"] == 6
    assert (a["experiment"], b["experiment"]) == (GPT.name, BERT.name) and a["first_step_s"] > 0
    assert b["first_step_s"] is None is b["peak_memory_gib"]
    assert "times as long as one of a" in throughput.as_text(figures)


# --- the profile --------------------------------------------------------------------------------------------------


def test_instants_are_shared():
    """Each of two operations that overlap has half the time; gaps count for none; the sum is the time in which any ran."""
    shares = profile.time_shares([("a", 0, 10), ("b", 4, 10), ("c", 20, 25), ("a", 24, 26)])
    assert shares == {"a": 4 + 3 + 0.5 + 1, "b": 3, "c": 4 + 0.5}
    assert sum(shares.values()) == 10 + 6


def test_a_profile_names_the_modules_of_any_model():
    """Operations that no table knows go under the class of the innermost module around them; without one, under "(other)"."""

    class Smooth(nnx.Module):
        def __call__(self, x):
            return jnp.cos(x)

    class Tower(nnx.Module):
        def __init__(self):
            self.smooth = Smooth()

        def __call__(self, x):
            return jnp.sin(self.smooth(x))

    def outside(x):
        return jnp.sort(Tower()(x))

    compiled = parsing.parse(jax.jit(outside).lower(jnp.ones(64)).compile().as_text() or "")
    modules = {type(module).__qualname__ for _, module in nnx.iter_modules(Tower())}
    instructions = [i for c in compiled.computations.values() for i in c.instructions]

    def named(opcode: str) -> set[str]:
        return {profile.component(compiled, i, modules) for i in instructions if i.opcode == opcode}

    assert {name.rpartition(".")[2] for name in named("cosine")} == {"Smooth"}
    assert {name.rpartition(".")[2] for name in named("sine")} == {"Tower"}
    assert named("sort") == {"(other)"}


@pytest.mark.integration
@pytest.mark.slow
def test_a_profile_has_a_trace_and_components(report, trace):
    """A traced mixture of experts: the trace's file, a text, and attention, experts, the loss and the optimizer in it, with next
    to nothing unnamed but the compiler's own copies."""
    summary = report(SPARSE)["profile"]
    assert list(trace.glob("plugins/profile/*/*.xplane.pb"))
    text = (trace / profile.SUMMARY).read_text()
    assert text.splitlines() == profile.table(summary) and not list(trace.glob("*.new"))
    shares: dict[str, float] = {}
    for row in summary["components"]:
        shares[row["component"]] = shares.get(row["component"], 0.0) + row["share"]
    assert {"attention", "experts", "ffn", "norm", "embedding", "softmax and loss", "optimizer"} <= shares.keys()
    assert all(name in text for name in shares) and shares.get("(other)", 0.0) < 0.05
    assert sum(shares.values()) == pytest.approx(1) and sum(summary["kinds"].values()) == pytest.approx(1)
    assert {row["phase"] for row in summary["components"]} >= {"forward", "backward", "rematerialised", "optimizer"}
    assert summary["kinds"]["matmul"] > 0 and 0 < summary["busy_ms"] <= summary["step_ms"]
