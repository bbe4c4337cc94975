"""The fronts, which make positions of sound: two 2-D convolutions, or a linear map, over log-mel frames, or wav2vec 2.0's seven
convolutions over a waveform.

B rows, T frames or samples, F bands, S positions, C channels, M model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.conformer.config import WAVE, ConformerConfig, ConvolutionalPositions, Mel, StackedMel, Waveform
from models.parts.convolution_1d import convolve, masked
from models.parts.layers import Norm, add_bias, project
from models.sharding.component import Component
from models.sharding.params import constant, normal, ones, param, zeros


class MelFront(nnx.Module):
    """Two 3 x 3 convolutions of stride 2 over frames and bands, each with a ReLU, and a linear map: a position is four frames."""

    def __init__(self, c: ConformerConfig, front: Mel, key: jax.Array, scope: Component):
        k1, k2, k3 = jax.random.split(key, 3)
        self.scope, n = scope, front.channels
        bands = (front.bands + 3) // 4
        axes = ("filter_height", "filter_width", "in_channels", "channels")
        self.filter1 = param(k1, (3, 3, 1, n), axes, normal((2 / 9) ** 0.5), scope)
        self.bias1 = param(k1, (n,), ("channels",), zeros, scope)
        self.filter2 = param(k2, (3, 3, n, n), axes, normal((2 / (9 * n)) ** 0.5), scope)
        self.bias2 = param(k2, (n,), ("channels",), zeros, scope)
        self.weight = param(k3, (bands * n, c.model_dim), ("in_channels", "embed"), normal((bands * n) ** -0.5), scope)
        self.bias = param(k3, (c.model_dim,), ("embed",), zeros, scope)

    def __call__(self, frames_BTF: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Returns positions [B, S, M]."""
        x_BTFC = frames_BTF[..., None]
        for filter_, bias in ((self.filter1, self.bias1), (self.filter2, self.bias2)):
            x_BTFC = jnp.where((segments_BT > 0)[..., None, None], x_BTFC, 0)
            x_BTFC = jax.nn.relu(add_bias(self._halved(x_BTFC, filter_[...].astype(x_BTFC.dtype)), bias))
            segments_BT = segments_BT[:, ::2]
        x_BSX = x_BTFC.reshape(*x_BTFC.shape[:2], -1)
        x_BSM = add_bias(project(x_BSX, self.weight[...], self.scope), self.bias)
        return self.scope.shard(x_BSM, "batch", "res_length", "act_embed")

    def _halved(self, x_BTFC: jax.Array, filter_hwCO: jax.Array) -> jax.Array:
        """Returns the convolution [B, T / 2, F / 2, O] as one product of all taps: of frames that a layout cuts, neighbours are
        exchanged (models/parts/convolution_1d.py)."""
        _, length, bands, channels = x_BTFC.shape
        length, bands = length + length % 2, bands + bands % 2
        padded = jnp.pad(x_BTFC, ((0, 0), (1, 1 + length - x_BTFC.shape[1]), (1, 1 + bands - x_BTFC.shape[2]), (0, 0)))
        taps = [padded[:, i : i + length : 2, j : j + bands : 2] for i in range(3) for j in range(3)]
        x_BTFX = self.scope.shard(jnp.concatenate(taps, axis=-1), "batch", "length", None, None)
        y_BTFO = x_BTFX @ filter_hwCO.reshape(9 * channels, -1)
        return self.scope.shard(y_BTFO, "batch", "length", None, "act_channels")


class StackedFront(nnx.Module):
    """A norm and a linear map over pairs of frames, side by side: a position is an utterance's where both of them are."""

    def __init__(self, c: ConformerConfig, front: StackedMel, key: jax.Array, scope: Component):
        self.scope, self.stride, n = scope, front.stride, front.stride * front.bands
        self.norm = Norm(n, scope, kind="layer", bias=True, eps=c.norm_eps, axis="in_channels")
        self.weight = param(key, (n, c.model_dim), ("in_channels", "embed"), normal(n**-0.5), scope)
        self.bias = param(key, (c.model_dim,), ("embed",), zeros, scope)

    def __call__(self, frames_BTF: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Returns positions [B, S, M]; a last frame without another is left out."""
        whole = frames_BTF.shape[1] // self.stride * self.stride
        x_BSX = frames_BTF[:, :whole].reshape(len(frames_BTF), whole // self.stride, -1)
        x_BSM = add_bias(project(self.norm(x_BSX), self.weight[...], self.scope), self.bias)
        return self.scope.shard(x_BSM, "batch", "res_length", "act_embed")


class WaveFront(nnx.Module):
    """Seven convolutions over samples, each (or the first alone) with a norm, and with a GELU, then a norm and a linear map: a
    position is 320 samples.

    A position is an utterance's where all of the 400 samples that it hears are: so its end says nothing of what follows.
    """

    def __init__(self, c: ConformerConfig, front: Waveform, key: jax.Array, scope: Component):
        keys = jax.random.split(key, len(WAVE) + 1)
        self.scope, self.utterances, n = scope, c.utterances, front.channels
        for i, (size, _) in enumerate(WAVE):
            inputs = n if i else 1
            shape, axes = (size, inputs, n), ("filter_width", "in_channels", "channels")
            setattr(self, f"filter{i}", param(keys[i], shape, axes, normal((2 / (size * inputs)) ** 0.5), scope))
            bias = param(keys[i], (n,), ("channels",), zeros, scope) if front.bias else None
            setattr(self, f"bias{i}", bias)
            setattr(self, f"norm{i}", self._norm(front, i))
        norm = Norm(n, scope, kind="layer", bias=True, eps=1e-5, axis="in_channels")
        self.norm = norm if front.norms_projection else None
        self.weight = param(keys[-1], (n, c.model_dim), ("in_channels", "embed"), normal(n**-0.5), scope)
        self.bias = param(keys[-1], (c.model_dim,), ("embed",), zeros, scope)

    def _norm(self, front: Waveform, i: int) -> "Norm | TimeNorm | None":
        """Returns the norm of convolution i."""
        if front.norm == "layer":
            return Norm(front.channels, self.scope, kind="layer", bias=True, eps=1e-5, axis="channels")
        return TimeNorm(front.channels, self.scope) if i == 0 else None

    def __call__(self, samples_BT1: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Returns positions [B, S, M]."""
        x_BTC = masked(samples_BT1, segments_BT)
        for i, (size, stride) in enumerate(WAVE):
            filter_kCO = getattr(self, f"filter{i}")[...].astype(x_BTC.dtype)
            x_BTC = convolve(x_BTC, filter_kCO, self.scope, "act_channels", stride=stride)
            x_BTC = add_bias(x_BTC, getattr(self, f"bias{i}"))
            segments_BT, norm = _whole_segments(segments_BT, size, stride), getattr(self, f"norm{i}")
            if isinstance(norm, TimeNorm):
                x_BTC = norm(x_BTC, segments_BT, self.utterances)
            elif norm is not None:
                x_BTC = norm(x_BTC)
            x_BTC = masked(jax.nn.gelu(x_BTC, approximate=False), segments_BT)
        x_BTC = x_BTC if self.norm is None else self.norm(x_BTC)
        x_BSM = add_bias(project(x_BTC, self.weight[...], self.scope), self.bias)
        return self.scope.shard(x_BSM, "batch", "res_length", "act_embed")


class TimeNorm(nnx.Module):
    """Normalises each channel over the time of an utterance: of its own frames alone, never of padding."""

    def __init__(self, size: int, scope: Component):
        key = jax.random.key(0)  # not drawn from
        self.scale = param(key, (size,), ("channels",), ones, scope)
        self.bias = param(key, (size,), ("channels",), zeros, scope)

    def __call__(self, x_BTC: jax.Array, segments_BT: jax.Array, utterances: int) -> jax.Array:
        """Returns [B, T, C]; `utterances` is the most of a row."""
        x, y = x_BTC.astype(jnp.promote_types(x_BTC.dtype, jnp.float32)), 0.0
        for utterance in range(1, utterances + 1):
            own_BT1 = (segments_BT == utterance)[..., None].astype(x.dtype)
            count_B11 = jnp.maximum(jnp.sum(own_BT1, axis=1, keepdims=True), 1)
            centred = (x - jnp.sum(x * own_BT1, axis=1, keepdims=True) / count_B11) * own_BT1
            y += centred * jax.lax.rsqrt(jnp.sum(centred * centred, axis=1, keepdims=True) / count_B11 + 1e-5)
        return (y * self.scale[...] + self.bias[...]).astype(x_BTC.dtype)


def _whole_segments(segments_BT: jax.Array, size: int, stride: int) -> jax.Array:
    """Returns whose the positions of a convolution are: an utterance's where all of their taps are, else padding."""
    count = segments_BT.shape[1] // stride
    padded = jnp.pad(segments_BT, ((0, 0), (0, size + count * stride - segments_BT.shape[1])))
    first, last = padded[:, : count * stride : stride], padded[:, size - 1 : size - 1 + count * stride : stride]
    return jnp.where(first == last, first, 0)


def positions_of(c: ConformerConfig, segments_BT: jax.Array) -> jax.Array:
    """Returns the utterance of each position that a front makes of frames or samples, int32 [B, S]; 0 is padding."""
    if isinstance(c.front, Mel):
        return segments_BT[:, :: c.front.stride]
    if isinstance(c.front, StackedMel):
        return _whole_segments(segments_BT, c.front.stride, c.front.stride)
    for size, stride in WAVE:
        segments_BT = _whole_segments(segments_BT, size, stride)
    return segments_BT


def front_of(c: ConformerConfig, key: jax.Array, scope: Component) -> MelFront | StackedFront | WaveFront:
    """Returns the front that the configuration names."""
    if isinstance(c.front, Mel):
        return MelFront(c, c.front, key, scope)
    if isinstance(c.front, StackedMel):
        return StackedFront(c, c.front, key, scope)
    return WaveFront(c, c.front, key, scope)


class Places(nnx.Module):
    """A grouped convolution whose output, after a GELU, tells positions (wav2vec 2.0, section 4.2): K taps, centred, an even K
    reaching further back.

    Its filter is g v / |v|, with a g and a length of v for each tap (weight normalisation, arXiv 1602.07868).
    """

    def __init__(self, c: ConformerConfig, positions: ConvolutionalPositions, key: jax.Array, scope: Component):
        self.scope, self.groups, self.utterances = scope, positions.groups, c.utterances
        shape = (positions.taps, c.model_dim // positions.groups, c.model_dim)
        std = 2 * (positions.taps * c.model_dim) ** -0.5
        self.filter = param(key, shape, ("filter_width", "in_channels", "channels"), normal(std), scope)
        length = std * (shape[1] * shape[2]) ** 0.5  # as v is drawn, so that the filter begins as v
        self.lengths = param(key, shape[:1], ("filter_width",), constant(length), scope)
        self.bias = param(key, (c.model_dim,), ("channels",), zeros, scope)

    def __call__(self, x_BSM: jax.Array, segments_BS: jax.Array) -> jax.Array:
        """Returns what is added to the positions [B, S, M]; utterances of a row do not reach each other."""
        v_KIM = self.filter[...]
        lengths_K11 = jnp.sqrt(jnp.sum(v_KIM * v_KIM, axis=(1, 2), keepdims=True))
        filter_KIM = (v_KIM / lengths_K11 * self.lengths[...][:, None, None]).astype(x_BSM.dtype)
        y_BSM = jnp.zeros_like(x_BSM)
        for utterance in range(1, self.utterances + 1):
            own_BS1 = (segments_BS == utterance)[..., None]
            y_BSM += jnp.where(own_BS1, self._grouped(jnp.where(own_BS1, x_BSM, 0), filter_KIM), 0)
        y_BSM = jax.nn.gelu(add_bias(y_BSM, self.bias), approximate=False)
        return self.scope.shard(y_BSM, "batch", "res_length", "act_embed")

    def _grouped(self, x_BSM: jax.Array, filter_KIM: jax.Array) -> jax.Array:
        """Returns the convolution [B, S, M], one for each group: XLA's own of all groups gathers a cut batch in the gradient of
        its filter, and takes CPUs twenty times as long."""
        taps = len(filter_KIM)
        outputs = [
            jax.lax.conv_general_dilated(
                x_BSI, filter_KIO, (1,), [(taps // 2, (taps - 1) // 2)], dimension_numbers=("NWC", "WIO", "NWC")
            )
            for x_BSI, filter_KIO in zip(
                jnp.split(x_BSM, self.groups, axis=-1), jnp.split(filter_KIM, self.groups, axis=-1), strict=True
            )
        ]
        return jnp.concatenate(outputs, axis=-1)
