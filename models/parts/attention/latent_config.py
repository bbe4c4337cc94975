"""The sizes of multi-head latent attention. No JAX here: configs are plain data."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent:
    """Attention whose keys and values are made of one latent a position (DeepSeek-V2 and 3; models/parts/attention/latent.py).

    The `head_dim` of the layer is then the size of the part of queries and keys that rotary positions turn, whose key all heads
    share.

    Attributes:
      rank: numbers of the latent, from which keys and values are made.
      query_rank: the same of queries; 0 makes them of the layer's input.
      head_dim: dimensions of a head's queries and keys that are not turned.
      value_dim: of a head's values.
      interleaved: neighbouring dimensions are turned together, not those half a head apart.
      norm_eps: is added to the variance in the norms of latents, whatever the other norms have.
    """

    rank: int
    query_rank: int = 0
    head_dim: int = 128
    value_dim: int = 128
    interleaved: bool = True
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("query_rank", 0), ("head_dim", 1), ("value_dim", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"latent.{name}={value}: must be {least} or more")

    def shrunk(self) -> "Latent":
        """Returns sizes small enough for a test, all unlike."""
        return dataclasses.replace(self, rank=12, query_rank=self.query_rank and 20, head_dim=6, value_dim=10)
