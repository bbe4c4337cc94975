"""The comparison with peers, on stand-ins for them: small scripts that speak the protocol of scripts/lab/peers/serve.py."""

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from configs import registry
from configs.registry import ConfigError
from models.errors import UserError
from scripts.lab.peers import bounds, compare, machine, maxtext, maxtext_plan, table
from scripts.lab.peers.compare import CONTINUE, GENERATE, TRAIN, System
from tests.helpers.programs import cycles
from trainers.pods import calibration, report
from trainers.pods.points import POINTS
from trainers.pods.topology import DoesNotFit
from trainers.runtime.chips import GIB, PodError, parse_slice

FAKE = """
import sys
sys.path.insert(0, {root!r})
from scripts.lab.peers.serve import serve

def prepare(fields):
    print("a library says hello")
    def run(steps):
        print("a library logs")
        with open({log!r}, "a") as log:
            log.write(f"{name}{{steps}} ")
        return fields["data"]["batch_size"] / steps
    return {{"parameters": 7, "versions": {{"fake": "1.0"}}, "settings": fields["name"]}}, run

serve(train=prepare)
"""


def fake(folder: Path, name: str, source: str = FAKE) -> System:
    script = folder / f"{name}.py"
    script.write_text(source.format(root=str(compare.ROOT), log=str(folder / "log"), name=name))
    return System(name, (sys.executable, str(script)))


@pytest.fixture
def tiny():
    return registry.tiny(registry.load("gpt.bench_42m"))


@pytest.fixture
def tiny_t5():
    return registry.tiny(registry.load("t5.bench_60m"))


@pytest.mark.integration
def test_windows_alternate_and_answers_are_theirs(tmp_path, tiny):
    """Systems train in turn, the warm-up window included; what libraries print does not come between the answers."""
    result = compare.compare(tiny, [fake(tmp_path, "a"), fake(tmp_path, "b")], windows=2, steps=5)
    assert (tmp_path / "log").read_text().split() == ["a5", "b5"] * (compare.WARMUP + 2)
    assert [row["system"] for row in result] == ["a", "b"]
    for row in result:
        assert (row["parameters"], row["settings"]) == (7, tiny.name)
        assert row["value"] == tiny.data.batch_size / 5
        assert row["p10"] <= row["per_s"] <= row["p90"]
    assert result[0]["ratio"] == 1.0 and result[0]["share"] is None  # no system says what a step's FLOPs are
    assert "fake 1.0" in compare.table(result)


def test_the_ratio_is_ours_over_theirs_without_the_warm_up():
    """Ours trains 100 tokens in 1, 2 and 4 s, theirs in 10, 4 and 5 s, after a slow window each: medians 50 and 20, ratio 2.5."""

    def windows(*seconds: float) -> list[dict[str, float]]:
        return [{"seconds": s, "value": s} for s in (1000.0, *seconds)]

    ours, theirs = compare.rows([windows(1, 2, 4), windows(10, 4, 5)], amount=100)
    assert (ours["per_s"], ours["ratio"], ours["value"]) == (50, 1, 4)
    assert (theirs["per_s"], theirs["ratio"], theirs["value"]) == (20, 2.5, 5)
    assert (ours["p10"], ours["p90"]) == pytest.approx((30, 90))  # of 25, 50, 100


@pytest.mark.integration
def test_a_peer_that_dies_leaves_its_last_words(tmp_path, tiny):
    """A system that stops while it starts or trains is an error of one line: its name, exit code and last line."""
    at_once = fake(tmp_path, "starts", "import sys\nprint('loading', file=sys.stderr)\nsys.exit('no such model')")
    with pytest.raises(UserError, match=r"^starts stopped with exit code 1: no such model$"):
        compare.compare(tiny, [at_once], windows=1, steps=1)
    later = fake(tmp_path, "trains", FAKE.replace("return fields", "sys.exit('out of memory')\n        return fields"))
    with pytest.raises(UserError, match=r"^trains stopped with exit code 1: out of memory$"):
        compare.compare(tiny, [later], windows=1, steps=1)


@pytest.mark.integration
@pytest.mark.slow
def test_the_zoos_own_side_trains(tiny):
    """Shardzoo's process trains the experiment it is given: as many parameters as the plan says, a loss near ln(vocabulary)."""
    with compare.started(compare.OURS, tiny, TRAIN) as process:
        answers = [process.run(2), process.run(1)]
    vocabulary = tiny.model.vocab * tiny.model.model_dim
    assert process.about["parameters"] > vocabulary
    for answer in answers:
        assert answer["seconds"] > 0
        assert 3.5 < answer["value"] < 5  # ln 64 is 4.16


@pytest.mark.integration
@pytest.mark.nightly
def test_the_zoos_own_side_generates(tiny_t5):
    """Every output has the length that the experiment asks for, whatever the model says about its end: of a decoder, half."""
    with compare.started(compare.OURS, tiny_t5, GENERATE) as process:
        assert process.run(2)["value"] == tiny_t5.eval.max_length
    assert compare.units(tiny_t5, GENERATE) == tiny_t5.data.batch_size
    decoder = registry.tiny(registry.load("chat.bench_smollm2"))
    with compare.started(compare.OURS, decoder, CONTINUE) as process:
        assert process.run(1)["value"] == decoder.data.features()["tokens"].shape[0] // 2


def test_maxtext_gets_the_shapes_of_the_experiment():
    """MaxText's command line holds the experiment's sizes and optimizer."""
    given = maxtext.settings(registry.to_json(registry.load("gpt.bench_42m")), "out")
    for setting in ("base_emb_dim=512", "base_num_decoder_layers=8", "base_mlp_dim=2048", "vocab_size=32000"):
        assert setting in given
    for setting in ("per_device_batch_size=8", "max_target_length=256", "learning_rate=0.0001", "adam_weight_decay=0.01"):
        assert setting in given


@pytest.mark.parametrize(
    ("name", "work", "amount"),
    [
        (name, work, {"tokens": 8 * 256, "grids": 2, "windows": 4}.get(work.unit, 8))
        for name, works in compare.EXPERIMENTS.items()
        for work in works
    ],
)
def test_amount_of_a_batch(name, work, amount):
    """Eight rows: of 256 tokens, which an encoder-decoder has in two halves; or eight sentences or images; or
    two grids, or four windows of sound. SmolLM2 has rows of 128, of which generation writes 64, and may have one
    alone; DLRM has 2,048 or 1,024 interactions."""
    if name.startswith("chat."):
        amount = (1 if name.endswith("alone") else 8) * (64 if work is compare.CONTINUE else 128)
    if work is compare.TRAIN_ON_CLICKS:
        amount = 2048 if name.endswith("3t") else 1024
    assert compare.units(registry.load(name), work) == amount


def test_bad_options_are_refused(monkeypatch):
    """One line with the nearest choice; without any peer's environment the command says how to get one."""
    with pytest.raises(ConfigError, match=r"--experiments 'gpt.bench_42' is not known; did you mean 'gpt.bench_42m'\?"):
        compare.main(["--experiments", "gpt.bench_42"])
    with pytest.raises(ConfigError, match=r"--peers 'maxtxt' is not known; did you mean 'maxtext'\?"):
        compare.main(["--peers", "maxtxt"])
    with pytest.raises(ConfigError, match=r"^--windows 0: at least 1"):
        compare.main(["--windows", "0"])
    absent = System("Absent", ("/nowhere/python",), needs="something")
    monkeypatch.setattr(compare, "PEERS", {"hf": absent})
    with pytest.raises(ConfigError, match="make bench-peers"):
        compare.main(["--peers", "hf"])


@pytest.mark.integration
def test_a_peer_without_an_environment_is_left_out(monkeypatch, tmp_path, tiny, capsys):
    """The others run, and a line says what the missing one needs."""
    absent = System("Absent", ("/nowhere/python",), needs="Python 3.99")
    monkeypatch.setattr(compare, "PEERS", {"hf": fake(tmp_path, "b"), "maxtext": absent})
    counts = FAKE.replace('"parameters": 7', '"step_flops": 4096e9, "parameters": 7')
    monkeypatch.setattr(compare, "OURS", fake(tmp_path, "a", counts))
    monkeypatch.setattr(compare.machine, "measure", lambda: MACHINE)
    options = ["--experiments", "gpt.bench_42m", "--windows", "1", "--steps", "1", "--json"]
    assert compare.main([*options, "--to", str(tmp_path / "results.json")]) == 0
    printed = capsys.readouterr()
    assert printed.err == "Absent is left out: it needs Python 3.99\n"
    host, *rows = map(json.loads, printed.out.splitlines())
    assert [row["system"] for row in rows] == ["a", "b"]
    for row in rows:  # 2,048 tokens of 2e9 FLOPs each
        assert row["share"] == pytest.approx(row["per_s"] * 2e9 / MACHINE["flops"])
    assert table.read(tmp_path / "results.json") == {"machine": host, "rows": rows}


MACHINE = {
    "date": "2026-11-28",
    "processor": "A processor",
    "instructions": "AVX-512",
    "cpus": 2,
    "memory_kept": False,
    "load": 0.25,
    "flops": 400e9,
    "copy": 20e9,
    "triad": 15e9,
    "products": {"numpy": {"flops": 400e9, "version": "2.0"}, "jax": {"flops": 300e9, "version": "0.1"}},
}


def test_results_become_a_table():
    """A column for each machine; a cell has the ratio and both shares, and is empty where the machine did not run the peer."""

    def row(system: str, ratio: float, share: float | None, work: str = "train") -> dict:
        return {"experiment": "gpt.x", "work": work, "system": system, "ratio": ratio, "share": share, "versions": {"own": "3"}}

    first = [row("Shardzoo", 1.0, 0.625), row("A", 2.0, 0.3125), row("B", 1.25, 0.5)]
    second = [
        row("Shardzoo", 1.0, 0.5),
        row("A", 0.5, 1.0),
        row("Shardzoo", 1.0, None, "generate"),
        row("A", 3.0, None, "generate"),
    ]
    lines = table.tables([{"machine": MACHINE, "rows": first}, {"machine": MACHINE | {"memory_kept": True}, "rows": second}])
    assert "| A processor, AVX-512 | 2026-11-28 | 2 | 0.2 | 400 (numpy) | 20.0 | 15.0 | jax 0.1, numpy 2.0, own 3 |" in lines
    assert lines[lines.index("") + 1 :] == [
        "| experiment | peer | A processor, AVX-512 | A processor, AVX-512, memory kept |",
        "| --- | --- | --- | --- |",
        "| `gpt.x`, train | A | 2.00x (.62 to .31) | 0.50x (.50 to 1.00) |",
        "| `gpt.x`, train | B | 1.25x (.62 to .50) |  |",
        "| `gpt.x`, generate | A |  | 3.00x |",
    ]


def test_a_file_without_results_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("[]")
    for name in ("other.json", "none.json"):
        with pytest.raises(UserError, match=rf"{name}: no results of a comparison: "):
            table.main([str(tmp_path / name)])


def test_a_processor_is_read():
    """The widest instructions count."""
    text = "model name\t: A processor\nflags\t\t: fpu avx avx2 avx512f\n"
    assert machine.processor(text) == ("A processor", "AVX-512")
    assert machine.processor("") == ("unknown", "unknown")


def test_a_product_is_doubled_until_it_takes_long(monkeypatch):
    """The best of all sizes counts; by a clock on which they take 1, 2 and 32 s, the second is the fastest."""
    now, sizes = [0.0], []
    monkeypatch.setattr(bounds.time, "perf_counter", lambda: now[0])

    def make(size: int):
        sizes.append(size)

        def product() -> None:
            now[0] += {512: 1, 1024: 2, 2048: 32}[size]

        return product

    assert bounds.fastest(make, long=20) == 2 * 1024**3 / 2
    assert sizes == [512, 1024, 2048]


def test_bandwidth_of_an_odd_number_of_elements():
    """Both rates are there for a number of elements that neither threads nor blocks divide."""
    rates = bounds.bandwidth(100_003)
    assert rates.keys() == {"copy", "triad"} and min(rates.values()) > 0


# --- MaxText's steps beside plans ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", maxtext_plan.RECIPES)
def test_a_recipe_has_the_batch_of_its_point(name):
    """Its rows on all devices are the rebuilt run's, as long as that run's."""
    recipe, point = maxtext_plan.RECIPES[name], POINTS[name]
    rows = int(recipe["per_device_batch_size"]) * parse_slice(point.topology).devices
    data: Any = point.experiment().data
    assert (rows, int(recipe["max_target_length"])) == (data.batch_size, data.length)


@pytest.mark.parametrize("name", maxtext_plan.BEST)
def test_the_best_plan_is_of_the_same_model_batch_and_slice(name):
    """It differs from the point in its layout and execution alone, computes in the same numbers, and covers the slice."""
    e = POINTS[name].experiment()
    best = maxtext_plan.BEST[name].experiment(e)
    assert best != e and best.layout.devices == parse_slice(POINTS[name].topology).devices
    assert (best.execution.dtype, best.execution.quantization) == (e.execution.dtype, e.execution.quantization)
    assert dataclasses.replace(best, layout=e.layout, execution=e.execution) == e


def test_a_kept_program_of_maxtext_is_priced_beside_both_plans(tmp_path, monkeypatch):
    """Nothing is compiled: the step is the program's cycles, memory is the compiler's."""
    product = "%product (a: bf16[8,16], b: bf16[16,32]) -> bf16[8,32] {\n  %a = bf16[8,16]{1,0} parameter(0)\n"
    product += "  %b = bf16[16,32]{1,0} parameter(1)\n"
    product += "  ROOT %c = bf16[8,32]{1,0} convolution(%a, %b), window={}, dim_labels=bf_io->bf\n}\n"
    operands = "%u = bf16[8,16]{1,0} parameter(0)\n  %v = bf16[16,32]{1,0} parameter(1)\n"
    step = f"ROOT %f = bf16[8,32]{{1,0}} fusion(%u, %v), kind=kOutput, calls=%product{cycles(7_000_000)}\n"
    entry = f"ENTRY %main (u: bf16[8,16], v: bf16[16,32]) -> bf16[8,32] {{\n  {operands}  {step}}}\n"
    (tmp_path / "v5p_128b.overlapped.hlo.txt").write_text(f"HloModule test\n\n{product}\n{entry}")
    places = list(itertools.product(range(4), range(4), range(8)))
    described = {"mesh": {"fsdp": 128}, "places": places, "peak": 3 * GIB, "host": 0}
    (tmp_path / "v5p_128b.overlapped.hlo.json").write_text(json.dumps(described))
    monkeypatch.setattr(maxtext_plan, "BEST", {"v5p_128b": maxtext_plan.Best("fully_sharded", (128, 1), "dots")})
    monkeypatch.setattr(maxtext_plan, "best_report", lambda name: PLANNED | {"rows": []})
    monkeypatch.setattr(calibration, "stored", lambda: [{"name": "v5p_128b", "modelled_step_s": 0.002}])
    row = maxtext_plan.price_recipe("v5p_128b", tmp_path, Path("no interpreter"))
    assert (row["recipe"], row["topology"], row["our_step_s"]) == ("v5p_128b", "v5p:4x4x8", 0.002)
    assert row["maxtext"]["step_s"] == pytest.approx(7e6 / 1.75e9)
    assert row["maxtext"]["parts"] == {"matrix": row["maxtext"]["step_s"], "unpriced": 0}
    assert (row["maxtext"]["hbm_gib_per_chip"], row["maxtext"]["hlo_flops"]) == (3, 2 * 8 * 16 * 32)
    assert row["best"] == PLANNED and row["maxtext_as_best"] == row["maxtext"]


PLANNED = {
    "layout": "fully_sharded",
    "mesh": {"data": 128, "model": 1},
    "remat": "dots",
    "options": "scoped_vmem",
    "modelled_step_s": 4.0,
    "modelled_mfu": 0.6,
    "modelled_hfu": 0.7,
    "parts": {"unpriced": 0.1},
    "hbm_gib_per_chip": 50.25,
    "hbm_limit_gib": 95.75,
    "exposed_communication_share": 0.1,
    "problems": ["too good"],
}


def test_both_plans_stand_beside_maxtexts_step():
    """Ratios are MaxText's step over ours; what is unknown is a dash, and doubts come after the table."""
    maxtext = {"step_s": 6.0, "hbm_gib_per_chip": 62.58, "parts": {"unpriced": 0.15}, "problems": ["2.5 % has no estimate"]}
    row = {"recipe": "v5p_128b", "topology": "v5p:4x4x8", "options": "overlapped", "maxtext": maxtext, "our_step_s": 5.0}
    known = row | {"best": PLANNED, "maxtext_as_best": maxtext | {"step_s": 5.0}}
    unknown = row | {"our_step_s": None, "best": None, "maxtext_as_best": None}
    head, first, second, *doubts = maxtext_plan.table([known, unknown | {"maxtext": maxtext | {"problems": []}}])
    assert head.split()[:2] == ["recipe", "slice"]
    theirs, same = "v5p_128b v5p:4x4x8 6.00 62.6 2.5%", "5.00 1.20"
    assert first.split() == f"{theirs} {same} fully_sharded 128x1 dots scoped_vmem 4.00 50.2 2.5% 1.50 5.00 1.25".split()
    assert second.split() == [*theirs.split(), *["-"] * 9]
    assert doubts == ["v5p_128b, MaxText: 2.5 % has no estimate", "v5p_128b, best plan: too good"]


def test_a_best_plan_is_compiled_once_and_must_fit(tmp_path, monkeypatch):
    """Its report is kept; one that does not fit is an error, not a row."""
    compiled = []

    def plan(e, pod, options):
        compiled.append((e.layout.name, dict(e.layout.mesh), e.execution.remat, e.execution.loss_chunks, str(pod), options))
        if e.execution.remat == "none":
            raise DoesNotFit(e.name, str(pod), 120.0, 95.74)
        return {"fits": True, "modelled_step_s": 4.0}, "the program"

    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    monkeypatch.setattr(report, "plan", plan)
    best = maxtext_plan.Best("fully_sharded", (128, 1), "dots", loss_chunks=2, options="scoped_vmem")
    monkeypatch.setattr(maxtext_plan, "BEST", {"v5p_128b": best})
    assert [maxtext_plan.best_report("v5p_128b")["modelled_step_s"] for _ in range(2)] == [4.0, 4.0]
    assert compiled == [("fully_sharded", {"data": 128, "model": 1}, "dots", 2, "v5p:4x4x8", "scoped_vmem")]
    monkeypatch.setattr(maxtext_plan, "BEST", {"v5p_128b": dataclasses.replace(best, remat="none")})
    with pytest.raises(PodError, match=r"^the best plan of v5p_128b: .* 24\.26 too much$"):
        maxtext_plan.best_report("v5p_128b")
