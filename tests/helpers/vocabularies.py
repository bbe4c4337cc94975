"""SentencePiece vocabularies of a test's own text, as M2M-100 and NLLB have them."""

import io
import json
import random
from pathlib import Path

import sentencepiece

from data.vocabularies.files import IDS, PIECES
from tests.helpers.catalogues import WORDS

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def write_pieces(folder: Path, size: int = 300) -> list[str]:
    """Writes a BPE model of `size` pieces, and M2M-100's ids of them in another order; returns its own pieces by id."""
    chance = random.Random(0)
    lines = [" ".join(chance.choices(WORDS, k=8)) for _ in range(800)]
    lines += ["Forgotten your password? 12.5 Naïve café, schön & größer!"] * 5
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=size, minloglevel=2
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PIECES).write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(size)]
    shuffled = chance.sample(pieces[3:], size - 3)
    (folder / IDS).write_text(json.dumps({piece: i for i, piece in enumerate([*SPECIAL, *shuffled])}))
    return pieces
