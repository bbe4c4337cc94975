"""The search over plans for a pod, its estimates, and its memory of what was compiled. Nothing is compiled here."""

import dataclasses
import itertools
import math

import pytest

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import Constant, Sgd
from models.families import family_of
from models.sharding import torus
from models.sharding.layout import Layout, LayoutError
from models.sharding.layouts import data_parallel, fully_sharded, two_d_sequence
from trainers.hlo.activations import activations, program_flops
from trainers.hlo.formatting import seconds as formatted
from trainers.hlo.model_flops import model_flops
from trainers.hlo.parsing import HloError
from trainers.hlo.tables import optimizer_bytes
from trainers.plan import make_plan
from trainers.pods import calibration
from trainers.pods import search as module
from trainers.pods.bound import Bound, Bytes, Links, Work, bound
from trainers.pods.layout_candidates import Candidate, candidates, describe, distance
from trainers.pods.search import Result, nearest, nearest_that_fit, search, sources
from trainers.pods.topology import RefusedError
from trainers.runtime.chips import GIB, PodError, Slice, parse_slice

POD, FOUR = parse_slice("v4:8x16x16"), parse_slice("v4:2x2x1")


def tiny(name: str, mesh: tuple[int, ...] | None = None) -> Experiment:
    """With an optimizer that is quick to plan for."""
    return dataclasses.replace(registry.tiny(registry.load(name), mesh), optimizer=Sgd(schedule=Constant(value=1.0)))


def with_remat(e: Experiment, remat: str) -> Experiment:
    return dataclasses.replace(e, execution=dataclasses.replace(e.execution, remat=remat))


@pytest.fixture(scope="module")
def encoder() -> Experiment:
    return with_remat(registry.load("bert.mlperf_480b"), "full")


@pytest.fixture
def small() -> Experiment:
    """A decoder of four layers on four chips."""
    return with_remat(tiny("gpt.maxtext_22b", (4, 1)), "full")


class DoesNotFit(PodError):
    needed = 33.0


class Compiler:
    """Counts what it is asked for; steps take what `seconds` says, and what it answers with None does not fit."""

    def __init__(self, seconds=lambda c: 1.0):
        self.seconds, self.asked = seconds, []

    def __call__(self, c: Candidate) -> dict:
        self.asked.append(c.text)
        if (step := self.seconds(c)) is None:
            raise DoesNotFit("does not fit: 33.0 GiB")
        return {"fits": True, "modelled_step_s": step, "hbm_gib_per_chip": 1.0, "modelled_mfu": 0.5, "problems": []}


def limited(pod: Slice, memory: float) -> Slice:
    """The slice with chips of so many bytes."""
    return dataclasses.replace(pod, chip=dataclasses.replace(pod.chip, memory=memory))


# --- candidates ---


@pytest.mark.parametrize(
    "name", ["gpt.maxtext_22b", "bert.mlperf_480b", pytest.param("gshard_m4.moe_128e_12l", marks=pytest.mark.slow)]
)
def test_candidates_are_valid_and_no_two_are_equal(name: str):
    """Each is a plan of all the slice's chips that lies on its torus; its text tells it from all others."""
    e = tiny(name)
    result = candidates(e, FOUR)
    for layout in {c.experiment.layout for c in result}:
        make_plan(dataclasses.replace(e, layout=layout), abstract=True)
        torus.assignment(layout.mesh, FOUR.dims, layout.torus)
    assert {c.experiment.layout.devices for c in result} == {4}
    assert len({c.text for c in result}) == len({c.experiment for c in result}) == len(result) > 20


def test_own_plan_comes_first_and_its_remat_is_kept(small):
    result = candidates(with_remat(small, "context"), FOUR)
    assert result[0].experiment == with_remat(small, "context")
    assert result[0].text == "fully_sharded 4x1 data=xy remat=context"


def test_policies_name_only_what_the_model_has(small):
    remats = {c.experiment.execution.remat for c in candidates(small, FOUR)}
    assert {"full", "none", "attention_in+attention_out"} <= remats
    assert not any("gate" in remat or "dispatched" in remat for remat in remats)


def test_what_an_experiment_adds_to_its_layout_stays():
    """The encoder's vocabulary is whole in every layout, as in its own."""
    result = {c.experiment.layout for c in candidates(tiny("bert.mlperf_480b", (2, 2)), FOUR)}
    assert len(result) > 8 and all(not layout.resolve("embedding").get("vocab") for layout in result)


def test_sizes_take_up_the_threes_of_a_side():
    e = tiny("gpt.maxtext_22b")
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, model_dim=48), data=dataclasses.replace(e.data, batch_size=48))
    sizes = {size for c in candidates(e, parse_slice("v4:1x2x3")) for _, size in c.experiment.layout.mesh}
    assert sizes == {1, 2, 3, 6}


def test_candidates_of_several_slices_are_those_of_one(small):
    """Each slice is cut as one alone would be, and has as many rows of a batch twice as large; sums of gradients take longer."""
    two = dataclasses.replace(small, data=dataclasses.replace(small.data, batch_size=2 * small.data.batch_size))
    pair = dataclasses.replace(FOUR, slices=2)
    alone, together = candidates(small, FOUR), candidates(two, pair)
    assert {f"2x{c.experiment.layout.name}" for c in alone} == {c.experiment.layout.name for c in together}
    one, both = (
        next(c.experiment for c in plans if c.experiment.layout.name.endswith("fully_sharded")) for plans in (alone, together)
    )
    assert both.layout.mesh == (("slice", 2), *one.layout.mesh)
    assert bound(both, pair).step_s > bound(one, FOUR).step_s


def test_distance_counts_doublings_and_tells_layouts_apart(encoder):
    """Names say nothing: the encoder's own layout is two_d."""
    other = dataclasses.replace(encoder, layout=dataclasses.replace(encoder.layout, mesh=(("data", 64), ("model", 32))))
    assert distance(encoder, encoder) == (False, 0, False)
    assert distance(encoder, other) == (False, 4, False)
    assert distance(encoder, dataclasses.replace(encoder, layout=two_d_sequence(256, 8)))[0]
    assert describe(other, POD) == "mlperf_480b 64x32 data=xy8 model=y2z remat=full"


def test_vocabulary_that_no_mesh_divides_is_padded_or_stays_whole(small):
    """With 63 ids, two_d on a mesh of 2 x 2 cuts 64, or only the vectors, and is named so."""
    e = dataclasses.replace(small, model=dataclasses.replace(small.model, vocab=63))
    result = {c.experiment.layout.name: c.experiment.layout for c in candidates(e, FOUR)}
    assert "two_d" not in result and not result["two_d_whole_vocabulary"].resolve("embedding")["vocab"]
    assert result["two_d_padded_vocabulary"].pad == ("act_vocab", "vocab")
    divisible = dataclasses.replace(result["two_d_padded_vocabulary"], pad=())
    assert state_bytes(e, result["two_d_padded_vocabulary"]) == state_bytes(small, divisible)  # those of 64 ids


def state_bytes(e: Experiment, layout: Layout) -> int:
    """Bytes of parameters and optimizer state on a device."""
    p = make_plan(dataclasses.replace(e, layout=layout), abstract=True)
    return sum(info.bytes_per_device for info in p.parameters) + optimizer_bytes(p)


def test_layers_inputs_wait_on_the_host_where_layers_are_computed_again(small):
    """A policy that keeps what has no name has nothing to put there; the text of a plan says what it puts there."""
    plans = {(c.experiment.execution.remat, c.experiment.execution.offload): c.text for c in candidates(small, FOUR)}
    assert plans["full", "layer_in+optimizer"].endswith(" remat=full offload=layer_in+optimizer")
    assert {offload for remat, offload in plans if remat in ("none", "dots")} == {"none"}
    for _, how in {(c.text, c.experiment.execution) for c in candidates(small, FOUR)}:
        how.check([], family_of(small.model).activations)


# --- the estimate ---


def test_what_waits_on_the_host_is_no_memory_of_the_chip_and_takes_its_link(small):
    """The input of each of four layers, and the optimizer's momentum; as long as products hide the copies they cost nothing."""
    small = dataclasses.replace(small, optimizer=Sgd(schedule=Constant(value=1.0), momentum=0.9))

    def offloading(offload: str) -> Experiment:
        return dataclasses.replace(small, execution=dataclasses.replace(small.execution, offload=offload))

    def slow(pod: Slice, link: float) -> Slice:
        return dataclasses.replace(pod, chip=dataclasses.replace(pod.chip, host_link=link))

    data, layers = small.data, small.model.layers
    inputs = layers * data.batch_size // 4 * data.length * small.model.model_dim * 2
    momentum = sum(info.bytes_per_device for info in make_plan(small, abstract=True).parameters)
    on_device = bound(small, FOUR)
    memory = {offload: bound(offloading(offload), FOUR).memory_bytes for offload in ("layer_in", "optimizer")}
    assert on_device.memory_bytes - memory["layer_in"] == inputs
    assert on_device.memory_bytes - memory["optimizer"] == pytest.approx(momentum, abs=8)  # with a count of steps
    assert bound(offloading("layer_in"), slow(FOUR, 1e15)).step_s == on_device.step_s
    assert bound(offloading("layer_in"), slow(FOUR, 1.0)).step_s == pytest.approx(inputs, rel=1e-3)
    assert bound(offloading("optimizer"), slow(FOUR, 1.0)).step_s == pytest.approx(momentum, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "topology", "gib", "seconds"),
    [
        ("bert.mlperf_480b", "v4:8x16x16", 25.4, 16.67),
        ("gpt.maxtext_22b", "v4:4x4x4", 27.6, 12.15),
        ("gpt.palm_540b", "v4:12x16x16", 17.6, 28.01),
    ],
)
def test_estimates_are_near_what_the_compiler_says(name, topology, gib, seconds):
    """The plans in BENCHMARKS.md: the step's time within a tenth; memory is taken for too large rather than too small, as a
    plan that seems to fit and does not costs a compilation less than one that is never tried."""
    result = bound(registry.load(name), parse_slice(topology))
    assert result.step_s == pytest.approx(seconds, rel=0.1)
    assert 1.0 < result.memory_bytes / GIB / gib < 1.4


def test_what_is_kept_costs_memory_and_saves_flops(encoder):
    policies = ["full", "attention_in+attention_out", "attention_in+attention_out+gate", "none"]
    memory = [bound(with_remat(encoder, remat), POD).memory_bytes for remat in policies]
    flops = [program_flops(with_remat(encoder, remat)) for remat in policies]
    assert memory == sorted(memory) and len(set(memory)) == 4
    assert flops == sorted(flops, reverse=True) and len(set(flops)) == 4
    assert flops[-1] == model_flops(encoder)


def test_activations_are_those_of_the_layers(encoder):
    """There are 64 layers; queries have 256 heads, keys and values one, and a row's attention is 512 x 512."""
    result = {(a.name, a.shape[1:]): a for a in activations(encoder)}
    assert {a.times for a in result.values()} == {64}
    assert result["attention_in", (512, 256, 128)].axes != result["attention_in", (512, 1, 128)].axes
    assert {("carry", (512, 16_384)), ("gate", (512, 131_072)), ("scores", (256, 512, 512))} <= result.keys()


def test_a_mesh_axis_on_part_of_a_ring_is_slower(encoder):
    """Eight chips of a ring of 16 send one way only."""
    layout = dataclasses.replace(encoder.layout, torus=(("data", "xyz2"), ("model", "z8")))
    assert bound(encoder, POD).step_s < bound(dataclasses.replace(encoder, layout=layout), POD).step_s


@pytest.mark.slow
def test_groups_that_lie_between_each_other_share_their_links(small):
    """On v5e:4x16 four devices of a mesh axis are four chips apart in a line of 16, of which each link carries data of four
    groups over 13 / 4 of the way; four beside each other have a line of their own."""
    pod = parse_slice("v5e:4x16")
    for own, other, spacing in (("y4", "xy4", 13 / 4), ("x", "y", 1)):
        layout = dataclasses.replace(small.layout, mesh=(("data", 4), ("model", 16)), torus=(("data", own), ("model", other)))
        links = Links(dataclasses.replace(small, layout=layout), pod)
        assert links.gather(100.0, ("data",)) == pytest.approx(75 * spacing / pod.chip.link)


def test_pipeline_keeps_less_under_1f1b_and_idles_less_with_chunks(small):
    result = {c.experiment.layout.name: bound(c.experiment, FOUR) for c in candidates(with_remat(small, "none"), FOUR)[::-1]}
    assert result["pipeline_1f1b"].memory_bytes < result["gpipe"].memory_bytes
    assert result["pipeline_interleaved"].step_s < result["pipeline_1f1b"].step_s


def test_layout_that_cuts_an_activation_unevenly_has_no_estimate(encoder):
    """Its weights divide by 16 pieces, rows of 504 positions don't."""
    e = dataclasses.replace(encoder, data=dataclasses.replace(encoder.data, length=504))
    layout = dataclasses.replace(two_d_sequence(128, 16), components=encoder.layout.components)
    with pytest.raises(LayoutError, match=r"activation 'carry'.*'res_length' of size 504"):
        bound(dataclasses.replace(e, layout=layout), POD)


# --- the search ---


def estimate(result: Result) -> Bound:
    """The estimate by which a candidate was chosen."""
    return bound(result.candidate.experiment, FOUR)


@pytest.mark.integration
def test_search_ranks_by_the_compiled_time_and_takes_few_of_a_kind(small, tmp_path):
    """Six are compiled, at most two of one layout: the experiment's own, then others as they are estimated; the fastest of them
    comes first, whatever was estimated."""
    compiler, lines = Compiler(lambda c: float(len(c.text))), []
    results = search(small, FOUR, compiler, folder=tmp_path, say=lines.append)
    assert [r.step_s for r in results] == sorted(map(float, map(len, compiler.asked)))
    assert len(set(compiler.asked)) == 6
    names = [text.split()[0] for text in compiler.asked]
    assert max(map(names.count, names)) <= 2
    estimates = [estimate(r).step_s for r in sorted(results, key=lambda r: compiler.asked.index(r.candidate.text))]
    assert compiler.asked[0] == describe(small, FOUR)
    assert estimates[1:] == sorted(estimates[1:])
    assert lines[1] == f"1/6 {compiler.asked[0]}: {formatted(len(compiler.asked[0]))} modelled, fits"


def test_search_finds_nothing_slower_than_the_experiment_itself(small, tmp_path):
    """Its own plan is compiled even if it is estimated last and taken not to fit."""
    worst = max(candidates(small, FOUR), key=lambda c: bound(c.experiment, FOUR).step_s).experiment
    memory = bound(worst, FOUR).memory_bytes / 2
    compiler = Compiler(lambda c: 1.0 if c.experiment == worst else 2.0)
    results = search(worst, limited(FOUR, memory), compiler, folder=tmp_path, best=2, say=lambda line: None)
    assert results[0].candidate.experiment == worst and len(results) == 2


def test_logits_of_a_part_of_the_row_need_a_part_of_the_memory(small):
    """With a vocabulary that outweighs all else, three quarters of the logits' memory are saved by four parts."""
    e = dataclasses.replace(small, model=dataclasses.replace(small.model, vocab=65_536))
    e = dataclasses.replace(e, execution=dataclasses.replace(e.execution, loss_chunks=1))
    four = dataclasses.replace(e, execution=dataclasses.replace(e.execution, loss_chunks=4))
    logits = 6 * e.data.batch_size * e.data.length * e.model.vocab / 4  # bytes on each of four chips
    assert bound(e, FOUR).memory_bytes - bound(four, FOUR).memory_bytes == pytest.approx(0.75 * logits)


def test_search_compiles_nothing_that_cannot_fit(small, tmp_path):
    """Beside the experiment's own plan."""
    everything = sorted(bound(c.experiment, FOUR).memory_bytes for c in candidates(small, FOUR))
    limit = everything[len(everything) // 4]
    results = search(small, limited(FOUR, limit), Compiler(), folder=tmp_path, best=20, say=lambda line: None)
    others = [r for r in results if r.candidate.experiment != small]
    assert others and all(estimate(r).memory_bytes <= 1.1 * limit for r in others)


def test_plans_that_turn_out_not_to_fit_come_last_and_others_take_their_place(small, tmp_path):
    """After a layout failed nothing that needs about as much is tried with it again."""
    compiler = Compiler(lambda c: None if c.text.split()[0] == compiler.asked[0].split()[0] else 2.0)
    results = search(small, FOUR, compiler, folder=tmp_path, best=4, say=lambda line: None)
    failed = [r for r in results if not r.fits]
    assert failed and results[-len(failed) :] == failed and len(results) == 4
    assert all(r.report["hbm_gib_per_chip"] == 33.0 and math.isinf(r.step_s) for r in failed)
    for first, second in itertools.combinations(sorted(failed, key=lambda r: compiler.asked.index(r.candidate.text)), 2):
        if first.candidate.experiment.layout.mesh == second.candidate.experiment.layout.mesh:
            assert estimate(second).memory_bytes <= 0.95 * estimate(first).memory_bytes


def test_second_search_compiles_nothing_and_an_interrupted_one_goes_on(small, tmp_path):
    class Interrupted(Compiler):
        def __call__(self, c: Candidate) -> dict:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().__call__(c)

    first, resumed, again = Interrupted(), Compiler(), Compiler()
    with pytest.raises(KeyboardInterrupt):
        search(small, FOUR, first, folder=tmp_path, best=4, say=lambda line: None)
    result = search(small, FOUR, resumed, folder=tmp_path, best=4, say=lambda line: None)
    assert len(first.asked) == len(resumed.asked) == 2 and not set(first.asked) & set(resumed.asked)
    assert search(small, FOUR, again, folder=tmp_path, best=4, say=lambda line: None) == result
    assert not again.asked and len(list(tmp_path.iterdir())) == 4


def test_what_decides_about_a_report_is_in_its_key(small, tmp_path, monkeypatch):
    """Another slice, other options, an experiment with another seed, a changed source: all are compiled anew."""
    reports = module.Reports(FOUR, "plain", tmp_path)
    keys = [reports.key(small), reports.key(dataclasses.replace(small, train=dataclasses.replace(small.train, seed=1)))]
    keys += [module.Reports(FOUR, "overlapped").key(small), module.Reports(parse_slice("v4:4x1x1"), "plain").key(small)]
    assert reports.key(small) == keys[0]
    monkeypatch.setattr(module, "sources", lambda: "changed")
    keys.append(reports.key(small))
    monkeypatch.setattr(module, "versions", lambda: {"jax": "next"})
    assert len({*keys, reports.key(small)}) == 6
    assert len(sources()) == 64


def test_a_plan_whose_price_failed_a_check_has_no_step_time(small, tmp_path):
    """It comes last, with the reason, and is no plan that fits."""
    compiler = Compiler()

    def evaluate(c: Candidate) -> dict:
        report = compiler(c)
        return report | {"problems": ["a loop was counted once"]} if len(compiler.asked) == 1 else report

    results = search(small, FOUR, evaluate, folder=tmp_path, best=3, say=lambda line: None)
    assert [result.step_s for result in results] == [1.0, 1.0, math.inf]
    assert str(results[-1]).endswith("no step time, a loop was counted once")
    compiler.asked.clear()
    near = nearest_that_fit(small, FOUR, evaluate, n=2, folder=tmp_path / "near", say=lambda line: None)
    assert len(near) == 2 and all(not result.report["problems"] for result in near)


@pytest.mark.parametrize("error", [RefusedError("the compiler refuses it"), HloError("an unread loop")])
def test_a_plan_that_cannot_be_compiled_or_read_does_not_end_the_search(small, tmp_path, error):
    asked = []

    def evaluate(c: Candidate) -> dict:
        asked.append(c)
        if len(asked) == 1:
            raise error
        return Compiler()(c)

    results = search(small, FOUR, evaluate, folder=tmp_path, best=3, say=lambda line: None)
    assert len(results) == 3 and str(error) in str(results[-1]) and results[0].step_s == 1.0


def test_what_is_expected_is_by_the_calibration_of_today(small, tmp_path, monkeypatch):
    """A report that was kept has the modelled figures of then."""
    modelled = {"fits": True, "topology": "v4:2x2x1", "modelled_mfu": 0.5, "modelled_mfu_all_slots": None, "expected_mfu": 0.1}
    reports, candidate = module.Reports(FOUR, "", tmp_path), Candidate(small, "own")
    for factor in (0.8, 0.9):
        monkeypatch.setattr(calibration, "error", lambda kind, factor=factor: calibration.Error(factor, 7.0, 3))
        kept = reports(lambda c: modelled, candidate)
        assert kept == modelled | {"expected_mfu": 0.5 * factor, "error_pct": 7.0, "calibrated_on": 3}


def test_an_error_that_says_nothing_about_the_plan_ends_the_search(small, tmp_path):
    def no_compiler(c: Candidate) -> dict:
        raise PodError("the TPU compiler is not installed")

    with pytest.raises(PodError, match="not installed"):
        search(small, FOUR, no_compiler, folder=tmp_path, say=lambda line: None)
    assert not list(tmp_path.iterdir())


# --- the nearest that fit ---


def test_nearest_changes_remat_first_then_sizes_then_the_layout(encoder):
    def plan(text: str, layout=encoder.layout, remat="full", mesh=(256, 8)) -> tuple[Candidate, Bound]:
        layout = dataclasses.replace(layout, mesh=tuple(zip(("data", "model"), mesh, strict=True)))
        return Candidate(with_remat(dataclasses.replace(encoder, layout=layout), remat), text), Bound(GIB, 1.0)

    pool = [
        plan("layout", two_d_sequence(256, 8)),
        plan("sizes and remat", mesh=(128, 16), remat="dots"),
        plan("far sizes", mesh=(32, 64)),
        plan("sizes", mesh=(512, 4)),
        plan("remat", remat="dots"),
        plan("place", dataclasses.replace(encoder.layout, torus=(("data", "xyz2"), ("model", "z8"))), remat="dots"),
    ]
    result = [c.text for c, _ in nearest(encoder, pool, GIB)]
    assert result == ["remat", "sizes", "sizes and remat", "far sizes", "layout"]
    assert nearest(encoder, pool, GIB - 1) == []


def test_nearest_that_fit_needs_less_and_is_compiled(small, tmp_path):
    """Without recomputation the experiment did not fit; what does keeps less, and the layout is the same."""
    e = with_remat(small, "none")
    compiler = Compiler(lambda c: None if c.experiment.execution.remat == "dots" else 1.0)
    results = nearest_that_fit(e, FOUR, compiler, folder=tmp_path, say=lambda line: None)
    assert len(results) == 3 and all(r.fits for r in results)
    assert all(r.candidate.experiment.layout == e.layout for r in results)
    assert all(estimate(r).memory_bytes < bound(e, FOUR).memory_bytes for r in results)


def test_nearest_that_fit_gives_up_after_six(small, tmp_path):
    compiler = Compiler(lambda c: None)
    assert nearest_that_fit(with_remat(small, "none"), FOUR, compiler, folder=tmp_path, say=lambda line: None) == []
    assert 0 < len(compiler.asked) <= 6


def test_communication_is_counted_in_bytes_too():
    """Under data parallelism each weight's gradient is summed once over eight devices; fully sharded it is scattered, and the
    weight gathered forward and backward."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    for layout, passes in ((data_parallel(8, 1), 2), (fully_sharded(8, 1), 3)):
        work = Work(dataclasses.replace(e, layout=layout))
        size = sum(info.size for info in work.plan.parameters if info.is_matrix) * work.itemsize
        assert work.communication(Bytes(layout)) == (pytest.approx(passes * size * 7 / 8), 0)
