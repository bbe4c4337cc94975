"""Slices, their torus, and plans made by the real TPU compiler where it is installed."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from configs import registry
from configs.pods import PODS
from models.errors import UserError
from models.sharding import torus
from models.sharding.layout import LayoutError
from scripts import plan as scripts_plan
from tests.helpers.libtpu import NEEDED
from trainers.pods import calibration, libtpu, report, topology
from trainers.pods.points import POINTS
from trainers.runtime.chips import CHIPS, PodError, parse_slice, usual_slice

MESH = (("data", 256), ("model", 8))


def plan(*args: str) -> subprocess.CompletedProcess[str]:
    """`scripts.plan`, as a user runs it."""
    env = os.environ | {"XLA_FLAGS": ""}
    command = [sys.executable, "-m", "scripts.plan", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_the_last_axis_gets_a_ring_of_its_own():
    """On 8 x 16 x 16 chips a mesh of 256 x 8 lies along y and z, and along x, without sharing a torus axis."""
    result = torus.assignment(MESH, (8, 16, 16))
    assert {name: torus.as_text(parts, (8, 16, 16)) for name, parts in result.items()} == {"data": "yz", "model": "x"}


def test_neighbours_in_the_mesh_are_neighbours_on_the_torus():
    """Devices that differ in the model axis alone have the same y and z, and x from 0 to 7."""
    dims = (8, 16, 16)
    order = torus.positions(MESH, dims, torus.assignment(MESH, dims))
    assert sorted(order.flat) == list(range(2048))
    x, y, z = np.unravel_index(order, dims)
    assert (y == y[:, :1]).all() and (z == z[:, :1]).all() and (x == np.arange(8)).all()


def test_a_shared_torus_axis_gives_the_later_mesh_axis_neighbouring_chips():
    """With 16 chips along y, "y4" twice: stages are 4 apart, the pieces of the data axis next to each other."""
    mesh, dims = (("stage", 4), ("data", 4)), (1, 16, 1)
    result = torus.assignment(mesh, dims, (("stage", "y4"), ("data", "y4")))
    assert torus.positions(mesh, dims, result).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_devices_of_a_chip_are_one_more_axis_of_a_mesh():
    """On tpu7x:2x2x1 eight devices lie in four pairs; the last mesh axis takes the pairs, and "c" names them."""
    pod = parse_slice("tpu7x:2x2x1")
    assert (pod.chips, pod.devices, pod.places) == (4, 8, (2, 2, 1, 2))
    places = list(np.ndindex(pod.places))
    devices = [types.SimpleNamespace(platform="tpu", coords=(*chip,), core_on_chip=c) for *chip, c in places]
    assert torus.sides(devices) == pod.places
    assert torus.sides(devices[1:]) is None
    mesh = (("data", 4), ("model", 2))
    assigned = torus.assignment(mesh, pod.places)
    assert {name: torus.as_text(parts, pod.places) for name, parts in assigned.items()} == {"data": "xy", "model": "c"}
    order = torus.positions(mesh, pod.places, assigned)
    assert all(places[a][:3] == places[b][:3] for a, b in order)
    assert torus.assignment(mesh, pod.places, (("data", "yc"), ("model", "x"))) == {
        "data": (("y", 2), ("c", 2)),
        "model": (("x", 2),),
    }
    # Elsewhere a chip is a device, and there is no such axis.
    assert torus.sides(devices[::2]) == parse_slice("v5p:2x2x1").places == (2, 2, 1)


@pytest.mark.parametrize(
    "pairs, message",
    [
        ((("data", "yz"), ("model", "w")), "torus model='w'"),
        ((("data", "yz"), ("model", "x4")), "has 4 places, not 8"),
        ((("data", "y16z16"), ("modl", "x")), "torus modl='x'"),
    ],
)
def test_a_wrong_assignment_is_one_line(pairs, message):
    """It names the mesh axis and what was written."""
    with pytest.raises(LayoutError, match=message) as error:
        torus.assignment(MESH, (8, 16, 16), pairs)
    assert "\n" not in str(error.value)


def test_slices_are_named_and_checked():
    """A name is read back as it was written; wrong ones are refused with the form, or the nearest generation."""
    assert str(parse_slice("v4:8x16x16")) == "v4:8x16x16" and parse_slice("v4:8x16x16").wrap == (True, True, True)
    assert parse_slice("v4:2x2x1").wrap == (False, False, False)
    assert parse_slice("v5e:16x16").wrap == (True, True)
    two = parse_slice("2xv6e:16x16")
    assert (str(two), two.name, two.chips, two.slices, two.wrap) == ("2xv6e:16x16", "v6e:16x16", 512, 2, (True, True))
    for text, message in (("v4:8x16", "3 dimensions, as v4:4x4x4"), ("v5:4x4", "did you mean 'v5"), ("v6e:4x0", "2 dimensions")):
        with pytest.raises(PodError, match=message):
            parse_slice(text)
    with pytest.raises(PodError, match="no such set for v4"):
        CHIPS["v4"].option_set("overlaped")


def test_the_usual_slice_is_the_nearest_to_a_cube():
    """2048 chips are 8 x 16 x 16, 192 are 4 x 4 x 12, 256 of v5e are 16 x 16."""
    assert [usual_slice(CHIPS["v4"], n).dims for n in (4, 64, 192, 2048)] == [(1, 2, 2), (4, 4, 4), (4, 4, 12), (8, 16, 16)]
    assert usual_slice(CHIPS["v5e"], 256).dims == (16, 16)
    assert usual_slice(CHIPS["tpu7x"], 128).dims == (4, 4, 4)  # two devices a chip
    assert str(usual_slice(CHIPS["v5e"], 512, slices=2)) == "2xv5e:16x16"
    with pytest.raises(PodError, match="no tpu7x slice of 7 devices"):
        usual_slice(CHIPS["tpu7x"], 7)
    with pytest.raises(PodError, match="no v4 slice of 66 devices"):
        usual_slice(CHIPS["v4"], 66)


@pytest.mark.parametrize("name", PODS)
def test_every_pod_experiment_lies_on_its_slice(name):
    """The mesh of its layout covers the torus of its slice exactly."""
    e, pod = registry.load(name), parse_slice(PODS[name].slice)
    assert e.layout.devices == pod.devices
    torus.assignment(e.layout.mesh, pod.places, e.layout.torus)
    pod.chip.option_set(PODS[name].options)


def test_a_plan_says_where_8_bits_are_no_faster():
    """In a line that names what the chip has instead, if anything."""
    assert report._note("fp8", CHIPS["tpu7x"]) == report._note("int8", CHIPS["v5e"]) == report._note("none", CHIPS["v4"]) == ""
    assert "'fp8': v5p has no hardware for it" in (line := report._note("fp8", CHIPS["v5p"])) and "faster is 'int8'" in line
    assert "no 8 bits are faster" in report._note("int8", CHIPS["v4"])


def test_without_the_compiler_a_line_says_how_to_get_it(monkeypatch):
    """`scripts.plan` refuses before it imports JAX."""
    monkeypatch.setattr(libtpu, "installed", lambda: False)
    with pytest.raises(PodError, match="run `make setup DEVICE=plan`"):
        libtpu.prepare()


def test_all_plans_go_on_after_one_that_does_not_fit(monkeypatch, capsys, tmp_path):
    """`scripts.plan --all` prints the rows of all others, names at the end what has none, and compiles nothing twice."""
    names = list(PODS)[:3]
    monkeypatch.setattr(scripts_plan, "PODS", {name: PODS[name] for name in names})
    compiled = []

    def plan(e, pod, options, *, kernel_efficiency):
        compiled.append(e.name)
        if e.name == names[1]:
            raise topology.DoesNotFit(e.name, str(pod), 40.0, 30.75)
        return {"experiment": e.name, "fits": True, "problems": []}, ""

    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    monkeypatch.setattr(report, "plan", plan)
    monkeypatch.setattr(libtpu, "prepare", lambda: None)
    monkeypatch.setattr(report, "table", lambda rows: [row["experiment"] for row in rows])
    monkeypatch.setattr(sys, "argv", ["plan", "--all"])
    for _ in range(2):
        with pytest.raises(PodError, match=f"1 of 3 experiments have no plan: {names[1]}"):
            scripts_plan.main()
        printed = capsys.readouterr()
        assert printed.out.split() == [names[0], names[2]] and f"error: {names[1]} does not fit" in printed.err
    assert compiled == names
    monkeypatch.setattr(sys, "argv", ["plan", "--all", "--kernel-efficiency", "0.4"])
    with pytest.raises(PodError):
        scripts_plan.main()
    assert compiled == names * 2


def test_calibration_goes_on_after_a_point_that_does_not_fit(monkeypatch, capsys, tmp_path):
    """Its line says why, and the others are written."""
    names = ["pax_16b", "pax_32b", "v5e_16b"]
    monkeypatch.setattr(calibration, "FILE", tmp_path / "calibration.json")
    figures = {"modelled_mfu": 0.5, "modelled_mfu_all_slots": None, "modelled_step_s": 1.0, "versions": {}, "problems": []}

    def plan(e, pod, options, *, kernel_efficiency):
        if e == POINTS["pax_32b"].experiment():
            raise topology.RefusedError("JAX cannot read it")
        return figures, ""

    monkeypatch.setattr(report, "plan", plan)
    monkeypatch.setattr(libtpu, "prepare", lambda: None)
    monkeypatch.setattr(calibration, "table", lambda rows: [row["name"] for row in rows])
    monkeypatch.setattr(sys, "argv", ["plan", "--calibrate", *names])
    with pytest.raises(PodError, match="1 points have no plan: pax_32b"):
        scripts_plan.main()
    printed = capsys.readouterr()
    assert printed.out.split() == ["pax_16b", "v5e_16b"] and "error: pax_32b: JAX cannot read it" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt.maxtext_22b", "--kernel-efficiency", "0"], "--kernel-efficiency 0: must be above 0 and at most 1"),
        (["gpt.maxtext_22b", "--page", "."], "no file, as plan.html"),
        (["--all", "--data.batch-size", "8"], "--data.batch-size: --all and --calibrate have experiments"),
        (["--calibrate", "pax_16b", "--topology", "v4:4x4x4"], "--topology v4:4x4x4: --all and"),
    ],
)
def test_options_that_would_be_ignored_are_refused(monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["plan", *arguments])
    with pytest.raises(UserError, match=message):
        scripts_plan.main()


@pytest.mark.integration
@NEEDED
@pytest.mark.parametrize(
    "slice, layout",
    [
        pytest.param("v4:4x4x4", "two_d:16x4", marks=pytest.mark.nightly),
        *(pytest.param(slice, "fully_sharded:2x2", marks=pytest.mark.nightly) for slice in ("v4:2x2x1", "v5p:2x2x1", "v5e:2x2")),
        pytest.param("v6e:2x2", "fully_sharded:2x2", marks=pytest.mark.slow),
        pytest.param("tpu7x:2x2x1", "fully_sharded:4x2", marks=pytest.mark.slow),
    ],
)
def test_a_tiny_plan(slice, layout, tmp_path):
    """A tiny decoder compiled for TPUs: it fits, its parts add up to the step, collectives have axes, a page is written."""
    sizes = ["--data.batch_size=64", "--eval.batch_size=64", "--model.model_dim=256", "--model.feed_forward.hidden_dim=1024"]
    page = tmp_path / "plan.html"
    done = plan(
        "gpt.gspmd_64b",
        "--tiny",
        "--topology",
        slice,
        "--layout",
        layout,
        *sizes,
        "--json",
        "--page",
        str(page),
        "--hlo",
        str(tmp_path),
    )
    result = json.loads(done.stdout)
    assert result["fits"] and result["topology"] == slice and result["versions"]["libtpu"]
    assert sum(result["parts"].values()) == pytest.approx(result["modelled_step_s"], rel=1e-6)
    assert all(row["axes"] is None or set(row["axes"]) <= {"data", "model"} for row in result["collectives"])
    assert json.loads(page.with_suffix(".trace.json").read_text())["traceEvents"]
    assert "modelled" in page.read_text() and "ENTRY" in next(tmp_path.glob("*.hlo.txt")).read_text()
    assert done.returncode == (0 if result["checks_passed"] else 1)


@pytest.mark.integration
@pytest.mark.slow
@NEEDED
def test_the_compilers_cycles_know_which_8_bits_a_chip_has():
    """Floats of 8 bits take half of bfloat16's time on tpu7x, and all of it on v5p, which has none in hardware."""

    def gain(generation: str) -> float:
        command = [sys.executable, "-m", "scripts.lab.products", generation, "--sizes", "8192", "--dtypes"]
        command += ["bfloat16,float8_e4m3fn", "--json"]
        env = os.environ | {"XLA_FLAGS": ""}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        plain, floats = (row["TFLOP/s"] for row in json.loads(done.stdout))
        assert plain < CHIPS[generation].peak / 1e12
        return floats / plain

    assert 1.9 < gain("tpu7x") < 2.3
    assert gain("v5p") < 1.05


def test_what_does_not_fit_is_refused_with_how_much():
    """Both ways in which the compiler says it are read: how much is needed, and the limit; the line says what is too much."""
    temporaries = "total memory required for HLO temporaries (32.86G) exceeds available HBM (30.75G). HLO module: jit_step."
    assert topology.parse_out_of_memory(temporaries) == (32.86, 30.75)
    exceeded = "Ran out of memory. Used 35.20G of 30.75G hbm. Exceeded by 4.45G."
    assert topology.parse_out_of_memory(exceeded) == (35.2, 30.75)
    assert topology.parse_out_of_memory(exceeded.replace("35.20G", "1.5T")) == (1536, 30.75)
    assert topology.parse_out_of_memory("INVALID_ARGUMENT: no such option") is None
    line = str(topology.DoesNotFit("gpt.big", "v4:2x2x1", 32.86, 30.75))
    assert line == "gpt.big does not fit v4:2x2x1: 32.86 of 30.75 GiB a chip, 2.11 too much"
