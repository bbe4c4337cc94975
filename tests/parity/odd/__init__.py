"""Odd models: settings drawn at random for classes of `transformers`, by kind. Plain data."""

from tests.parity.odd import decoders, encoder_decoders, encoders, pictures, sounds
from tests.parity.odd.numbers import Draw

DRAWS: dict[str, Draw] = decoders.DRAWS | encoders.DRAWS | encoder_decoders.DRAWS | pictures.DRAWS | sounds.DRAWS
PADDED_IN_FRONT = decoders.DRAWS.keys() | encoders.DRAWS.keys()  # of which some rows have their padding in front
