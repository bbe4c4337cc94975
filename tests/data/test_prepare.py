"""What all kinds of caches have in common, and the command that prepares them."""

import json
import subprocess
import sys

import pytest

from configs.registry import ConfigError
from data import paths
from data.cache_maker import maker_of
from data.prepare import PREPARED
from scripts import prepare_data

MODULES = (
    "data.prepare",
    "data.reading.packing",
    "data.vocabularies.sentencepiece",
    "data.vocabularies.tokenizers",
    "data.packages.weights",
    "data.text.masking",
    "data.translation.maker",
    "data.translation.corpus",
    "data.text.maker",
    "data.text.corpus",
    "data.text.encoding",
    "data.labelled.maker",
    "data.labelled.encoding",
    "scripts.prepare_data",
)


def test_a_misspelt_name_gives_the_nearest():
    """The command refuses an unknown name in one line that names the nearest data set or weights."""
    with pytest.raises(ConfigError, match=r"^no data set 'm4_quickstrat'; did you mean 'm4_quickstart'\?$"):
        prepare_data.main(["m4_quickstrat"])
    with pytest.raises(ConfigError, match=r"^no data set 'minilm'; did you mean 'minilm_l6'\?$"):
        prepare_data.main(["minilm"])
    with pytest.raises(ConfigError, match=r"^no data set 'refernce'; did you mean 'reference'\?$"):
        prepare_data.main(["refernce"])


@pytest.mark.parametrize(
    "manifest, summary",
    [
        (
            {"kind": "translation", "languages": {"sw": {"pairs": 2, "rows": 1}, "br": {"pairs": 3, "rows": 1}}},
            {"languages": 2, "pairs": 5, "rows": 2},
        ),
        ({"kind": "text", "parts": {"a": {"rows": 4, "tokens": 9}}}, {"parts": 1, "rows": 4, "tokens": 9}),
    ],
)
def test_the_summary_adds_up(monkeypatch, tmp_path, capsys, manifest, summary):
    """The command prints a cache's counts, added up over its languages or parts; progress goes elsewhere."""
    (tmp_path / "manifest.json").write_text(json.dumps({"cache": "some", "fingerprint": "f", **manifest}))
    monkeypatch.setattr(prepare_data, "prepare", lambda name, vocabulary, progress, beam: tmp_path)
    prepare_data.main(["gpt_small", "--json"])
    assert json.loads(capsys.readouterr().out) == {"cache": "some", **summary, "fingerprint": "f", "folder": str(tmp_path)}


def test_prepared_caches_keep_their_inputs():
    """What the translation caches are made from has not changed: caches that are prepared stay valid."""
    settings = PREPARED["m4_quickstart"]
    maker = maker_of("m4_quickstart", settings, paths.data_dir())
    pins = {package.file: package.sha256 for package in maker.packages()}
    inputs = paths.digest([maker.FORMAT, vars(settings), pins, *maker.inputs()])
    assert inputs == "b83334f5211731c39d06f2e78ac107fc74fb443516ad8f8d74b5bc091a5023d6"


@pytest.mark.integration
def test_reading_needs_no_tensorflow():
    """Everything but the builders and the tasks can be imported without TensorFlow, SeqIO or TFDS."""
    program = (
        f"import sys, {', '.join(MODULES)};"
        "heavy = {'tensorflow', 'seqio', 'tensorflow_datasets'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
