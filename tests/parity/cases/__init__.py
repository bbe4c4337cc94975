"""Small random models of `transformers`, of odd sizes, in every variant that the zoo reads and writes. Plain data."""

# Imports are relative: theirs.py, which runs by itself in the environment of `transformers`, knows this package as `cases`.
from . import decoders, encoder_decoders, encoders, mixtures, pictures, sounds
from .case import Case

CASES: dict[str, Case] = encoders.CASES | decoders.CASES | mixtures.CASES | encoder_decoders.CASES | pictures.CASES | sounds.CASES

GIVEN = (
    "samples",
    "pairs",
    "frames",
    "tokens",
    "mask",
    "types",
    "targets",
    "real",
    "images",
    "prompts",
)  # a model's inputs, beside its outputs in expected.safetensors

# What MiniLM's embeddings are compared on: two pairs of paraphrases, then strangers.
SENTENCES = (
    "The cat sits on the mat.",
    "A cat is lying on a rug.",
    "How do I reset my password?",
    "I forgot my password and need a new one.",
    "Interest rates rose sharply in the last quarter.",
    "Unrelated: 1,234 protons, naïve café!",
)
