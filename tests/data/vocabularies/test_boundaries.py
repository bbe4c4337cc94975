import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
from tokenizers import processors

from data.vocabularies import boundaries, files, tokenizers
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import Tokenizer
from tests.parity.live import FIXTURES
from tests.parity.vocabularies import VOCABULARIES

BEGIN, END = "<s>", "</s>"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Path:
    """A vocabulary of 300 ids, of which 298 is `<s>` and 299 `</s>`, and 0 is <|endoftext|>."""
    folder = tmp_path_factory.mktemp("pieces")
    tokenizers.train_bpe(["the cat sat on the mat", "a dog ran there, and then here"] * 9, folder / files.TOKENIZER, 280)
    tokenizer = library.Tokenizer.from_file(str(folder / files.TOKENIZER))
    tokenizer.add_special_tokens([*(f"<extra{i}>" for i in range(18)), BEGIN, END])
    tokenizer.save(str(folder / files.TOKENIZER))
    return folder


def written(pieces: Path, to: Path, processor: Any = None, **contents: dict[str, Any]) -> Path:
    """Copies a vocabulary, with a post-processor, and with files beside it that are named without their ending."""
    tokenizer = library.Tokenizer.from_file(str(pieces / files.TOKENIZER))
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.save(str(to / files.TOKENIZER))
    for name, content in contents.items():
        (to / f"{name}.json").write_text(json.dumps(content))
    return to


def template(around: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=around, special_tokens=[(BEGIN, 298), (END, 299)])


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_a_text_are_those_of_its_familys_own_tokenizer(name):
    """`transformers` (make parity) gives the same ids: what its family puts before and behind a text is there too."""
    tokenizer = Tokenizer(FIXTURES / "texts" / name)
    for row in json.loads((FIXTURES / "texts" / name / "texts.json").read_text()):
        assert tokenizer.whole(row["text"]) == row["ids"], row["text"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_what_ends_a_text_is_what_its_familys_folder_says(name):
    """Every id of generation_config.json, or of config.json, ends a continuation, and no other."""
    vocabulary, tokenizer = VOCABULARIES[name], Tokenizer(FIXTURES / "texts" / name)
    stated = vocabulary.generation or vocabulary.model_ends
    assert tokenizer.ends == tuple(map(tokenizer.id_of, (stated,) if isinstance(stated, str) else stated))


@pytest.mark.parametrize(
    ("processor", "sides"),
    [
        (template(f"{BEGIN} $A"), ((298,), ())),
        (template(f"{BEGIN} {BEGIN} $A {END}"), ((298, 298), (299,))),
        (processors.Sequence([processors.ByteLevel(), template(f"$A {END}")]), ((), (299,))),
        (processors.Sequence([template(f"{BEGIN} $A"), template(f"{END} $A {END}")]), ((298,), ())),
        (processors.BertProcessing((END, 299), (BEGIN, 298)), ((298,), (299,))),
        (processors.RobertaProcessing((END, 299), (BEGIN, 298)), ((298,), (299,))),
        (processors.ByteLevel(), ((), ())),
        (None, ((), ())),
    ],
)
def test_a_post_processors_tokens_are_those_that_the_library_adds(pieces, tmp_path, processor, sides):
    """Each kind of post-processor, and several in sequence."""
    tokenizer = Tokenizer(written(pieces, tmp_path, processor))
    assert (tokenizer.before, tokenizer.behind) == sides
    same = library.Tokenizer.from_file(str(tmp_path / files.TOKENIZER))
    for text in ("the cat", "", " a"):
        assert tokenizer.whole(text) == same.encode(text).ids


def test_settings_add_tokens_where_the_post_processor_adds_none(pieces, tmp_path):
    """`add_bos_token` and `add_eos_token` are obeyed then, if they are true and name a token that there is."""
    added = {"add_bos_token": True, "add_eos_token": True, "bos_token": {"content": BEGIN}, "eos_token": END}
    for processor, config, sides in (
        (None, added, ((298,), (299,))),
        (processors.ByteLevel(), added | {"add_eos_token": False}, ((298,), ())),
        (None, added | {"bos_token": None}, ((), (299,))),
        (None, {"bos_token": BEGIN, "eos_token": END}, ((), ())),
        (template(f"{BEGIN} $A"), added | {"add_bos_token": False}, ((298,), ())),
    ):
        tokenizer = Tokenizer(written(pieces, tmp_path, processor, tokenizer_config=config))
        assert (tokenizer.before, tokenizer.behind) == sides, config


def test_ends_are_read_from_the_first_file_that_names_one(pieces, tmp_path):
    """generation_config.json, config.json, tokenizer_config.json, special_tokens_map.json; the end of text is the tokenizer's."""
    folder = written(
        pieces,
        tmp_path,
        special_tokens_map={"eos_token": {"content": "<extra1>"}},
        tokenizer_config={"eos_token": END},
        config={"eos_token_id": 298, "pad_token_id": -1},
        generation_config={"eos_token_id": [5, 7, 5, 999]},
    )
    ends = []
    for name in ("generation_config", "config", "tokenizer_config", "special_tokens_map", "tokenizer"):
        tokenizer = Tokenizer(folder)
        ends.append((tokenizer.ends, tokenizer.eos_id))
        (folder / f"{name}.json").unlink()
    extra = Tokenizer(pieces).id_of("<extra1>")
    assert ends == [((5, 7), 299), ((298,), 299), ((299,), 299), ((extra,), extra), ((0,), 0)]


def test_an_end_without_a_known_name_is_the_end(pieces, tmp_path):
    """A vocabulary that has none of the usual names is not refused if its folder says what ends a text; else it is."""
    text = (pieces / files.TOKENIZER).read_text().replace("<|endoftext|>", "<eos>").replace(END, "<other>")
    (tmp_path / files.TOKENIZER).write_text(text)
    with pytest.raises(VocabularyError, match="its vocabulary has no end of text"):
        _ = Tokenizer(tmp_path).end
    (tmp_path / files.CONFIG).write_text('{"eos_token": "<eos>"}')
    assert Tokenizer(tmp_path).end == 0


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("generation_config", {"eos_token_id": "2"}, r"generation_config\.json: eos_token_id is '2', which is no token's id"),
        ("config", {"eos_token_id": [2, True]}, r"config\.json: eos_token_id is \[2, True\], which is no token's id"),
        ("tokenizer_config", {"eos_token": 2}, r"tokenizer_config\.json: eos_token is 2, which is no token"),
        ("tokenizer_config", [], r"tokenizer_config\.json is damaged: expected an object"),
    ],
)
def test_a_damaged_statement_is_refused_in_one_line(pieces, tmp_path, name, content, error):
    with pytest.raises(VocabularyError, match=error) as caught:
        Tokenizer(written(pieces, tmp_path, **{name: content}))
    assert "\n" not in str(caught.value)


def test_a_copy_of_a_vocabulary_ends_texts_as_its_folder_does(pieces, tmp_path):
    """The ends that the model's files name go with the vocabulary, into caches and releases; nothing else of these files does."""
    (tmp_path / "model").mkdir()
    folder = written(pieces, tmp_path / "model", config={"eos_token_id": [5, 7], "bos_token_id": 3, "hidden_size": 9})
    (tmp_path / "copy").mkdir()
    (tmp_path / "again").mkdir()
    files.copy(folder, tmp_path / "copy")
    files.copy(tmp_path / "copy", tmp_path / "again")
    assert Tokenizer(tmp_path / "again").ends == (5, 7)
    assert json.loads((tmp_path / "again" / files.GENERATION).read_text()) == {"bos_token_id": 3, "eos_token_id": [5, 7]}
    assert {file.name for file in files.listed(tmp_path / "again")} == {files.TOKENIZER, files.GENERATION}
    (tmp_path / "plain").mkdir()
    files.copy(pieces, tmp_path / "plain")
    assert not (tmp_path / "plain" / files.GENERATION).exists()
    assert boundaries.ends(tmp_path / "plain", Tokenizer(pieces).id_of) == ()
