"""Slices, their torus, and plans made by the real TPU compiler where it is installed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from configs import registry
from configs.pods import PODS
from models.sharding import torus
from models.sharding.layout import LayoutError
from scripts import plan as scripts_plan
from tests.helpers.libtpu import NEEDED
from trainers.pods import libtpu, report, topology
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


@pytest.mark.parametrize(
    "pairs, message",
    [
        ((("data", "yz"), ("model", "w")), "torus model='w'"),
        ((("data", "yz"), ("model", "x4")), "has 4 chips, not 8"),
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
    assert str(usual_slice(CHIPS["v5e"], 512, slices=2)) == "2xv5e:16x16"
    with pytest.raises(PodError, match="no v4 slice of 66 chips"):
        usual_slice(CHIPS["v4"], 66)


@pytest.mark.parametrize("name", PODS)
def test_every_pod_experiment_lies_on_its_slice(name):
    """The mesh of its layout covers the torus of its slice exactly."""
    e, pod = registry.load(name), parse_slice(PODS[name].slice)
    assert e.layout.devices == pod.chips
    torus.assignment(e.layout.mesh, pod.dims, e.layout.torus)
    pod.chip.option_set(PODS[name].options)


def test_without_the_compiler_a_line_says_how_to_get_it(monkeypatch):
    """`scripts.plan` refuses before it imports JAX."""
    monkeypatch.setattr(libtpu, "installed", lambda: False)
    with pytest.raises(PodError, match="run `make setup DEVICE=plan`"):
        libtpu.prepare()


def test_all_plans_go_on_after_one_that_does_not_fit(monkeypatch, capsys):
    """`scripts.plan --all` prints the rows of all others, and names at the end what has none."""
    names = list(PODS)[:3]
    monkeypatch.setattr(scripts_plan, "PODS", {name: PODS[name] for name in names})

    def planned(args, e, pod):
        if e.name == names[1]:
            raise PodError(f"{e.name} does not fit {pod}")
        return {"experiment": e.name}

    monkeypatch.setattr(scripts_plan, "_planned", planned)
    monkeypatch.setattr(libtpu, "prepare", lambda: None)
    monkeypatch.setattr(report, "table", lambda rows: [row["experiment"] for row in rows])
    monkeypatch.setattr(sys, "argv", ["plan", "--all"])
    with pytest.raises(PodError, match=f"1 of 3 experiments have no plan: {names[1]}"):
        scripts_plan.main()
    printed = capsys.readouterr()
    assert printed.out.split() == [names[0], names[2]] and f"error: {names[1]} does not fit" in printed.err


@pytest.mark.integration
@NEEDED
@pytest.mark.parametrize(
    "slice, layout",
    [
        ("v4:4x4x4", "two_d:16x4"),
        *(
            pytest.param(slice, "fully_sharded:2x2", marks=pytest.mark.slow)
            for slice in ("v4:2x2x1", "v5p:2x2x1", "v5e:2x2", "v6e:2x2")
        ),
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


def test_what_does_not_fit_is_refused_with_how_much():
    """Both ways in which the compiler says it are read: how much is needed, and the limit; the line says what is too much."""
    temporaries = "total memory required for HLO temporaries (32.86G) exceeds available HBM (30.75G). HLO module: jit_step."
    assert topology.parse_out_of_memory(temporaries) == (32.86, 30.75)
    exceeded = "Ran out of memory. Used 35.20G of 30.75G hbm. Exceeded by 4.45G."
    assert topology.parse_out_of_memory(exceeded) == (35.2, 30.75)
    assert topology.parse_out_of_memory("INVALID_ARGUMENT: no such option") is None
    line = str(topology.DoesNotFit("gpt.big", "v4:2x2x1", 32.86, 30.75))
    assert line == "gpt.big does not fit v4:2x2x1: 32.86 of 30.75 GiB a chip, 2.11 too much"
