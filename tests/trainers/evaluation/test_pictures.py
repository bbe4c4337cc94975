"""A classifier of pictures from training to the names of classes, by the commands that know neither pictures nor classes."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import registry
from configs.experiment import Experiment
from data.images.caches import ImageCache
from data.prepare import prepare
from models.errors import UserError
from scripts import classify, release
from tests import toy
from tests.helpers.pictures import encoded, smooth
from tests.helpers.runs import run
from trainers.monitoring import metrics

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    toy.register()
    yield
    toy.unregister()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A data folder with a cache of pictures that are light on the left, in the middle or on the right."""
    root = tmp_path_factory.mktemp("data")
    for number, label in enumerate(("left", "middle", "right")):
        (root / "pictures" / label).mkdir(parents=True)
        for n in range(40):
            pixels = smooth(8, 8, 100 * number + n) // 4
            pixels[:, 3 * number : 3 * number + 3] += 150
            (root / "pictures" / label / f"{n}.png").write_bytes(encoded(pixels))
    prepare("toy", ImageCache(source=f"folder:{root / 'pictures'}"), data_dir=root, progress=lambda line: None)
    return root


@pytest.fixture
def e(root, monkeypatch) -> Experiment:
    monkeypatch.setenv("SHARDZOO_DATA", str(root))
    e = registry.load("toy.linear")
    return dataclasses.replace(e, data=dataclasses.replace(e.data, cache="toy"))


@pytest.mark.slow
def test_a_classifier_learns_and_resumes(e, tmp_path):
    """Mixed pictures are learned from, with workers too; accuracies of held-out ones are logged; two halves are the whole."""
    losses = {}
    for name, steps, workers in (("whole", (20,), 0), ("halves", (10, 20), 2)):
        for last in steps:
            train = dataclasses.replace(e.train, steps=last, workers=workers)
            assert run(dataclasses.replace(e, train=train), tmp_path / name) == 0
        losses[name] = [line["loss"] for line in metrics.read(tmp_path / name) if "loss" in line]
    assert losses["whole"] == losses["halves"] and losses["whole"][-1] < losses["whole"][0]
    scores = [line for line in metrics.read(tmp_path / "whole") if "eval/accuracy" in line][-1]
    assert scores["eval/accuracy"] > 0.8 and scores["eval/accuracy_top5"] == 1.0 and scores["eval/cross_entropy"] < 1


def test_pictures_are_classified(e, root, tmp_path, monkeypatch, capsys):
    """A run and its release name the classes of files, the likeliest first; what cannot be read is named in a line."""
    assert run(e, tmp_path / "run") == 0
    monkeypatch.setattr(sys, "argv", ["release", str(tmp_path / "run"), "--to", str(tmp_path / "release")])
    release.main()
    capsys.readouterr()
    lines = [json.loads(line) for line in (root / "caches" / "toy" / "test.jsonl").read_text().splitlines()]
    files = [root / "pictures" / line["name"] for line in lines]
    (tmp_path / "files.jsonl").write_text("".join(json.dumps({"picture": str(file)}) + "\n" for file in files))

    def printed(*arguments: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["classify", "--checkpoint", *map(str, arguments)])
        classify.main()
        return capsys.readouterr().out.splitlines()

    for folder in (tmp_path / "run", tmp_path / "release"):
        answers = [json.loads(line) for line in printed(folder, "--file", tmp_path / "files.jsonl")]
        right = [a["label"] == b["label"] for a, b in zip(answers, lines, strict=True)]
        scores = [line for line in metrics.read(tmp_path / "run") if "eval/accuracy" in line][-1]
        assert sum(right) / len(right) > 0.8 and scores["eval/accuracy"] > 0.8
        first, second, third = printed(folder, files[0])
        assert first == f"{answers[0]['probability']:.2f}  {answers[0]['label']:14}  {files[0]}"
        assert {line.split()[1] for line in (first, second, third)} == {"left", "middle", "right"}
        assert float(first[:4]) >= float(second[:4]) >= float(third[:4])
        assert len(printed(folder, *files[:3], "--top", "2")) == 6
    broken = tmp_path / "broken.png"
    broken.write_bytes(files[0].read_bytes()[:70])
    with pytest.raises(UserError, match=rf"^{broken}: cannot be decoded \(8 x 8 pixels\): "):
        printed(tmp_path / "run", broken)
    with pytest.raises(UserError, match=r'line 1: expected a JSON object with a "picture"'):
        (tmp_path / "texts.jsonl").write_text('{"text": "a cat"}\n')
        printed(tmp_path / "run", "--file", tmp_path / "texts.jsonl")
