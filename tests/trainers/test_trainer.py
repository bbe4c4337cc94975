"""Runs: whatever stops one, starting it again gives the numbers of a run that nothing stopped."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from data import paths
from models.errors import UserError
from models.gpt.layouts import LAYOUTS
from models.parts.nested import changed
from tests.helpers.contexts import training
from tests.helpers.models import varied
from tests.helpers.runs import curve, damage, kept, run, shared_steps, with_train
from trainers import runlog
from trainers.checkpoints import checkpoint
from trainers.monitoring import metrics
from trainers.plan import fresh_state, make_plan
from trainers.weights import init_from, release

pytestmark = pytest.mark.integration

# How many times the run of the kill test is killed; the more, the longer it takes.
KILLS = int(os.environ.get("SHARDZOO_KILLS", "3"))


@pytest.fixture(scope="module", autouse=True)
def equal_steps():
    with shared_steps():
        yield


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    """Six steps in one go, a checkpoint after every second."""
    from configs import registry

    folder = tmp_path_factory.mktemp("whole")
    e = registry.tiny(registry.load("gpt.quickstart"))
    assert run(with_train(e, steps=6, checkpoint={"keep": 10}), folder) == runlog.DONE
    return folder


def test_a_run_logs_what_happened(whole_run):
    """metrics.jsonl has an object per step with loss and speed; run.jsonl has who, what, when, how it ended, and where the time
    went."""
    lines = metrics.read(whole_run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    wanted = {"loss", "cross_entropy", "gradient_norm", "learning_rate", "tokens_per_s", "memory_gib", "skipped"}
    assert wanted <= lines[0].keys()
    start, *spent, stop = (json.loads(line) for line in (whole_run / "run.jsonl").read_text().splitlines())
    noted = {"host", "user", "command", "versions", "git", "experiment", "config", "data", "restored"}
    assert noted <= start.keys()
    assert stop["exit_code"] == 0 and stop["step"] == 6
    assert {"start", "compile"} <= spent[0]["seconds"].keys() and sum(event["steps"] for event in spent) == 6
    assert spent[-1]["wall_s"] == pytest.approx(sum(sum(event["seconds"].values()) for event in spent), abs=0.01)
    assert list((whole_run / "tensorboard").iterdir())


def test_resuming_equals_not_stopping(whole_run, small, tmp_path):
    """Four steps, then the same command for six: every logged number and every weight has the same bits."""
    assert run(with_train(small, steps=4, checkpoint={"keep": 10}), tmp_path) == runlog.DONE
    assert run(with_train(small, steps=6, checkpoint={"keep": 10}), tmp_path) == runlog.DONE
    assert curve(tmp_path) == curve(whole_run)
    a, b = (checkpoint.read_params(f, 6)[2] for f in (tmp_path, whole_run))
    jax.tree.map(assert_array_equal, a, b)


def test_an_optimizer_on_the_host_is_saved_and_comes_back_there(whole_run, small, tmp_path):
    """Its state goes through a checkpoint to the host's memory, and from there to a run that has it on the device; every number
    is that of a run that always had."""
    offloaded = varied(small, offload="optimizer")
    for e, steps in ((offloaded, 2), (offloaded, 4), (small, 6)):
        assert run(with_train(e, steps=steps, checkpoint={"keep": 10}), tmp_path) == runlog.DONE
    assert curve(tmp_path) == curve(whole_run)


@pytest.mark.slow
def test_a_checkpoint_restores_onto_another_mesh(whole_run, small, tmp_path):
    """Weights saved from one device go on under a layout of eight, and the losses stay."""
    shutil.copytree(whole_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/6")
    e = dataclasses.replace(small, layout=LAYOUTS["fully_sharded"](2, 4))
    assert run(with_train(e, steps=6, checkpoint={"keep": 10}), tmp_path / "run") == runlog.DONE
    for got, want in zip(curve(tmp_path / "run"), curve(whole_run), strict=True):
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=2e-5)


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(whole_run, small, tmp_path, capsys):
    """The run goes on from step 4, loses nothing of what it can use, and keeps the damaged folder for inspection."""
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    damage(folder / "checkpoints/6/state")
    assert run(with_train(small, steps=6, checkpoint={"keep": 10}), folder) == runlog.DONE
    said = capsys.readouterr().out
    assert f"checkpoint {folder / 'checkpoints/6'} is damaged" in said and "starting at step 4" in said
    assert (folder / "damaged/6").is_dir()
    assert curve(folder) == curve(whole_run)


def test_a_finished_run_keeps_no_checkpoint_too_many(whole_run, small, tmp_path):
    """A run that is killed between its last save and the deletion that follows deletes when it is started again."""
    shutil.copytree(whole_run, tmp_path / "run")
    assert kept(tmp_path / "run") == [2, 4, 6]
    assert run(with_train(small, steps=6, checkpoint={"keep": 2}), tmp_path / "run") == runlog.DONE
    assert kept(tmp_path / "run") == [4, 6]


def test_silent_corruption_is_noticed(whole_run, small):
    """A single flipped bit in one array changes its checksum, as does swapping two values."""
    del small
    params = checkpoint.read_params(whole_run, 6)[2]
    name, value = max(params.items(), key=lambda item: item[1].size)
    flipped = np.array(value)
    flipped.view(np.uint32).flat[7] ^= 1
    swapped = np.array(value)
    swapped.flat[3], swapped.flat[9] = swapped.flat[9], swapped.flat[3]
    sums = [int(checkpoint.checksums({name: v})[name]) for v in (value, flipped, swapped)]
    assert len(set(sums)) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(), (3,), (1100, 1000), (7, 3, 5)])
def test_a_checksum_on_the_host_is_that_of_the_devices(shape, dtype):
    """Also for arrays of more values than are summed at a time."""
    x = jnp.asarray(np.random.default_rng(0).normal(0, 50, shape)).astype(dtype)
    assert checkpoint.checksum_on_host(x) == int(checkpoint.checksums({"x": x})["x"])


def rewrite_meta(step: Path, change) -> None:
    """Changes a checkpoint's metadata in place, with the checksum that fits the change."""
    (path,) = (step / "meta").glob("metadata")
    meta = json.loads(path.read_text())
    del meta["checksum"]
    change(meta)
    path.write_text(json.dumps(meta | {"checksum": paths.digest(meta)}))


def break_checksum(meta) -> None:
    meta["checksums"]["params.final_norm.scale"] ^= 1


def break_format(meta) -> None:
    meta["format"] = "somebody-else-3"


@pytest.mark.parametrize(("change", "said"), [(break_checksum, "params.final_norm.scale is"), (break_format, "somebody-else-3")])
def test_a_foreign_or_silently_changed_checkpoint_is_passed_over(whole_run, small, tmp_path, capsys, change, said):
    """Arrays that don't have the checksum they were saved with, or another program's format: named, the one before used.

    The tools refuse it as well.
    """
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    rewrite_meta(folder / "checkpoints/6", change)
    with pytest.raises(checkpoint.CheckpointError, match="6 is damaged"):
        checkpoint.read_params(folder)
    assert run(with_train(small, steps=6, checkpoint={"keep": 10}), folder) == runlog.DONE
    out = capsys.readouterr().out
    assert said in out and "starting at step 4" in out
    assert curve(folder) == curve(whole_run)


def test_with_nothing_to_go_on_from_a_run_does_not_start_anew(whole_run, small, tmp_path):
    """If no checkpoint can be read, that is an error, again and again; nothing is moved and no metric is lost."""
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    for step in (2, 4, 6):
        shutil.rmtree(folder / f"checkpoints/{step}/state")
    for _ in range(2):
        with pytest.raises(checkpoint.CheckpointError, match="none of the 3 checkpoints"):
            run(small, folder)
    assert curve(folder) == curve(whole_run) and not (folder / "damaged").exists()


def test_another_optimizer_s_state_is_refused_not_called_damaged(whole_run, small):
    """Clipping shifts Optax's chain: the arrays have other names, which the error lists; the checkpoints stay."""
    with pytest.raises(checkpoint.CheckpointError, match="is of another experiment: optimizer"):
        run(with_train(small, clip_norm=0.0), whole_run)
    assert (whole_run / "checkpoints/6").is_dir()


def test_one_run_at_a_time(whole_run, small):
    """A second process in the same folder is refused."""
    from trainers import runlog

    with runlog.only_run(whole_run, leader=True), pytest.raises(ValueError, match="another process is training in"):
        run(small, whole_run)


def test_one_run_at_a_time_in_a_folder_of_checkpoints(tmp_path):
    """Another run cannot have the same --train.checkpoint.folder, nor name those in a run's own folder, until that run has ended.
    An address has no lock, and no folder is made for it."""
    from trainers import runlog

    def hold(name: str, checkpoints: str = ""):
        return runlog.only_run(tmp_path / name, True, checkpoints)

    shared, own = str(tmp_path / "shared"), str(tmp_path / "a" / "checkpoints")
    for first, second in ((("a", shared), ("b", shared)), (("a", ""), ("b", own)), (("b", own), ("a", ""))):
        with hold(*first), pytest.raises(UserError, match=r"another --train\.checkpoint\.folder$") as refused, hold(*second):
            pass
        assert f"another process is training in {second[1] or own};" in str(refused.value)
        with hold(*second):
            pass
    with hold("a", "gs://bucket/run"), hold("b", "gs://bucket/run"):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "shared"]


def test_another_model_or_other_data_are_refused(whole_run, small):
    """The error names each field that differs, old and new; nothing is touched."""
    before = sorted(p.name for p in (whole_run / "checkpoints").iterdir())
    other = dataclasses.replace(small, model=changed(small.model, {"feed_forward.hidden_dim": 64, "dropout": 0.2}))
    with pytest.raises(checkpoint.CheckpointError, match=r"model.dropout: 0.1 -> 0.2; model.feed_forward.hidden_dim: 32 -> 64"):
        run(other, whole_run)
    with pytest.raises(checkpoint.CheckpointError, match=r"data.seed: 0 -> 1"):
        run(dataclasses.replace(small, data=dataclasses.replace(small.data, seed=1)), whole_run)
    assert sorted(p.name for p in (whole_run / "checkpoints").iterdir()) == before


def test_keep_policy(small, tmp_path):
    """The newest `keep` checkpoints stay, and those at multiples of `keep_every`."""
    assert run(with_train(small, steps=7, checkpoint={"every": 1, "keep": 2, "keep_every": 3}), tmp_path) == runlog.DONE
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    assert kept == [3, 6, 7]


@pytest.mark.slow
def test_microbatches_change_nothing_but_memory(m4, float64):
    """Four microbatches give the gradients of the whole batch, routers' losses too, though their token counts differ."""
    from trainers.hlo.equality import exact
    from trainers.step import gradients

    e = exact(m4)
    changes = {"dropout": 0.0, "moe.router.second_threshold": 0.0, "moe.group_size": 16, "moe.losses.z_weight": 0.01}
    e = varied(e, **changes)
    rng = np.random.default_rng(0)
    real = np.arange(16) < rng.integers(2, 17, (16, 1))
    batch = {}
    for side in ("inputs", "targets"):
        batch[side] = rng.integers(3, 64, (16, 16)).astype(np.int32) * real
        batch[side + "_segments"] = real.astype(np.int32)
        batch[side + "_positions"] = np.broadcast_to(np.arange(16, dtype=np.int32), (16, 16)) * real
    results = []
    for n in (1, 4):
        p = make_plan(with_train(e, microbatches=n), jax.devices()[:1])
        results.append(jax.jit(lambda q, p=p: gradients(p, q, batch, training(0)))(fresh_state(p).params))
    (want, whole), (grads, loss) = results
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-13), grads, want)
    np.testing.assert_allclose(loss.value, whole.value, rtol=1e-12)
    assert float(loss.extra) > 0


def test_a_non_finite_step_changes_no_weight(small):
    """Parameters and optimizer state keep their bits; the batch is counted as seen and as skipped."""
    from data.reading.batches import Batches
    from data.reading.examples import open_source
    from trainers.step import train_step

    p = make_plan(small, jax.devices()[:1])
    first = fresh_state(p)
    before = jax.device_get(first)
    batch = Batches(open_source(small.data, small.model), small.data, p.batch_shardings())(0)
    poisoned = dataclasses.replace(first, params=first.params | {"final_norm.scale": first.params["final_norm.scale"] * np.nan})
    want = jax.device_get(poisoned)
    after, metrics_ = train_step(p)(poisoned, batch)
    assert not np.isfinite(metrics_["loss"])
    assert int(after.step) == 1 and int(after.skipped) == 1 and int(before.step) == 0
    jax.tree.map(assert_array_equal, jax.device_get(after.params), want.params)
    jax.tree.map(assert_array_equal, jax.device_get(after.optimizer), want.optimizer)


def test_non_finite_steps_are_skipped_counted_and_stop_the_run(small, tmp_path, capsys, monkeypatch):
    """A batch whose loss is NaN changes no weight, is named by its rows, and ends the run past the limit."""
    from models.gpt.model import Gpt

    original = Gpt.loss

    def poisoned(self, batch, key, weights):
        loss = original(self, batch, key, weights)
        bad = batch["tokens"][0, 0] % 2 == 0  # about every second batch
        return dataclasses.replace(loss, value=loss.value * jax.numpy.where(bad, np.nan, 1.0))

    monkeypatch.setattr(Gpt, "loss", poisoned)
    assert run(with_train(small, steps=40, faults={"max_nonfinite": 2}), tmp_path) == runlog.DIVERGED
    said = capsys.readouterr().out
    assert said.count("loss or gradient is not finite; skipped (rows ") == 3
    lines = metrics.read(tmp_path)
    assert lines[-1]["skipped"] == 3 and 3 <= lines[-1]["step"] < 40
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])["exit_code"] == runlog.DIVERGED
    bad = [
        line["step"] for before, line in zip([{"skipped": 0}, *lines], lines, strict=False) if line["skipped"] > before["skipped"]
    ]
    assert all((line["loss"] is None) == (line["step"] in bad) for line in lines)  # a step after a bad one is sound again
    assert bad[0] < len(lines) - 2


def test_a_release_holds_the_model(whole_run, small, tmp_path):
    """Weights read back from it are the checkpoint's; a damaged or misfitting one is refused; training starts from it."""
    folder = release.write(whole_run, tmp_path / "release", scores={"bleu": 1.5})
    source = release.Release(folder)
    params = {name: source.read(name, ()) for name in source.shapes}
    assert source.experiment.model == small.model
    jax.tree.map(assert_array_equal, params, jax.device_get(checkpoint.read_params(whole_run)[2]))
    assert "bleu | 1.50" in (folder / "README.md").read_text()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    with pytest.raises(release.ReleaseError, match="choose a new folder"):
        release.write(whole_run, folder)

    started = with_train(small, finetune={"init_from": str(folder)})
    fresh = init_from.new_state(make_plan(started, jax.devices()[:1]), None, print)
    jax.tree.map(assert_array_equal, jax.device_get(fresh.params), params)
    assert int(fresh.step) == 0
    small = dataclasses.replace(started, model=changed(small.model, {"feed_forward.hidden_dim": 64}))
    with pytest.raises(UserError, match=r"16, 64"):
        init_from.new_state(make_plan(small, jax.devices()[:1]), None, print)
    (folder / "experiment.json").write_text("{}")
    with pytest.raises(release.ReleaseError, match=r"experiment\.json is damaged"):
        release.Release(folder)


# --- real signals on real processes ------------------------------------------------------------------------------


def command(workdir: Path, **options) -> list[str]:
    pairs = {"train.checkpoint.every": 2, "train.checkpoint.keep": 2} | options
    extra = [part for key, value in pairs.items() for part in (f"--{key}", str(value))]
    return [sys.executable, "-m", "scripts.train", "gpt.quickstart", "--tiny", "--workdir", str(workdir), *extra]


def environment() -> dict[str, str]:
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    return os.environ | {"XLA_FLAGS": flags}


def test_sigterm_saves_and_exits_with_its_code(tmp_path):
    """Within a step the run saves, says so and exits with 75; its last checkpoint is its last step."""
    process = subprocess.Popen(
        command(tmp_path, **{"train.steps": 100_000, "train.checkpoint.every": 0}),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 5/"):
            process.send_signal(signal.SIGTERM)
            break
    output = process.stdout.read()
    assert process.wait(60) == runlog.PREEMPTED
    assert "stopping at step" in output
    step = max(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
    stop = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])
    assert step == stop["step"] >= 5 and stop["exit_code"] == 75


@pytest.mark.parametrize("times", [KILLS])
@pytest.mark.slow
def test_killing_at_any_moment_changes_nothing(times, tmp_path):
    """Killed first while a save is being written, then at a random moment, and so on: the same bits at the end."""
    rng, steps = random.Random(0), {"train.steps": 30 + 10 * times}
    subprocess.run(command(tmp_path / "whole", **steps), env=environment(), check=True, stdout=subprocess.DEVNULL)
    folder = tmp_path / "killed"
    during_save = kills = 0
    while kills < times:
        process = subprocess.Popen(command(folder, **steps), env=environment(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:  # until it has gone at least a step further
            if line.startswith("step "):
                break
        assert process.poll() is None, "the run ended before it could be killed"
        if kills % 2 == 0:
            while process.poll() is None:  # each run saves often, and ends
                if list((folder / "checkpoints").glob("*.orbax-checkpoint-tmp*")):
                    during_save += 1
                    break
        else:
            time.sleep(rng.uniform(0, 0.3))
        if process.poll() is None:
            kills += 1
        process.kill()
        process.wait()
        if not (process.returncode < 0):
            break  # it finished first
    subprocess.run(command(folder, **steps), env=environment(), check=True, stdout=subprocess.DEVNULL)
    print(f"{kills} kills, {during_save} while a save was being written")
    assert kills == times and during_save >= times // 3
    assert curve(folder) == curve(tmp_path / "whole")
    starts = [json.loads(x) for x in (folder / "run.jsonl").read_text().splitlines()]
    assert sum(x["event"] == "start" for x in starts) > kills
