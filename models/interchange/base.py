"""The contracts of a family's foreign files: `Interchange` for folders of Hugging Face's, `ArrayFiles` for arrays by name.

A family's huggingface.py, npz.py and the like have one as `INTERCHANGE` (models.families.interchange_of).
"""

import abc
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from models.interchange.rows import ModelType
from models.interchange.settings import Settings, only, setting
from models.interchange.tensors import Conversion, Entry, Shape

C = TypeVar("C")  # the configuration of a family


class Interchange(abc.ABC, Generic[C]):
    """How models of a family are read from, and written to, a config.json and tensors.

    Names of tensors are canonical: what versions of `transformers` call by several names has one.

    Args:
      model_types: the tables of settings, by model_type.
    """

    def __init__(self, model_types: Mapping[str, ModelType]):
        self.model_types = model_types

    def read_config(self, theirs: Settings) -> C:
        """Returns the configuration that a config.json describes. Raises InterchangeError where a setting is missing, or our
        model does not support it."""
        return self.model_types[setting(theirs, "model_type", str)].read(theirs)

    def write_config(self, c: C) -> dict[str, Any]:
        """Returns the config.json of a model. Raises InterchangeError where `transformers` has no class for the model; the
        message names the fields that differ."""
        kind = self.model_type_of(c)
        table = self.model_types[kind]
        return {"architectures": [table.architectures[0]], "model_type": kind} | table.write(c)

    def model_type_of(self, c: C) -> str:
        """Returns the model_type as which a model is written, or that it is nearest to."""
        (kind,) = self.model_types
        return kind

    @abc.abstractmethod
    def entries(self, c: C) -> list[Entry]:
        """Returns the entries of all tensors that we write for such a model."""

    def readable_entries(self, c: C) -> list[Entry]:
        """Returns the entries of the tensors to look for in a folder with this config, whose heads may be missing."""
        return self.entries(c)

    def canonical_name(self, c: C, theirs: str) -> str | None:
        """Returns the name of a file's tensor in `readable_entries` or `tied_tensors`; None for one that is not needed."""
        return theirs

    def tied_tensors(self, c: C) -> dict[str, str]:
        """Returns the tensors that a file may hold besides `readable_entries`, and those that they repeat."""
        return {}

    def is_head_tensor(self, theirs: str) -> bool:
        """Returns whether a tensor belongs to a head, which may be missing, or be another model's."""
        return False

    def untied(self, theirs: Settings) -> dict[str, Any]:
        """Returns the settings that change where an output matrix differs from the table that it is said to be tied to;
        `read_config` may refuse them."""
        return {"tie_word_embeddings": False}

    def conversions(self, c: C, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
        """Returns the tensors that a folder holds in another form than `readable_entries` has.

        Args:
          shapes: of the folder's tensors, by their names there.
        """
        return {}

    def check_quantization(self, theirs: Settings) -> None:
        """Raises InterchangeError for quantized tensors, unless `conversions` unpacks them."""
        only(theirs, quantization_config=())

    def differences(self, theirs: Settings) -> list[str]:
        """Returns in which outputs our model differs from the one that a config.json describes, which can be read."""
        return []

    def data_fields(self, c: C, preprocessor: Settings) -> dict[str, Any]:
        """Returns the fields of data that a preprocessor_config.json sets. Raises InterchangeError where nothing here reads
        sounds or pictures so."""
        return {}

    def sentence_vector(self, c: C) -> str:
        """Returns what the vector of a text is made of, "mean", "first" or "last" of its tokens; "" where a model gives none."""
        return ""

    def companion_files(self, c: C, tokenizer: Any) -> dict[str, dict[str, Any]]:
        """Returns the contents of further JSON files of a folder, by name.

        Args:
          tokenizer: of the folder, with `special` ids by name and `encode`; None where there is none.
        """
        return {}


class ArrayFiles(abc.ABC, Generic[C]):
    """How models of a family are read from arrays by name, and from settings where a form has some: shapes tell the others."""

    @abc.abstractmethod
    def read_config(self, shapes: Mapping[str, Shape], settings: Settings) -> C:
        """Returns the configuration of the model whose arrays have these shapes; raises InterchangeError for none of ours."""

    def write_settings(self, c: C) -> dict[str, Any]:
        """Returns the settings of a model, for forms that are written. Raises InterchangeError where they have no such model."""
        return {}

    @abc.abstractmethod
    def entries(self, c: C) -> list[Entry]:
        """Returns the entries of all arrays of such a file that hold parameters."""


class GgufFiles(abc.ABC, Generic[C]):
    """How models of a family are read from GGUF files.

    Args:
      architectures: of llama.cpp, by name.
    """

    def __init__(self, architectures: Mapping[str, Any]):
        self.architectures = architectures

    @abc.abstractmethod
    def read_config(self, architecture: str, settings: Settings, tensors: Mapping[str, Any]) -> C:
        """Returns the configuration of the model of a file.

        Args:
          settings: the file's keys of this architecture, without its name.
          tensors: the file's, by name: with shapes, outermost dimension first, along which an index reads some of the numbers.

        Raises:
          InterchangeError: a setting is missing, or our model does not support it.
        """

    @abc.abstractmethod
    def entries(self, architecture: str, c: C) -> list[Entry]:
        """Returns the entries of all tensors but those that `read_config` reads."""

    @abc.abstractmethod
    def auxiliary_tensors(self, architecture: str) -> tuple[str, ...]:
        """Returns the tensors that `read_config` reads and no entry has."""

    @abc.abstractmethod
    def conversions(self, architecture: str, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
        """Returns the tensors that a file has in another form than `entries`, by their names there.

        Args:
          shapes: of the file's tensors.
        """
