"""What a Conformer hears, as positions: two 2-D convolutions over log-mel frames, or wav2vec 2.0's seven over a waveform.

B rows, T frames or samples, F bands, S positions, C channels, M model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer.config import ConformerConfig
from models.parts.convolution_1d import convolve, masked
from models.parts.layers import Norm, add_bias, project
from models.sharding.component import Component
from models.sharding.params import normal, param, zeros

# wav2vec 2.0 (arXiv 2006.11477, section 4.2): taps and strides of its convolutions, together 400 samples, 320 apart.
WAVE = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))


class MelFront(nnx.Module):
    """Two 3 x 3 convolutions of stride 2 over frames and bands, each with a ReLU, and a linear map: a position is four frames."""

    def __init__(self, c: ConformerConfig, key: jax.Array, where: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.where, n = where, c.front_channels
        bands = (c.mels + 3) // 4
        axes = ("filter_height", "filter_width", "in_channels", "channels")
        self.filter1 = param(k1, (3, 3, 1, n), axes, normal((2 / 9) ** 0.5), where)
        self.bias1 = param(k1, (n,), ("channels",), zeros, where)
        self.filter2 = param(k2, (3, 3, n, n), axes, normal((2 / (9 * n)) ** 0.5), where)
        self.bias2 = param(k2, (n,), ("channels",), zeros, where)
        self.weight = param(k3, (bands * n, c.model_dim), ("in_channels", "embed"), normal((bands * n) ** -0.5), where)
        self.bias = param(k3, (c.model_dim,), ("embed",), zeros, where)

    def __call__(self, frames_BTF: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Returns positions [B, S, M]."""
        x_BTFC = frames_BTF[..., None]
        for filter_, bias in ((self.filter1, self.bias1), (self.filter2, self.bias2)):
            x_BTFC = jnp.where((segments_BT > 0)[..., None, None], x_BTFC, 0)
            x_BTFC = jax.nn.relu(add_bias(self._halved(x_BTFC, filter_[...].astype(x_BTFC.dtype)), bias))
            segments_BT = segments_BT[:, ::2]
        x_BSX = x_BTFC.reshape(*x_BTFC.shape[:2], -1)
        x_BSM = add_bias(project(x_BSX, self.weight[...], self.where), self.bias)
        return self.where.shard(x_BSM, "batch", "res_length", "act_embed")

    def _halved(self, x_BTFC: jax.Array, filter_hwCO: jax.Array) -> jax.Array:
        """Returns the convolution [B, T / 2, F / 2, O] as one product of all taps: of frames that a layout cuts, neighbours are
        exchanged (models/parts/convolution_1d.py)."""
        _, length, bands, channels = x_BTFC.shape
        length, bands = length + length % 2, bands + bands % 2
        padded = jnp.pad(x_BTFC, ((0, 0), (1, 1 + length - x_BTFC.shape[1]), (1, 1 + bands - x_BTFC.shape[2]), (0, 0)))
        taps = [padded[:, i : i + length : 2, j : j + bands : 2] for i in range(3) for j in range(3)]
        x_BTFX = self.where.shard(jnp.concatenate(taps, axis=-1), "batch", "length", None, None)
        y_BTFO = x_BTFX @ filter_hwCO.reshape(9 * channels, -1)
        return self.where.shard(y_BTFO, "batch", "length", None, "act_channels")


class WaveFront(nnx.Module):
    """Seven convolutions over samples, each with a layer norm and a GELU, a norm and a linear map: a position is 320 samples.

    A position is an utterance's where all of the 400 samples that it hears are: so its end says nothing of what follows.
    """

    def __init__(self, c: ConformerConfig, key: jax.Array, where: Component):
        keys = jax.random.split(key, len(WAVE) + 1)
        self.where, n = where, c.front_channels
        for i, (size, _) in enumerate(WAVE):
            inputs = n if i else 1
            shape, axes = (size, inputs, n), ("filter_width", "in_channels", "channels")
            setattr(self, f"filter{i}", param(keys[i], shape, axes, normal((2 / (size * inputs)) ** 0.5), where))
            setattr(self, f"bias{i}", param(keys[i], (n,), ("channels",), zeros, where))
            setattr(self, f"norm{i}", Norm(n, where, kind="layer", bias=True, eps=1e-5, axis="channels"))
        self.norm = Norm(n, where, kind="layer", bias=True, eps=1e-5, axis="in_channels")
        self.weight = param(keys[-1], (n, c.model_dim), ("in_channels", "embed"), normal(n**-0.5), where)
        self.bias = param(keys[-1], (c.model_dim,), ("embed",), zeros, where)

    def __call__(self, samples_BT1: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Returns positions [B, S, M]."""
        x_BTC = masked(samples_BT1, segments_BT)
        for i, (size, stride) in enumerate(WAVE):
            filter_kCO = getattr(self, f"filter{i}")[...].astype(x_BTC.dtype)
            x_BTC = convolve(x_BTC, filter_kCO, self.where, "act_channels", stride=stride)
            x_BTC = add_bias(x_BTC, getattr(self, f"bias{i}"))
            x_BTC = jax.nn.gelu(getattr(self, f"norm{i}")(x_BTC), approximate=False)
            segments_BT = _heard_whole(segments_BT, size, stride)
            x_BTC = masked(x_BTC, segments_BT)
        x_BSM = add_bias(project(self.norm(x_BTC), self.weight[...], self.where), self.bias)
        return self.where.shard(x_BSM, "batch", "res_length", "act_embed")


def _heard_whole(segments_BT: jax.Array, size: int, stride: int) -> jax.Array:
    """Returns whose the positions of a convolution are: an utterance's where all of their taps are, else padding."""
    count = segments_BT.shape[1] // stride
    padded = jnp.pad(segments_BT, ((0, 0), (0, size + count * stride - segments_BT.shape[1])))
    first, last = padded[:, : count * stride : stride], padded[:, size - 1 : size - 1 + count * stride : stride]
    return jnp.where(first == last, first, 0)


def positions_of(c: ConformerConfig, segments_BT: jax.Array) -> jax.Array:
    """Returns the utterance of each position that a front makes of frames or samples, int32 [B, S]; 0 is padding."""
    if c.front == "mel":
        return segments_BT[:, :: c.stride]
    for size, stride in WAVE:
        segments_BT = _heard_whole(segments_BT, size, stride)
    return segments_BT


def front_of(c: ConformerConfig, key: jax.Array, where: Component) -> MelFront | WaveFront:
    """Returns the front that the configuration names."""
    return (MelFront if c.front == "mel" else WaveFront)(c, key, where)
