"""HuBERT, WavLM and Wav2Vec2-BERT: published sizes to the parameter, what sets them apart, folders that are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.conformer.block import depthwise
from models.conformer.config import (
    BatchNorm,
    ConformerConfig,
    ConformerLayer,
    ConvolutionalPositions,
    NearKeys,
    StackedMel,
    TransformerLayer,
)
from models.conformer.fronts import positions_of
from models.conformer.huggingface import INTERCHANGE
from models.conformer.model import Conformer
from models.interchange import InterchangeError
from models.parts.attention.config import GatedBuckets
from models.parts.attention.logits import pair_biases, relative_buckets
from models.parts.nested import changed
from models.sharding.params import describe
from tests.helpers.folders import assert_refused, copy
from tests.parity import ours
from tests.parity.live import FIXTURES
from tests.parity.odd import DRAWS
from trainers.weights.huggingface import HuggingFace

_LARGE = dict(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
)
_XLARGE = _LARGE | dict(hidden_size=1280, num_hidden_layers=48, intermediate_size=5120)
# The settings of released folders, from memory, and what `transformers` 5.23 counts of models with them, made without arrays.
# It has a vector of the width that hides positions in training, which is not here.
RELEASED: dict[str, tuple[dict[str, Any], int]] = {
    "hubert_base": (dict(model_type="hubert", architectures=["HubertModel"]), 94_371_712),
    "hubert_large_ctc": (dict(model_type="hubert", architectures=["HubertForCTC"], conv_bias=True) | _LARGE, 315_471_520),
    "hubert_xlarge": (dict(model_type="hubert", architectures=["HubertModel"], conv_bias=True) | _XLARGE, 962_497_408),
    "distilhubert": (
        dict(model_type="hubert", architectures=["HubertModel"], num_hidden_layers=2, feat_proj_layer_norm=False),
        23_491_968,
    ),
    "wavlm_base": (dict(model_type="wavlm", architectures=["WavLMModel"]), 94_381_936),
    "wavlm_large": (dict(model_type="wavlm", architectures=["WavLMModel"]) | _LARGE, 315_453_120),
    "w2v_bert_2": (dict(model_type="wav2vec2-bert", architectures=["Wav2Vec2BertModel"]), 580_493_120),
    "w2v_bert_2_ctc": (dict(model_type="wav2vec2-bert", architectures=["Wav2Vec2BertForCTC"], vocab_size=32), 580_525_920),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_exact(name):
    """Every one is read, built, abstractly, counted, and written as what it was."""
    theirs, count = RELEASED[name]
    c = INTERCHANGE.read_config(theirs)
    assert sum(info.size for info in describe(ours.abstract(c))) == count - theirs.get("hidden_size", c.model_dim)
    written = INTERCHANGE.write_config(c)
    assert written["model_type"] == theirs["model_type"] and written["architectures"] == theirs["architectures"]
    assert INTERCHANGE.read_config(written) == c


@pytest.mark.parametrize("kind", ["hubert", "wavlm", "wav2vec2-bert"])
def test_drawn_settings_go_there_and_back(kind):
    """Folders of random settings are written as what they were, and their tensors are all parameters of the model."""
    rng = np.random.default_rng(list(kind.encode()))
    for _ in range(6):
        architecture, settings = DRAWS[kind](rng)
        c = INTERCHANGE.read_config(settings | dict(model_type=kind, architectures=[architecture]))
        written = INTERCHANGE.write_config(c)
        assert INTERCHANGE.read_config(written) == c
        assert written["model_type"] == kind and written["architectures"] == [architecture]
        parts = {part.name: (*e.stacked, *part.shape) for e in INTERCHANGE.readable_entries(c) for part in e.parts}
        assert parts == {info.name: info.shape for info in describe(ours.abstract(c))}


# --- what sets them apart ----------------------------------------------------------------------------------------


def test_biases_of_pairs_are_those_of_their_buckets():
    """Each pair of positions has the bias of the bucket of its distance, and beyond the last bucket all have its own."""
    table = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    pairs = np.asarray(pair_biases(jnp.asarray(table), 20, 7))
    for i, j in ((0, 0), (0, 19), (19, 0), (5, 3), (3, 5), (12, 4)):
        bucket = int(relative_buckets(jnp.array(j - i), 12, 7, bidirectional=True))
        assert_allclose(pairs[:, i, j], table[:, bucket])
    assert_array_equal(pairs[:, 0, 8], pairs[:, 0, 19])


def test_a_causal_convolution_hears_nothing_that_follows():
    """With all taps before a frame, what comes later does not matter; a centred one hears it."""
    rng = np.random.default_rng(0)
    x, filter_, segments = rng.normal(size=(1, 9, 2)), jnp.asarray(rng.normal(size=(5, 2))), jnp.ones((1, 9), jnp.int32)
    later = x.copy()
    later[:, 6:] += 1.0
    for back, same in ((4, True), (2, False)):
        a, b = (np.asarray(depthwise(jnp.asarray(y), filter_, segments, back))[:, :6] for y in (x, later))
        assert np.array_equal(a, b) is same


def test_a_pair_of_frames_is_a_position_where_both_are_real():
    """An odd last frame, and a pair across two utterances, are nobody's."""
    c = ConformerConfig(layers=1, model_dim=8, hidden_dim=8, heads=2, front=StackedMel(bands=4))
    segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0, 0]], jnp.int32)
    assert positions_of(c, segments).tolist() == [[1, 0, 2, 0]]


def test_sizes_that_make_no_model_are_refused():
    """In one line, with the nearest that does."""
    for make, message in (
        (lambda: GatedBuckets(buckets=10), "buckets=10: must be a multiple of 4; nearest is 8"),
        (lambda: GatedBuckets(buckets=320, max_distance=80), "max_distance=80: must be above the 80 distances"),
        (lambda: NearKeys(left=-1), "left=-1: must be 0 or more"),
        (lambda: ConformerLayer(near=NearKeys(), positions="relative"), "positions='relative': keys have vectors"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


# --- folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("hubert", dict(architectures=["HubertForSequenceClassification"]), "'HubertForSequenceClassification' here"),
        ("hubert", dict(conv_pos_batch_norm=True), "conv_pos_batch_norm=true is not supported, only false"),
        ("hubert", dict(feat_proj_layer_norm=0), "feat_proj_layer_norm is 0; expected bool"),
        ("hubert", dict(feat_proj_layer_norm=False), "hubert.feature_projection.layer_norm.weight [10] was not expected"),
        ("hubert", dict(pad_token_id=3), "pad_token_id=3 is not supported, only 0"),
        ("hubert", dict(model_type="hubertt"), "no model of type 'hubertt' here; did you mean 'hubert'?"),
        ("wavlm", dict(num_buckets=10), "buckets=10: must be a multiple of 4; nearest is 8"),
        ("wavlm", dict(num_buckets=16), "rel_attn_embed.weight is [12, 3], expected [16, 3]"),
        ("wavlm", dict(add_adapter=True), "add_adapter=true is not supported, only false"),
        ("wav2vec2_bert", dict(feature_projection_input_dim=15), "feature_projection_input_dim=15: only a multiple of 2 frames"),
        ("wav2vec2_bert", dict(position_embeddings_type="relative_keys"), '"relative_keys" is not supported, only "relative"'),
        ("wav2vec2_bert", dict(right_max_position_embeddings=3), "distance_embedding.weight is [7, 8], expected [8, 8]"),
        ("wav2vec2_bert", dict(hidden_act="gelu"), 'hidden_act="gelu" is not supported, only "swish" or "silu"'),
    ],
)
def test_a_folder_of_another_model_is_refused(name, settings, error, tmp_path):
    """In one line, with the setting, its value and what would do."""
    assert_refused(copy(name, tmp_path / "f", **settings), error)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("hubert", {"layer.positions": GatedBuckets()}, r"no Hubert of .*layer\.positions="),
        ("wavlm", {"layer.positions.shared": False}, r"no WavLM of .*layer\.positions\.shared=False"),
        ("wavlm", {"norm_eps": 1e-6}, r"no WavLM of .*norm_eps=1e-06"),
        ("wav2vec2_bert", {"layer.causal": False}, r"no Wav2Vec2Bert of .*layer\.causal=False"),
        ("wav2vec2_bert", {"layer.norm": BatchNorm()}, r"no Wav2Vec2Bert of .*layer\.norm="),
    ],
)
def test_what_none_of_them_has_is_not_written(name, changes, error):
    with pytest.raises(InterchangeError, match=error):
        INTERCHANGE.write_config(changed(HuggingFace(FIXTURES / name).config, changes))


def test_a_preprocessor_says_what_is_heard(tmp_path):
    """WavLM's base models hear samples as they are; frames are Kaldi's, and of no other number of bands."""
    wave, frames = (HuggingFace(FIXTURES / name).config for name in ("wavlm", "wav2vec2_bert"))
    read = INTERCHANGE.data_fields
    assert read(wave, {"do_normalize": False}) == {"front": "samples"} and read(wave, {}) == {"front": "waveform"}
    assert read(frames, {"feature_extractor_type": "SeamlessM4TFeatureExtractor", "num_mel_bins": 7}) == {}
    with pytest.raises(InterchangeError, match="num_mel_bins=80 is not supported, only 7"):
        read(frames, {"num_mel_bins": 80})


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer", [TransformerLayer(order="pre", positions=GatedBuckets(buckets=8, max_distance=6)), ConformerLayer()]
)
def test_padding_and_neighbours_do_not_matter(layer):
    """An utterance has the same outputs alone in its row and beside another one, whose frames are noise."""
    near = isinstance(layer, ConformerLayer)
    c = ConformerConfig(
        layers=2,
        model_dim=16,
        hidden_dim=24,
        heads=4,
        layer=ConformerLayer(kernel=5, near=NearKeys(left=3, right=2), causal=True) if near else layer,
        positions=None if near else ConvolutionalPositions(taps=4, groups=2),
        front=StackedMel(bands=4),
        utterances=2,
    )
    model = jax.jit(lambda key: Conformer(c, key, ours.WHERE))(jax.random.key(0))
    frames = np.random.default_rng(0).normal(size=(2, 24, 4)).astype(np.float32)
    frames[1, :10] = frames[0, :10]
    segments = np.zeros((2, 24), np.int32)
    segments[0, :10], segments[1, :10], segments[1, 12:] = 1, 1, 2
    run = jax.jit(lambda m, b: m.features(b)[0])
    alone, beside = run(model, {"frames": jnp.asarray(frames), "frames_segments": jnp.asarray(segments)})[:, :5]
    assert_allclose(alone, beside, atol=1e-5)
