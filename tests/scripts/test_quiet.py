"""Standard error of commands that are run as a user runs them has the project's own lines, and no library's."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import registry
from models.parts.nested import changed
from models.sharding.params import to_params
from tests.helpers.chats import conversations, write_vocabulary
from tests.helpers.compiling import CHEAP
from tests.helpers.models import ALONE
from trainers.plan import model_of_shapes
from trainers.weights import huggingface
from trainers.weights.source import Arrays

pytestmark = pytest.mark.integration

STAGE = r"[\w, ]+( \.\.\.|: \d+\.\d s)"
READ = r"read 1 file: talks\.jsonl"
SHOWN = r"a row of \w+: .*"
NOTE = r"the schedule follows --train\.steps: .*|from data 'talks': .*"
LEFT_OUT = r"\w+: [\d,]+ of [\d,]+ \w+s left out; .*"
PRECISION = r"computed in float32; the weights are stored as float32"


def lines(folder: Path, *arguments: object) -> list[str]:
    """Runs a command without the tests' devices; returns the lines that it writes on standard error."""
    env = os.environ | {"XLA_FLAGS": CHEAP, "SHARDZOO_DATA": str(folder / "data")}
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done
    return done.stderr.splitlines()


def test_libraries_are_not_heard(tmp_path):
    """Data are prepared, a model is trained on them, scored, and asked: each line is one that these commands write themselves."""
    model = changed(
        registry.tiny(registry.load("chat.smollm2_lora")).model,
        {"vocab": 329, "layers": 1, "attention.heads": 4, "attention.head_dim": 4, "dropout": 0.0},
    )
    shapes = jax.tree.map(lambda x: jax.numpy.full(x.shape, 0.01), to_params(model_of_shapes(model, ALONE)))
    start, talks, run = tmp_path / "start", tmp_path / "talks.jsonl", tmp_path / "run"
    huggingface.write_folder(Arrays(model, shapes, write_vocabulary(tmp_path / "vocabulary")), start)
    talks.write_text("".join(json.dumps(c) + "\n" for c in conversations(80, 0)))
    settings = ["--model-from-weights", "--train.finetune.init-from", start, "--data.cache", "talks", "--data.length", 64]
    small = ["--data.batch-size", 4, "--train.steps", 2, "--optimizer.schedule.warmup", 1, "--eval.limit", 4, "--workdir", run]
    prepared = lines(tmp_path, "scripts.prepare_data", "talks", "--from", talks, "--vocabulary", start, "--length", 64)
    assert prepared and all(re.fullmatch(f"{STAGE}|{READ}|{LEFT_OUT}|{SHOWN}", line) for line in prepared), prepared
    trained = lines(tmp_path, "scripts.train", "chat.smollm2_lora", *settings, *small)
    assert all(re.fullmatch(NOTE, line) for line in trained), trained
    for command in (["scripts.evaluate"], ["scripts.generate", "--chat", "--tokens", 4, "the cat"]):
        (precision,) = lines(tmp_path, *command, "--checkpoint", run)
        assert re.fullmatch(PRECISION, precision)
