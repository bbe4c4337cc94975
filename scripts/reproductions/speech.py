"""Conformers of BigSSL (arXiv 2109.13226) and w2v-BERT (arXiv 2108.06209), and Whisper (arXiv 2212.04356)."""

from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters


@reproduction("BigSSL, Table 1; Conformer (arXiv 2005.08100), Table 1", unit="billions of parameters")
def conformer() -> list[Row]:
    """Conformers of 0.1, 0.6, 1.0 and 8.0 billion parameters."""
    printed = {"conformer.large": 0.12, "conformer.xl": 0.6, "conformer.xxl": 1.0, "conformer.g": 8.0}
    note = "rounded in the paper, which does not say what it counts: decoders of transcripts are left out here"
    return [Row(name, paper, parameters(name) / 1e9, note, within=0.06) for name, paper in printed.items()]


@reproduction("w2v-BERT, Table 1", unit="billions of parameters")
def w2v_bert() -> list[Row]:
    """Pre-trained Conformers of 0.6 and 1.0 billion parameters."""
    printed = {"conformer.w2v_bert_xl": 0.6, "conformer.w2v_bert_xxl": 1.0}
    return [
        Row(name, paper, parameters(name) / 1e9, "rounded in the paper", within=0.03) for name, paper in printed.items()
    ]


@reproduction("Whisper, Table 1, and its README", unit="millions of parameters")
def whisper() -> list[Row]:
    """Five sizes from 39 million to 1.55 billion parameters, and turbo."""
    printed = {"tiny": 39, "base": 74, "small": 244, "medium": 769, "large_v2": 1550, "turbo": 809}
    rows = []
    for name, paper in printed.items():
        ours = parameters(f"whisper.{name}") / 1e6
        rows.append(Row(name, paper, ours, "ours is the count of the released checkpoint", within=0.035))
    return rows
