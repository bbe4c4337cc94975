"""The zoo's side of the comparison with `transformers`: the same outputs, by the same names."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.translation.config import Translate
from data.translation.decoding import TranslationDecoding
from data.vocabularies.multilingual import Multilingual
from models.bert.config import BertConfig
from models.clip.config import ClipConfig
from models.conformer.config import ConformerConfig, StackedMel, Waveform
from models.execution import Execution
from models.families import family_of
from models.gpt.config import GptConfig
from models.interchange.settings import value_at
from models.m2m100.config import M2M100Config
from models.parts.attention.config import Learned
from models.parts.decoding import beam_search
from models.parts.heads_config import Classification, Detection, MaskedLm, SentenceEmbedding, Span, Tagging
from models.parts.nested import changed
from models.parts.transformer_config import EncoderDecoderConfig
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.layout import Layout
from models.sharding.params import describe, to_params, with_params
from models.vit.config import VitConfig
from trainers.inference.decoder import Decoder
from trainers.inference.load import load
from trainers.weights import source as weights
from trainers.weights.load_any import open_weights
from trainers.weights.source import Weights

WHERE = Component(Layout(name="one_device", mesh=(("all", 1),)))


def abstract(config: Any) -> Any:
    """A model with shapes for parameters."""
    return jax.eval_shape(lambda key: family_of(config).model(config, key, WHERE), jax.random.key(0))


def fresh(config: Any, seed: int) -> dict[str, Any]:
    """Random parameters, none of them zeros or ones."""
    params = to_params(abstract(config))
    rng = np.random.default_rng(seed)

    def drawn(path: Any, x: Any) -> np.ndarray:
        value = rng.normal(size=x.shape, scale=0.3).astype(np.float32)
        return np.abs(value) + 0.5 if path[-1].key == "variance" else value

    return jax.tree_util.tree_map_with_path(drawn, params)


def model(source: Weights) -> Any:
    """The model that weights are of, all of its parameters among them."""
    empty = abstract(source.config)
    shapes = {info.name: info.shape for info in describe(empty)}
    weights.check(shapes, source)
    assert set(weights.fitting(source.config, shapes, source)) == set(shapes)
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return with_params(empty, weights.load(source, dict.fromkeys(shapes, host), shapes, np.float32))


def batch(given: dict[str, np.ndarray], from_first: bool = False) -> dict[str, jax.Array]:
    """Their inputs as ours: an example a row, every position a slot. Positions count from the row's beginning, or from its first
    token."""
    if "images" in given and "tokens" in given:
        rows = len(given["images"])
        arrays = {"images": given["images"][:, None], "images_segments": np.ones((rows, 1), np.int32)}
        arrays |= {"targets": given["tokens"], "targets_segments": given["mask"]}
        return {k: jnp.asarray(v) for k, v in arrays.items()}
    if "images" in given and "targets" in given:
        rows, length = given["targets"].shape
        places = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
        arrays = {"images": given["images"][:, None], "images_segments": np.ones((rows, 1), np.int32)}
        arrays |= {"targets": given["targets"], "targets_positions": places, "targets_segments": np.ones_like(places)}
        return {k: jnp.asarray(v) for k, v in arrays.items()}
    if "images" in given:
        rows = len(given["images"])
        arrays = {"labels": np.zeros((rows, 2), np.int32), "label_weights": np.eye(2, dtype=np.float32)[[0] * rows]}
        return {k: jnp.asarray(v) for k, v in ({"images": given["images"]} | arrays).items()}
    if "samples" in given:
        rows, length = given["samples"].shape
        more = ((0, 0), (0, -length % Waveform.stride))  # a whole number of positions
        segments = np.pad(np.ones((rows, length), np.int32), more)
        arrays = {"frames": np.pad(given["samples"], more)[..., None], "frames_segments": segments}
        return {k: jnp.asarray(v) for k, v in arrays.items()}
    if "pairs" in given:
        rows, length, width = given["pairs"].shape
        segments = np.repeat(given["mask"], StackedMel.stride, axis=1)
        frames = given["pairs"].reshape(rows, -1, width // StackedMel.stride)
        return {"frames": jnp.asarray(frames), "frames_segments": jnp.asarray(segments)}
    if "frames" in given:
        rows, length = given["targets"].shape
        places = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
        ones = {"frames_segments": given["frames"].shape[:2], "targets_segments": (rows, length)}
        arrays = {name: given[name] for name in ("frames", "targets")} | {"targets_positions": places}
        arrays |= {name: np.ones(shape, np.int32) for name, shape in ones.items()}
        return {k: jnp.asarray(v) for k, v in arrays.items()}
    if "targets" in given:
        return _two_sides(given, from_first)
    rows, length = given["tokens"].shape
    places = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    counted = np.maximum(np.cumsum(given["mask"], axis=1, dtype=np.int32) - 1, 0) if from_first else places
    results = {"tokens": given["tokens"], "segments": given["mask"], "positions": counted, "slots": places}
    if "types" in given:
        results["types"] = given["types"]
    return {k: jnp.asarray(v) for k, v in results.items()}


def _two_sides(given: dict[str, np.ndarray], from_first: bool) -> dict[str, jax.Array]:
    """A source and a target a row, with padding on either side; a row without a target has a segment too, whose logits count."""
    sides = {"inputs": (given["tokens"], given["mask"]), "targets": (given["targets"], np.ones_like(given["real"]))}
    arrays = {}
    for side, (ids, real) in sides.items():
        counted = real if from_first else np.ones_like(real)
        places = np.maximum(np.cumsum(counted, axis=1, dtype=np.int32) - 1, 0)
        arrays |= {side: ids, f"{side}_segments": real, f"{side}_positions": places}
    return {k: jnp.asarray(v) for k, v in arrays.items()}


def outputs(source: Weights, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the model's outputs, by the names of `transformers`."""
    config = source.config
    m, b = model(source), batch(given, from_first=_counts_from_first(config))
    if isinstance(config, EncoderDecoderConfig):
        results = {"logits": jax.jit(lambda m, b: m(b))(m, b)}
        searches = (("greedy", 1, 1),) if given.keys() & {"frames", "images"} else (("greedy", 1, 1), ("beams", 3, 10_000))
        for name, beams, eos in searches:
            results[name] = _decoded(m, b, beams, eos)
    elif isinstance(config, ConformerConfig):
        positions, name = given["mask"].shape[1], "logits" if config.vocab else "last_hidden_state"
        results = {name: jax.jit(lambda m, b: _heard(m, b))(m, b)[:, :positions]}
    elif isinstance(config, ClipConfig):
        results = jax.jit(_compared)(m, b)
    elif isinstance(config, VitConfig):
        results = jax.jit(lambda m, b: {"logits": m(b)} if config.head.classes else _features(m, b))(m, b)
    elif isinstance(config, GptConfig):
        results = {"logits": jax.jit(lambda m, b: m(b))(m, b)}
        if "prompts" in given:
            results["greedy"] = _continued(m, given)
    else:
        assert isinstance(config, BertConfig)
        results = jax.jit(lambda m, b: _bert(config.head, m, b))(m, b)
    return {k: np.asarray(v) for k, v in results.items()}


def _counts_from_first(config: Any) -> bool:
    """Whether positions count from a row's first token, as in RoBERTa and M2M-100, not from its beginning."""
    if isinstance(config, BertConfig):
        return isinstance(config.positions, Learned) and config.positions.first > 0
    if isinstance(config, GptConfig):
        return isinstance(config.positions, Learned) and config.positions.first > 0
    return isinstance(config, M2M100Config) and not config.logits_bias


def _heard(m: Any, b: dict[str, jax.Array]) -> jax.Array:
    x_BSM = m.features(b)[0]
    return m.head.logits(x_BSM) if m.c.vocab else x_BSM


def _compared(m: Any, b: dict[str, jax.Array]) -> dict[str, jax.Array]:
    nothing_random = Context.evaluation()
    pictures_XD, texts_XD = m.picture_vectors(b, nothing_random)[0], m.text_vectors(b, nothing_random)
    logits_XX = m.similarities(pictures_XD, texts_XD)
    loss = m.loss(b, nothing_random).value
    return {"logits_per_image": logits_XX, "image_embeds": pictures_XD, "text_embeds": texts_XD, "loss": loss}


def deeper(config: Any) -> Any:
    """The same model with twice as many layers."""
    stacks = ("vision.layers", "text.layers") if isinstance(config, ClipConfig) else ("layers",)
    return changed(config, {path: 2 * value_at(config, path) for path in stacks})


def _features(m: Any, b: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {"last_hidden_state": m.features(b), "pooler_output": m(b)}


def _decoded(m: Any, b: dict[str, jax.Array], beams: int, eos: int) -> jax.Array:
    """The best of so many hypotheses of eight tokens each, by their log-probabilities."""

    @jax.jit
    def search(m, b):
        state, real_B = m.start(b, beams, 8), jnp.ones(len(b["targets"]), bool)
        return beam_search(m, state, real_B, beams=beams, steps=8, vocab=m.target_vocab, alpha=0.0, eos=eos)[0][:, 0]

    return search(m, b)


def _continued(m: Any, given: dict[str, np.ndarray]) -> jax.Array:
    """Eight tokens after each row without its padding, greedily, from a cache of keys and values."""
    lengths = given["prompts"]
    ids = np.zeros_like(given["tokens"])
    for row, tokens, mask in zip(ids, given["tokens"], given["mask"], strict=True):
        row[: mask.sum()] = tokens[mask > 0]

    @jax.jit
    def search(m, b):
        state, real_B = m.start(b, 1, 8), jnp.ones(len(lengths), bool)
        return beam_search(m, state, real_B, beams=1, steps=8, vocab=m.vocab, alpha=0.0, eos=10_000)[0][:, 0]

    return search(m, {"tokens": jnp.asarray(ids), "lengths": jnp.asarray(lengths)})


def translations(folder: Path) -> list[dict[str, Any]]:
    """Returns what `transformers` made of each text with a translator's folder."""
    return json.loads((folder / "translations.json").read_text("utf-8"))


def mistranslated(folder: Path) -> list[tuple[Any, Any]]:
    """Returns differences from a translator's translations.json, (ours, theirs): of ids, and of texts, greedily and by beams."""
    wanted, decoding, pairs = translations(folder), TranslationDecoding(folder), []
    vocabulary, most, own = decoding.vocabularies, decoding.length, Multilingual(folder)
    sentences = [decoding.example(w["from"], w["text"], w["to"]) for w in wanted]
    for s, w in zip(sentences, wanted, strict=True):
        pairs.append((vocabulary.source(s.lang, s.source, most), w["ids"]))
        if not own.tag_last:  # in our targets, also of the first NLLB, the language comes first
            pairs.append((own.target(s.to, s.source), w["labels"]))
    weights = open_weights(folder)
    served = load(weights, Execution())
    for name, beams, eos in (("greedy", 1, decoding.eos), ("beams", 3, 10_000)):
        decoding.eos = eos
        config = Translate(beams=beams, max_length=8, length_penalty=0.0, batch_size=5)
        texts = Decoder(served.model, config, decoding)(served.params, sentences)
        pairs += [(text, decoding.decode(w[name])) for text, w in zip(texts, wanted, strict=True)]
    return [(mine, theirs) for mine, theirs in pairs if mine != theirs]


def _bert(head: Any, m: Any, b: dict[str, jax.Array]) -> dict[str, jax.Array]:
    out = m(b)
    match head:
        case MaskedLm(next_sentence=True):
            pooled = jnp.tanh(m.encode(b)[:, 0] @ m.head.pooler[...] + m.head.pooler_bias[...])
            next_logits = pooled @ m.head.next_weight[...] + m.head.next_bias[...]
            return {"prediction_logits": out, "seq_relationship_logits": next_logits}
        case MaskedLm() | Tagging() | Detection():
            return {"logits": out}
        case Classification():
            return {"logits": out[:, 0 if head.pooling == "cls" else out.shape[1] // 2]}  # the middle is real in every row
        case Span():
            return {"start_logits": out[:, 0, :, 0], "end_logits": out[:, 0, :, 1]}
        case SentenceEmbedding():
            real = out.shape[1] // 2  # in every row
            return {"last_hidden_state": m.encode(b), "embedding": out[:, real]}
    raise AssertionError(head)


def distance(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], mask: np.ndarray) -> float:
    """The largest difference of any output, padding left out."""

    def one(name: str) -> float:
        difference = np.abs(ours[name].astype(np.float64) - theirs[name])
        per_token = name not in ("embedding", "seq_relationship_logits", "greedy", "beams") and difference.shape[:2] == mask.shape
        return float(np.max(difference[mask > 0] if per_token else difference))

    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    return max(map(one, ours))
