"""A family and a kind of data that nothing outside this folder knows of pass through every command."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import registry
from configs.experiment import Experiment
from data.kinds import task_of
from data.reading import packing
from data.reading.batches import Batches
from data.reading.examples import open_source, record_of
from models.families import family_of
from models.sharding.layouts import ONE_DEVICE
from scripts import evaluate as evaluate_script
from scripts import layouts as layouts_script
from scripts import prepare_data
from scripts import release as release_script
from scripts import show as show_script
from scripts import throughput as throughput_script
from scripts import train as train_script
from tests import toy
from tests.helpers import libtpu
from tests.helpers.runs import run, shared_steps, with_train
from tests.toy.grids.config import ToyGrids
from tests.toy.grids.task import example
from trainers import step, trainer
from trainers.hlo import equality
from trainers.monitoring import metrics
from trainers.plan import make_plan
from trainers.weights.release import Release

pytestmark = pytest.mark.integration
CACHE = "toy_grids"
SEEDS = {"validation": range(100, 120), "test": range(200, 210)}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The toy is known while this module's tests run; scripts.layouts, which runs in this process, sets double precision."""
    toy.register()
    with shared_steps():
        yield
    toy.unregister()
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with a prepared cache of grids."""
    root = tmp_path_factory.mktemp("data")
    folder, grids = root / "caches" / CACHE, ToyGrids(batch_size=1)
    (folder / "train").mkdir(parents=True)
    rows = [example(np.random.default_rng(seed), grids.height, grids.width, grids.channels) for seed in range(40)]
    packing.write_records(folder / "train" / "all.array_record", (record_of(row, grids.stored()) for row in rows))
    for split, seeds in SEEDS.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"seed": seed}) + "\n" for seed in seeds))
    size = {name: getattr(grids, name) for name in ("height", "width", "channels")}
    manifest = {"cache": CACHE, "kind": "toy_grids", "fingerprint": "a" * 64, "parts": {"all": {"rows": 40}}} | size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return root


@pytest.fixture
def e(data, monkeypatch) -> Experiment:
    """The toy experiment on the prepared grids."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = registry.load("toy.conv")
    return dataclasses.replace(e, data=dataclasses.replace(e.data, cache=CACHE, flip=True))


def laid_out(e: Experiment, name: str, *sizes: int, **train: int) -> Experiment:
    layout = family_of(e.model).layouts[name](*sizes)
    return dataclasses.replace(e, layout=layout, train=dataclasses.replace(e.train, **train))


def losses(workdir: Path) -> list[float]:
    return [line["loss"] for line in metrics.read(workdir) if "loss" in line]


def command(script, monkeypatch, capsys, *arguments: object) -> str:
    """Returns what a command prints."""
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    assert not script.main()
    return capsys.readouterr().out


def test_it_trains_and_resumes_bit_for_bit(e, tmp_path):
    """Three steps and then three more give the losses of six at once; the error falls; units of work are the model's."""
    assert run(e, tmp_path / "whole") == trainer.DONE
    assert run(laid_out(e, "data_parallel", 1, 1, steps=3), tmp_path / "parts") == trainer.DONE
    assert run(e, tmp_path / "parts") == trainer.DONE
    whole = losses(tmp_path / "whole")
    assert whole == losses(tmp_path / "parts") and len(whole) == 6
    line = metrics.read(tmp_path / "whole")[0]
    assert line["grids"] == 16 and line["pixels"] < 16 * 16 * 8 and line["pixels_per_s"] > 0 and "tokens" not in line
    assert line["loss"] == pytest.approx(line["squared_error"] / 3)  # the loss knows the step: its ramp begins at a third


@pytest.mark.parametrize(("name", "sizes"), [("data_parallel", (4, 2)), ("spatial", (2, 4)), ("spatial", (1, 8))])
def test_layouts_are_equal(e, name, sizes):
    """Losses, gradients and parameters under every layout are those of one device to 1e-9, in double precision."""
    with jax.enable_x64(True):
        e = equality.comparable(e)
        want = equality.reference(e, 3)
        have = equality.trial(laid_out(e, name, *sizes), 3)
        assert max(equality.differences(have, want).values()) < 1e-9


def test_a_cut_in_space_exchanges_halos(e):
    """Inputs and activations are cut by rows, and convolutions send the rows at the edges; no grid is gathered."""
    spatial = laid_out(e, "spatial", 1, 8)
    p = make_plan(spatial)
    grid = p.batch_shardings()["grid"]
    assert grid is not None and grid.shard_shape((16, 16, 8, 3)) == (16, 2, 8, 3)
    text = step.compile_step(p).as_text() or ""
    assert "collective-permute" in text and "all-gather" not in text


def test_two_microbatches_are_one_batch(e):
    """Gradients and losses are those of the whole batch, though parts have unequal numbers of seen pixels."""
    with jax.enable_x64(True):
        e = dataclasses.replace(equality.comparable(e), layout=ONE_DEVICE)
        halves = dataclasses.replace(e, train=dataclasses.replace(e.train, microbatches=2))
        one, two = (equality.trial(x, 2, jax.devices()[:1]) for x in (e, halves))
        assert max(equality.differences(two, one).values()) < 1e-9


def test_rows_are_augmented_by_seed_and_index(e):
    """Some rows are flipped, always the same ones, and never at random data that is not asked to be."""
    source, plain = open_source(e.data, e.model), open_source(dataclasses.replace(e.data, flip=False), e.model)
    flipped = [not np.array_equal(source.row(i)["grid"], plain.row(i)["grid"]) for i in range(20)]
    again = open_source(e.data, e.model)
    assert flipped == [not np.array_equal(again.row(i)["grid"], plain.row(i)["grid"]) for i in range(20)]
    assert 4 < sum(flipped) < 16 and source.row(0)["grid"].dtype == np.float32
    random = open_source(dataclasses.replace(e.data, cache="", flip=False), e.model)
    assert random.row(3)["grid"].shape == (16, 8, 3)
    batches = Batches(source, e.data, dict.fromkeys(e.data.features()))
    assert batches(0)["grid"].dtype == np.float32
    batches.close()


def test_it_is_scored_released_and_reopened(e, tmp_path, monkeypatch, capsys):
    """Scores of vectors reach the task; a release holds the weights and tells of the grids; it is scored alike."""
    run(e, tmp_path / "run")
    logged = [line for line in metrics.read(tmp_path / "run") if "eval/skill" in line]
    assert logged[-1]["eval/skill"] > 0.05 and 1 / 8 <= logged[-1]["eval/worst_column"] < 1
    assert logged[-1]["eval/examples"] == len(SEEDS["validation"])
    command(release_script, monkeypatch, capsys, tmp_path / "run", "--to", tmp_path / "release")
    assert Release(tmp_path / "release").experiment == e
    assert "Trained on 40 grids." in (tmp_path / "release" / "README.md").read_text()
    scored = [
        json.loads(command(evaluate_script, monkeypatch, capsys, "--checkpoint", tmp_path / kind, "--json"))["all"]
        for kind in ("run", "release")
    ]
    assert scored[0] == scored[1] and scored[0]["skill"] == pytest.approx(logged[-1]["eval/skill"], rel=1e-5)
    started = with_train(e, finetune={"init_from": str(tmp_path / "release")}, steps=1)
    run(started, tmp_path / "again")
    assert losses(tmp_path / "again")[0] < losses(tmp_path / "run")[0]


def test_commands_take_it(e, monkeypatch, capsys):
    """scripts.show, throughput and layouts know sizes, units and layouts of a model that has no tokens and no stack."""
    shown = json.loads(command(show_script, monkeypatch, capsys, "toy.conv", "--json"))
    assert shown["parameters"] == 9 * 3 * 8 + 8 + 9 * 8 + 1 and set(shown["components"]) == {"first", "second"}
    text = command(show_script, monkeypatch, capsys, "toy.conv", "--layout", "spatial:1x8")
    assert "spatial" in text
    timed = json.loads(command(throughput_script, monkeypatch, capsys, "toy.conv", "--tiny", "--steps", "2", "--json"))
    timed = timed[0] if isinstance(timed, list) else timed
    assert timed["units_per_s"]["grids"] > 0 and timed["units_per_s"]["pixels"] > timed["units_per_s"]["grids"]
    compared = command(layouts_script, monkeypatch, capsys, "toy.conv")
    assert "spatial" in compared and "collective-permute" in compared


@libtpu.NEEDED
def test_it_is_planned_for_a_pod(tmp_path):
    """scripts.plan compiles it for TPUs and reports units, not tokens."""
    program = "from tests import toy; toy.register(); from scripts import plan; plan.main()"
    arguments = ["toy.conv", "--layout", "spatial:1x4", "--topology", "v4:2x2x1", "--json"]
    env = os.environ | {"XLA_FLAGS": ""}  # the TPU compiler refuses options of the CPU's
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["fits"] and report["checks_passed"] and set(report["units_per_s"]) == {"grids", "pixels"}


def test_what_does_not_fit_is_refused(e):
    """Rows that a cut does not divide, and lengths that are not the cache's, are named."""
    with pytest.raises(ValueError, match=r"input 'grid'.*'height' of size 16 is not divisible by the 3 shards"):
        make_plan(laid_out(e, "spatial", 1, 3), jax.devices()[:3])
    with pytest.raises(ValueError, match=r"data\.height=8: cache 'toy_grids' was packed with 16"):
        open_source(dataclasses.replace(e.data, height=8), e.model)
    assert task_of(e.data).augmentation == "flip"


def test_a_cache_is_prepared_and_trained_on(tmp_path, monkeypatch, capsys):
    """scripts.prepare_data makes a cache of a kind that it does not know of from a user's file, once; scripts.train learns from
    it, and scripts.evaluate scores it."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    rng, file = np.random.default_rng(0), tmp_path / "tints.colours"
    colours = np.unique(rng.integers(0, 256, (200, 3)), axis=0)
    file.write_text("".join(f"{r},{g},{b},{('red', 'green', 'blue')[np.argmax((r, g, b))]}\n" for r, g, b in colours))
    for _ in range(2):
        assert prepare_data.main(["tints", "--from", str(file), "--test", "0.2", "--json"]) == 0
    assert "tints: up to date" in capsys.readouterr().err
    cache = tmp_path / "data" / "caches" / "tints"
    manifest = json.loads((cache / "manifest.json").read_text())
    assert manifest["kind"] == "skeleton" and manifest["labels"] == ["blue", "green", "red"]
    held_out = [
        len((tmp_path / "data" / "caches" / "tints" / f"{s}.jsonl").read_text().splitlines()) for s in ("validation", "test")
    ]
    assert manifest["parts"]["all"]["rows"] + sum(held_out) == len(colours) and 30 < held_out[1] < 50
    options = ("--layout", "data_parallel:8x1", "--data.cache", "tints")
    command(train_script, monkeypatch, capsys, "toy.colours", "--workdir", tmp_path / "run", *options)
    scores = command(evaluate_script, monkeypatch, capsys, "--checkpoint", tmp_path / "run", "--json")
    assert json.loads(scores)["all"]["cross_entropy"] < losses(tmp_path / "run")[0]
