"""BART, mBART, Marian and Pegasus: released sizes to the parameter, logits beside NumPy's, folders read and refused."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file

from data.vocabularies.tokenizers import Tokenizer
from models.errors import UserError
from models.interchange import InterchangeError
from models.m2m100.huggingface import INTERCHANGE
from models.parts.layers import ACTIVATIONS, sinusoids
from models.parts.nested import changed
from models.sharding.params import describe
from tests.helpers.folders import assert_refused, copy
from tests.helpers.masked_vocabularies import train_roberta
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers.weights import huggingface
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace

KINDS = ("bart", "mbart", "marian", "pegasus")
NORMED_BEFORE = ("mbart", "pegasus")
BIAS = "final_logits_bias"


def described(
    kind: str, *, vocab: int, layers: tuple[int, int], dim: int, heads: int, hidden: int, **more: Any
) -> dict[str, Any]:
    """The config.json of a model; `layers` of encoder and decoder."""
    settings: dict[str, Any] = dict(model_type=kind, vocab_size=vocab, d_model=dim)
    for side, number in zip(("encoder", "decoder"), layers, strict=True):
        settings |= {f"{side}_layers": number, f"{side}_attention_heads": heads, f"{side}_ffn_dim": hidden}
    return settings | more


def large(kind: str, vocab: int, layers: tuple[int, int] = (12, 12), **more: Any) -> dict[str, Any]:
    return described(kind, vocab=vocab, layers=layers, dim=1024, heads=16, hidden=4096, **more)


# The settings of released folders, and the number of parameters that `transformers` counts. It leaves out the bias of logits, and
# has with Marian and Pegasus two tables of sinusoids. Sums of the tensors' sizes (derived).
RELEASED = {
    "bart_base": (described("bart", vocab=50_265, layers=(6, 6), dim=768, heads=12, hidden=3072), 139_420_416),
    "bart_large": (large("bart", 50_265), 406_291_456),
    "bart_large_cnn": (large("bart", 50_264), 406_290_432),
    "distilbart_cnn_12_6": (large("bart", 50_264, (12, 6)), 305_510_400),
    "opus_mt_en_de": (
        described("marian", vocab=58_101, layers=(6, 6), dim=512, heads=8, hidden=2048, max_position_embeddings=512),
        74_410_496,
    ),
    "mbart_large_50": (large("mbart", 250_054, scale_embedding=True), 610_879_488),
    "pegasus_large": (large("pegasus", 96_103, (16, 16), max_position_embeddings=1024), 570_797_056),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_exact(name):
    """Every one is read, built, abstractly, and counted."""
    settings, published = RELEASED[name]
    sinusoids_ = 0 if "bart" in settings["model_type"] else 2 * settings["max_position_embeddings"] * settings["d_model"]
    size = sum(info.size for info in describe(ours.abstract(INTERCHANGE.read_config(settings))))
    assert size - settings["vocab_size"] + sinusoids_ == published


# --- the same in NumPy, by the names of a folder -----------------------------------------------------------------


class Reference:
    """A folder's model in double precision, after the papers: every sub-layer with its norm before or behind it."""

    def __init__(self, folder: Path):
        self.settings = json.loads((folder / "config.json").read_text())
        self.tensors = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}

    def dense(self, at: str, x: np.ndarray) -> np.ndarray:
        return x @ self.tensors[f"{at}.weight"].T + self.tensors[f"{at}.bias"]

    def norm(self, at: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self.tensors[f"{at}.weight"] + self.tensors[f"{at}.bias"]

    def attention(self, at: str, x_BLM: np.ndarray, source_BSM: np.ndarray, seen_BLS: np.ndarray) -> np.ndarray:
        heads = self.settings["encoder_attention_heads"]
        q, k, v = (
            self.dense(f"{at}.{name}_proj", y).reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)
            for name, y in (("q", x_BLM), ("k", source_BSM), ("v", source_BSM))
        )
        scores = np.where(seen_BLS[:, None], q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]), -np.inf)
        weights_ = np.exp(scores - scores.max(-1, keepdims=True))
        y_BLM = (weights_ / weights_.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x_BLM.shape)
        return self.dense(f"{at}.out_proj", y_BLM)

    def embedded(self, side: str, ids: np.ndarray) -> np.ndarray:
        m, length = self.settings["d_model"], ids.shape[1]
        x = self.tensors["model.shared.weight"][ids] * (math.sqrt(m) if self.settings["scale_embedding"] else 1)
        learned = self.tensors.get(f"model.{side}.embed_positions.weight")
        x = x + (waves(length, m) if learned is None else learned[2 : 2 + length])
        norm = f"model.{side}.layernorm_embedding"
        return self.norm(norm, x) if f"{norm}.weight" in self.tensors else x

    def stack(self, side: str, ids: np.ndarray, seen: np.ndarray, source: np.ndarray, source_seen: np.ndarray) -> np.ndarray:
        x, before = self.embedded(side, ids), self.settings["model_type"] in NORMED_BEFORE
        act = ACTIVATIONS[INTERCHANGE.read_config(self.settings).feed_forward.activation]
        for at in (f"model.{side}.layers.{i}" for i in range(self.settings[f"{side}_layers"])):
            parts = {
                "self_attn": lambda y, at=at: self.attention(f"{at}.self_attn", y, y, seen),
                "encoder_attn": lambda y, at=at: self.attention(f"{at}.encoder_attn", y, source, source_seen),
                "final": lambda y, at=at: self.dense(
                    f"{at}.fc2", np.asarray(act(jnp.asarray(self.dense(f"{at}.fc1", y))), np.float64)
                ),
            }
            for name in ("self_attn", *(["encoder_attn"] if side == "decoder" else []), "final"):
                norm = f"{at}.{name}_layer_norm"
                y = parts[name](self.norm(norm, x) if before else x)
                x = x + y if before else self.norm(norm, x + y)
        return self.norm(f"model.{side}.layer_norm", x) if before else x

    def logits(self, given: dict[str, np.ndarray]) -> np.ndarray:
        rows, length = given["targets"].shape
        real_BS = given["mask"] > 0
        start = np.full((rows, 1), self.settings["decoder_start_token_id"])
        among = np.broadcast_to(real_BS[:, None], (rows, real_BS.shape[1], real_BS.shape[1]))
        encoded = self.stack("encoder", given["tokens"], among, np.zeros(0), among)
        before = np.broadcast_to(np.tril(np.ones((length, length), bool)), (rows, length, length))
        ids, seen = np.concatenate([start, given["targets"][:, :-1]], 1), np.repeat(real_BS[:, None], length, 1)
        x = self.stack("decoder", ids, before, encoded, seen)
        return x @ self.tensors["model.shared.weight"].T + self.tensors[BIAS][0]


def waves(length: int, size: int) -> np.ndarray:
    """Sines of even dimensions of Vaswani et al. 2017, section 3.5, then cosines of odd ones."""
    table = np.array([[p / 10_000 ** (2 * (i // 2) / size) for i in range(size)] for p in range(length)])
    return np.concatenate([np.sin(table[:, 0::2]), np.cos(table[:, 1::2])], 1)


def drawn(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """A config.json of odd sizes, each setting at random."""
    heads, vocab = int(rng.integers(1, 8)), int(rng.integers(20, 90))
    return described(
        kind,
        vocab=vocab,
        layers=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
        dim=heads * int(rng.integers(2, 8)),
        heads=heads,
        hidden=int(rng.integers(5, 30)),
        scale_embedding=bool(rng.integers(2)),
        activation_function=str(rng.choice(["relu", "gelu", "gelu_new", "swish"])),
        decoder_start_token_id=int(rng.integers(vocab)),
        max_position_embeddings=int(rng.integers(9, 40)),
    )


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_a_drawn_model_are_numpys(kind, tmp_path):
    """A random model, written as a folder: its logits from the folder are those that NumPy makes of the folder's tensors, with
    padding in front or behind, to 1e-5; and what is read is what was written."""
    rng = np.random.default_rng(list(f"{kind} drawn".encode()))
    config = INTERCHANGE.read_config(drawn(kind, rng))
    params = {k: np.asarray(v) for k, v in weights_by_name(config, rng).items()}
    huggingface.write_folder(weights.Arrays(config, params), tmp_path / "f")
    source = HuggingFace(tmp_path / "f")
    assert source.config == config and source.theirs["model_type"] == kind
    for name, array in params.items():
        assert_array_equal(source.read(name), array)
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4, [0] * 4 + [1] * 5], np.int32)
    given = {"tokens": rng.integers(config.vocab, size=mask.shape).astype(np.int32) * mask, "mask": mask}
    given |= {"targets": rng.integers(config.vocab, size=(3, 7)).astype(np.int32), "real": np.ones((3, 7), np.int32)}
    got = jax.jit(lambda m, b: m(b))(ours.model(source), ours.batch(given))
    want = Reference(tmp_path / "f").logits(given)
    assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


def weights_by_name(config: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Parameters of which every one matters."""
    return {i.name: rng.normal(size=i.shape, scale=0.3).astype(np.float32) for i in describe(ours.abstract(config))}


@pytest.mark.parametrize("size", [6, 7])
def test_the_papers_sinusoids_are_those_of_numpy(size):
    """Even and odd sizes, up to the longest rows of released models; the first position is 0."""
    got = sinusoids(jnp.arange(1024)[None], size, jnp.dtype("float32"), paper=True)[0]
    assert_allclose(got, waves(1024, size), atol=1e-4)
    assert_allclose(got[:20], waves(20, size), atol=2e-6)
    assert_array_equal(got[0], [0.0] * (size - size // 2) + [1.0] * (size // 2))


# --- folders -----------------------------------------------------------------------------------------------------


def test_a_bare_bart_is_read(tmp_path):
    """As bart-base and bart-large are published: names without a prefix, copies of the table, fairseq's version, no bias of
    logits, which are zeros then."""

    def bare(tensors):
        names = {k.removeprefix("model."): v for k, v in tensors.items() if k != BIAS}
        copies = {f"{side}.embed_tokens.weight": names["shared.weight"] + 0 for side in ("encoder", "decoder")}
        return names | copies | {"encoder.version": np.ones(1, np.float32)}

    folder = copy("bart", tmp_path / "f", bare, architectures=["BartModel"])
    whole, source = HuggingFace(FIXTURES / "bart"), HuggingFace(folder)
    assert source.config == whole.config and source.shapes == whole.shapes
    for name in source.shapes:
        assert_array_equal(source.read(name), np.zeros(101) if name == "logits_bias" else whole.read(name))


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_stored_sinusoids_are_not_read(kind, tmp_path):
    """Old releases have their tables, and the output matrix."""

    def old(tensors):
        tables = {f"model.{side}.embed_positions.weight": waves(17, 24).astype(np.float32) for side in ("encoder", "decoder")}
        return tensors | tables | {"lm_head.weight": tensors["model.shared.weight"] + 0}

    assert HuggingFace(copy(kind, tmp_path / "f", old)).shapes == HuggingFace(FIXTURES / kind).shapes


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("bart", dict(architectures=["BartForSequenceClassification"]), "did you mean 'BartForConditionalGeneration'?"),
        ("bart", dict(activation_function="gelu_fast"), "no activation 'gelu_fast' here; did you mean 'gelu'?"),
        ("bart", dict(d_model=25), "d_model=25 is no multiple of encoder_attention_heads=3"),
        ("bart", dict(decoder_ffn_dim=29), "decoder_ffn_dim=29: only as encoder_ffn_dim=28"),
        ("bart", dict(tie_word_embeddings=False), "tie_word_embeddings=false is not supported, only true"),
        ("bart", dict(scale_embedding=None), "scale_embedding is null; left out, it would be false"),
        ("bart", dict(max_position_embeddings=16), "model.decoder.embed_positions.weight is [19, 24], expected [18, 24]"),
        ("bart", dict(max_position_embeddings=0), "first=2: must be below rows=2"),
        ("mbart", dict(scale_embedding="yes"), 'scale_embedding is "yes"; expected bool'),
        (
            "marian",
            dict(share_encoder_decoder_embeddings=False),
            "share_encoder_decoder_embeddings=false is not supported, only true",
        ),
        ("marian", dict(decoder_vocab_size=99), "decoder_vocab_size=99 is not supported, only 101"),
        ("pegasus", dict(encoder_layers="2"), 'encoder_layers is "2"; expected int'),
        ("pegasus", dict(model_type="pegasusx"), "no model of type 'pegasusx' here; did you mean 'pegasus'?"),
    ],
)
def test_a_folder_of_another_model_is_refused(name, settings, error, tmp_path):
    """In one line, with the setting, its value and what would do."""
    assert_refused(copy(name, tmp_path / "f", **settings), error)


def test_what_none_of_them_has_is_not_written():
    """A Pegasus with a norm on its embeddings is of no class."""
    config = HuggingFace(FIXTURES / "pegasus").config
    with pytest.raises(InterchangeError, match=r"no Pegasus of Hugging Face is like this model: inputs\.norm=True"):
        INTERCHANGE.write_config(changed(config, {"inputs.norm": True}))


def test_rows_beyond_the_table_of_positions_are_refused():
    """A text, and a continuation: past its last row a table would give that row again."""
    source = HuggingFace(FIXTURES / "bart")
    model = ours.abstract(source.config)
    ids = {"inputs": jax.ShapeDtypeStruct((1, 17), jnp.int32)}
    jax.eval_shape(lambda m, b: m.start(b, 1, 17), model, ids)
    with pytest.raises(UserError, match=r"a row of 18 tokens: .*positions\.rows=19.* has 17"):
        jax.eval_shape(lambda m, b: m.start(b, 1, 18), model, ids)
    with pytest.raises(UserError, match="a row of 18 tokens"):
        jax.eval_shape(lambda m, b: m.start(b, 1, 17), model, {"inputs": jax.ShapeDtypeStruct((1, 18), jnp.int32)})


def test_a_vocabulary_goes_with_a_bart(tmp_path):
    """BART's tokenizer.json, of RoBERTa's kind: <s> and </s> stand around a text, and the folder that is written says so."""
    folder = copy("bart", tmp_path / "in")
    train_roberta(["bada felu"], folder / "tokenizer.json", 263)
    source = HuggingFace(folder)
    huggingface.write_folder(source, tmp_path / "out")
    ids = Tokenizer(tmp_path / "out").whole("bada felu")
    assert (ids[0], ids[-1]) == (0, 2) and len(ids) > 3
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["decoder_start_token_id"], written["eos_token_id"]) == (2, 2)
    assert HuggingFace(tmp_path / "out").config == source.config
