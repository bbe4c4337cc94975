"""SentencePiece models as tokenizer.json files, by which text is read (data.vocabularies.tokenizers). No TensorFlow."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from data import untrusted
from data.vocabularies import sentencepiece
from data.vocabularies.files import CONFIG, TOKENIZER, VocabularyError

_BLANK = "▁"
_UNIGRAM, _BPE = 1, 2  # model types
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # types of pieces
_MARKS = ("bos", "eos", "pad", "unk")


def write(model_file: Path, folder: Path) -> None:
    """Writes the tokenizer.json and tokenizer_config.json of a SentencePiece model of unigrams or of byte pairs into a folder.

    Raises:
      VocabularyError: the file is damaged, or a model of words or characters.
    """
    from sentencepiece import sentencepiece_model_pb2  # pyright: ignore[reportAttributeAccessIssue]

    sentencepiece.processor(model_file)  # checks it
    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    with untrusted.damage(model_file, VocabularyError):
        proto.ParseFromString(untrusted.read_bytes(model_file, VocabularyError, untrusted.SENTENCEPIECE))
    kind = proto.trainer_spec.model_type
    if kind not in (_UNIGRAM, _BPE):
        raise VocabularyError(f"{model_file}: a SentencePiece model of words or characters; expected unigrams or byte pairs")
    with untrusted.damage(model_file, VocabularyError, quiet=True):
        tokenizer = tokenizers.Tokenizer(_model(proto, kind))
        tokenizer.normalizer = _normalizer(proto.normalizer_spec)
        # Faster, and the same unless a piece has blanks inside.
        if not any(_BLANK in piece.piece[1:] for piece in proto.pieces):
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_BLANK, prepend_scheme="never", split=True)
        first = [decoders.Strip(" ", 1, 0)] if proto.normalizer_spec.add_dummy_prefix else []
        tokenizer.decoder = decoders.Sequence([decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *first])
        tokenizer.add_special_tokens(
            [AddedToken(p.piece, special=True, normalized=False) for p in proto.pieces if p.type in (_UNKNOWN, _CONTROL)]
        )
        tokenizer.add_tokens([AddedToken(p.piece, normalized=False) for p in proto.pieces if p.type == _USER_DEFINED])
        tokenizer.save(str(folder / TOKENIZER))
    ids = {f"{mark}_token": getattr(proto.trainer_spec, f"{mark}_id") for mark in _MARKS}
    names = {name: proto.pieces[id_].piece for name, id_ in ids.items() if 0 <= id_ < len(proto.pieces)}
    (folder / CONFIG).write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")


def _model(proto: Any, kind: int) -> Any:
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    unknown = next(id_ for id_, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)
    byte_fallback = any(piece.type == _BYTE for piece in proto.pieces)
    if kind == _UNIGRAM:
        return models.Unigram(pieces, unknown, byte_fallback)
    ids = {piece: id_ for id_, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        halves = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        known = sorted((ids[a], ids[b], a, b) for a, b in halves if a in ids and b in ids)
        merges += [(-score, number, a, b) for number, (_, _, a, b) in enumerate(known)]
    pairs = [(a, b) for _, _, a, b in sorted(merges, key=lambda merge: merge[0])]
    return models.BPE(ids, pairs, unk_token=pieces[unknown][0], fuse_unk=True, byte_fallback=byte_fallback)


def _normalizer(spec: Any) -> Any:
    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(_BLANK))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _BLANK)])
