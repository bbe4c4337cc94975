"""Data sets that TFDS has prepared, by their folders. No TensorFlow."""

from pathlib import Path

_OWN = ("message_catalogues", "english_text", "labelled_text")  # data sets that this project builds


class NotPreparedError(FileNotFoundError):
    """A TFDS folder that isn't there: TFDS itself would try the network for minutes."""


def dataset_folder(name: str, data_dir: Path) -> Path:
    """The prepared folder of a TFDS name like `wmt_t2t_translate/de-en:1.0.0`.

    Raises:
      NotPreparedError: it is not there, or not complete.
    """
    folder = data_dir / name.replace(":", "/")
    if not (folder / "dataset_info.json").exists():
        own = name.startswith(tuple(f"{data_set}/" for data_set in _OWN))
        how = "python -m scripts.prepare_data" if own else "TFDS (see its manual download instructions)"
        raise NotPreparedError(f"{name} is not prepared in {data_dir}; prepare it with {how}")
    return folder
