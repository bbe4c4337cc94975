"""Hugging Face folders: the outputs of `transformers`, onto any mesh, and back to the same tensors.

The fixtures were made by `transformers` (make parity): random models of odd sizes, inputs, outputs.
"""

import dataclasses
import json
import shutil
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file, save_file

from data.vocabularies.tokenizers import Tokenizer
from models.families import family_of
from models.gpt.config import GptConfig
from models.interchange import InterchangeError, tensors
from models.parts.attention.config import GroupedQuery, Rotary
from models.parts.heads_config import Classification, MaskedLm, SentenceEmbedding, Span, Tagging
from models.parts.nested import changed
from models.parts.transformer_config import Dense, Output
from models.sharding.component import Component, make_mesh
from models.sharding.layouts import LAYOUTS
from models.sharding.params import ParamInfo, describe
from tests.helpers.archives import released_weights
from tests.helpers.masked_vocabularies import train_roberta
from tests.parity import ours
from tests.parity.cases import CASES, GIVEN, SENTENCES
from tests.parity.live import FIXTURES
from trainers.weights import huggingface, load_any
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace

# The first case of each class of `transformers`, and of each decoder of a picture; further variants are for `make test-all`.
FIRST = {
    (case.architecture, case.settings.get("decoder", {}).get("model_type")): name for name, case in reversed(CASES.items())
}.values()
# Mixtures whose dense kin is one of them, and whose programs are the largest.
LARGE = ("nllb_moe", "switch")
BY_CLASS = [name if name in FIRST and name not in LARGE else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.integration
@pytest.mark.parametrize("name", BY_CLASS)
def test_outputs_are_those_of_transformers(name):
    """Logits, hidden vectors, spans: within 1e-4 in float32 at every token."""
    expected = load_file(FIXTURES / name / "expected.safetensors")
    given = {k: expected.pop(k) for k in GIVEN if k in expected}
    got = ours.outputs(HuggingFace(FIXTURES / name), given)
    assert ours.distance(got, expected, given["mask"]) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_what_was_read_is_written_again(name, tmp_path):
    """Import, then export: the same tensors by name, bit for bit, and a config that reads the same.

    Only what no output depends on is left out: a bare BertModel's pooler, and what a mapping says is not needed.
    """
    source = HuggingFace(FIXTURES / name)
    huggingface.write_folder(source, tmp_path / "out")
    want, changed = (load_file(folder / "model.safetensors") for folder in (FIXTURES / name, tmp_path / "out"))
    interchange = huggingface.interchange_for(source.config.family)
    want = {k: v for k, v in want.items() if interchange.canonical_name(source.config, k)}
    if name in ("bert", "roberta", "xlm_roberta", "albert", "mpnet"):
        want = {k: v for k, v in want.items() if not k.startswith("pooler.")}
    if name == "deberta_masked_lm_new":  # whose head is written by its other names
        want = {interchange.canonical_name(source.config, k) or k: v for k, v in want.items()}
    assert changed.keys() == want.keys()
    for key, tensor in want.items():
        assert_array_equal(changed[key], tensor, err_msg=key)
    written = json.loads((tmp_path / "out/config.json").read_text())
    # An mT5 is a T5 1.1 of another vocabulary, an XLM-R such a RoBERTa, and they are written as those.
    alike = "M" if name == "mt5" else "XLM" if name.startswith("xlm_roberta") else ""
    assert written["architectures"][0] == source.theirs["architectures"][0].removeprefix(alike)
    assert HuggingFace(tmp_path / "out").config == source.config


@pytest.mark.parametrize(("name", "padding"), [("roberta_masked_lm", 1), ("roberta_tagging", 4)])
def test_a_vocabulary_leaves_the_id_of_padding(name, padding, tmp_path):
    """RoBERTa counts positions from padding's id, which stays as the model's settings have it beside any vocabulary; that is
    written with its special tokens by name."""
    folder = copy(name, tmp_path / "in")
    train_roberta(["bada felu"], folder / "tokenizer.json", 263)
    source = HuggingFace(folder)
    assert source.vocabulary == folder
    huggingface.write_folder(source, tmp_path / "out")
    written, named = (json.loads((tmp_path / "out" / n).read_text()) for n in ("config.json", "tokenizer_config.json"))
    assert (written["pad_token_id"], written["eos_token_id"]) == (padding, 2)
    assert (named["cls_token"], named["sep_token"], named["mask_token"]) == ("<s>", "</s>", "<mask>")
    assert HuggingFace(tmp_path / "out").config == source.config


def test_shards_are_one_model(tmp_path):
    """Files of at most the size asked for, an index that names every tensor once, and the same parameters when read."""
    source = HuggingFace(FIXTURES / "gpt2")
    huggingface.write_folder(source, tmp_path / "out", max_shard_bytes=20_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert all(sum(x.nbytes for x in load_file(f).values()) <= 20_000 for f in files)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: f.name for f in files for name in load_file(f)}
    again = HuggingFace(tmp_path / "out")
    assert again.shapes == source.shapes
    for name in source.shapes:
        assert_array_equal(again.read(name, ()), source.read(name, ()))


def copy(name: str, to: Path, change=None, **settings) -> Path:
    """A fixture, its tensors changed, and settings of its config.json; None takes one out."""
    shutil.copytree(FIXTURES / name, to)
    if change:
        save_file(change(load_file(to / "model.safetensors")), to / "model.safetensors")
    config = json.loads((to / "config.json").read_text()) | settings
    (to / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return to


def test_names_of_old_releases_are_understood(tmp_path):
    """Without the model's prefix, gamma and beta for weight and bias, buffers that can be computed, copies of tied tensors."""

    def old_gpt2(tensors):
        bare = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        mask = np.ones((1, 1, 4, 4), np.float32)
        return bare | {"h.0.attn.bias": mask, "h.1.attn.masked_bias": mask[0, 0, 0, :1], "lm_head.weight": bare["wte.weight"] + 0}

    def old_bert(tensors):
        gamma = {
            k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
            for k, v in tensors.items()
        }
        assert gamma.keys() != tensors.keys()
        table = tensors["bert.embeddings.word_embeddings.weight"]
        ids = np.arange(23)[None]
        bias = tensors["cls.predictions.bias"].astype(np.float64)
        copies = {"cls.predictions.decoder.weight": table + 0, "cls.predictions.decoder.bias": bias}
        return gamma | copies | {"bert.embeddings.position_ids": ids}

    for name, change in {"gpt2": old_gpt2, "bert_pretraining": old_bert}.items():
        want, renamed = HuggingFace(FIXTURES / name), HuggingFace(copy(name, tmp_path / name, change))
        assert renamed.shapes == want.shapes
        for key in want.shapes:
            assert_array_equal(renamed.read(key), want.read(key))


@pytest.mark.parametrize("name", ["gpt2_untied", "llama"])
@pytest.mark.parametrize("tied", [True, None], ids=["tied", "unsaid"])
def test_an_output_matrix_unlike_the_embeddings_is_not_dropped(name, tied, tmp_path):
    """Whatever config.json says of a folder with both, its logits are those of `transformers`, which does not tie them."""
    folder = copy(name, tmp_path / "both", tie_word_embeddings=tied)
    source = HuggingFace(folder)
    assert source.config == HuggingFace(FIXTURES / name).config and not source.config.output.tied
    expected = load_file(folder / "expected.safetensors")
    given = {k: expected.pop(k) for k in ("tokens", "mask")}
    assert ours.distance(ours.outputs(source, given), expected, given["mask"]) < 1e-4


@pytest.mark.parametrize("tied", [True, None], ids=["tied", "unsaid"])
@pytest.mark.parametrize(
    ("copied", "original"),
    [
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_a_decoder_unlike_what_it_repeats_is_refused(copied, original, tied, tmp_path):
    """Our BERT has one matrix and one bias for both: where one number of a copy differs, the line names the two tensors."""

    def change(tensors):
        other = tensors[original] + 0
        other.flat[-1] += 1
        return tensors | {copied: other}

    folder = copy("bert_masked_lm", tmp_path / "both", change, tie_word_embeddings=tied)
    with pytest.raises(InterchangeError) as caught:
        HuggingFace(folder)
    assert f"{copied} differs from {original}, whose copy it has to be" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_copies_are_compared_without_being_held(tmp_path):
    """Opening a folder whose output matrix repeats the table of 8 MB takes less memory than that, though both are read."""
    config = GptConfig(
        vocab=65536,
        layers=1,
        model_dim=32,
        attention=GroupedQuery(heads=2, head_dim=16),
        positions=Rotary(),
        feed_forward=Dense(hidden_dim=8, gated=True),
    )
    huggingface.write_folder(weights.Arrays(config, ours.fresh(config, 0)), tmp_path / "hf")
    tensors = load_file(tmp_path / "hf/model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": table + 0}, tmp_path / "hf/model.safetensors")
    tracemalloc.start()
    source = HuggingFace(tmp_path / "hf")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert source.config.output.tied and "softmax.weight" not in source.shapes
    assert peak < table.nbytes


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.bool_], ids=lambda dtype: dtype.__name__)
def test_integers_are_no_weights(dtype, tmp_path):
    """A weight stored as integers or truth values needs scales that we do not read: the tensor and its dtype are named."""
    name = "transformer.h.1.attn.c_attn.weight"
    folder = copy("gpt2", tmp_path / "bad", lambda t: t | {name: t[name].astype(dtype)})
    with pytest.raises(InterchangeError, match=rf"{name} holds [IUB]\w+, weights are F64, F32, F16, BF16") as caught:
        HuggingFace(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_quantized_folders_are_refused_by_name(tmp_path):
    folder = copy("llama", tmp_path / "bad", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(InterchangeError, match=r'quantization_config=\{"quant_method": "gptq".* is not supported, only null$'):
        HuggingFace(folder)


def test_numbers_that_are_none_are_refused(tmp_path):
    """The tensor with a NaN is named when the parameter that it is in is read, a layer at a time; the others are read."""

    def change(tensors):
        tensors["transformer.h.1.mlp.c_fc.weight"][3, 4] = np.nan
        return tensors

    source = HuggingFace(copy("gpt2", tmp_path / "bad", change))
    assert np.isfinite(source.read("decoder.ffn.wi", (slice(0, 1),))).all()
    with pytest.raises(InterchangeError, match=r"bad: transformer\.h\.1\.mlp\.c_fc\.weight holds NaN or infinite numbers$"):
        source.read("decoder.ffn.wi")


def test_a_bare_decoder_is_said_to_lack_an_output(tmp_path):
    """A folder of LlamaModel that does not tie has no output matrix: the line says so, and what to do; tied, it is read."""

    def bare(tensors):
        return {k.removeprefix("model."): v for k, v in tensors.items() if k != "lm_head.weight"}

    folder = copy("llama", tmp_path / "bad", bare, architectures=["LlamaModel"])
    with pytest.raises(InterchangeError) as caught:
        HuggingFace(folder)
    for part in ("holds no output matrix (lm_head.weight)", "set tie_word_embeddings to true", "model.embed_tokens.weight"):
        assert part in str(caught.value)
    assert HuggingFace(copy("llama", tmp_path / "good", bare, tie_word_embeddings=True)).config.output.tied


def test_a_tensor_under_two_names_is_refused(tmp_path):
    """With and without the model's prefix it is one tensor: which of the two would be read is not left to their order."""
    folder = copy("gpt2", tmp_path / "bad", lambda t: t | {"wte.weight": t["transformer.wte.weight"] + 1})
    with pytest.raises(InterchangeError, match=r"transformer\.wte\.weight is there twice$"):
        HuggingFace(folder)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            lambda t: {k: v for k, v in t.items() if ".c_attn." not in k},
            ["transformer.h.0.attn.c_attn.bias is missing, expected [81]", "c_attn.weight is missing, expected [27, 81]"],
        ),
        (
            lambda t: t | {"transformer.wpe.weight": np.zeros((20, 27), np.float32)},
            ["transformer.wpe.weight is [20, 27], expected [23, 27]"],
        ),
        (lambda t: t | {"extra.weight": np.zeros(3, np.float32)}, ["extra.weight [3] was not expected"]),
        (lambda t: {}, ["; and 32 more"]),
    ],
    ids=["missing", "shape", "unexpected", "many"],
)
def test_wrong_tensors_are_listed_with_their_shapes(change, parts, tmp_path):
    """By their names, with the shapes expected and found, in one line; of many, the first eight."""
    with pytest.raises(InterchangeError) as caught:
        HuggingFace(copy("gpt2", tmp_path / "bad", change))
    assert all(part in str(caught.value) for part in parts), caught.value
    assert len(str(caught.value).splitlines()) == 1


def broken(folder: Path, how: str) -> Path:
    huggingface.write_folder(HuggingFace(FIXTURES / "gpt2"), folder, max_shard_bytes=40_000)
    first = sorted(folder.glob("model-*.safetensors"))[0]
    index = folder / huggingface.INDEX
    match how:
        case "shard":
            first.unlink()
        case "cut":
            first.write_bytes(first.read_bytes()[:-100])
        case "index":
            index.write_text(index.read_text()[:-10])
        case "outside":
            index.write_text(index.read_text().replace(first.name, "../secret.safetensors"))
        case "lost":
            index.write_text(index.read_text().replace('"transformer.wte.weight"', '"transformer.wtf.weight"'))
        case "config":
            (folder / "config.json").write_text("{")
        case "type":
            (folder / "config.json").write_text('{"model_type": "gpt_neo"}')
        case "pickle":
            for file in folder.glob("model*"):
                file.unlink()
            (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
        case "empty":
            for file in folder.glob("model*"):
                file.unlink()
    return folder


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("shard", ["model-00001-of-", "is missing"]),
        ("cut", ["model-00001-of-", "cut short"]),
        ("index", ["model.safetensors.index.json is damaged"]),
        ("outside", ["../secret.safetensors", "is no file of the folder"]),
        ("lost", ["1 tensors of model.safetensors.index.json are in no file", "transformer.wtf.weight"]),
        ("config", ["config.json is damaged"]),
        ("type", ["'gpt_neo'", "did you mean 'gpt_neox'?"]),
        ("pickle", ["pytorch_model.bin is a pickle", "runs whatever code"]),
        ("empty", ["neither model.safetensors nor model.safetensors.index.json"]),
    ],
)
def test_a_broken_folder_is_refused_in_one_line(how, parts, tmp_path):
    """Missing shards, truncated files, a damaged index, pickles: the file is named, and nothing else is printed."""
    with pytest.raises(InterchangeError) as caught:
        load_any.open_weights(broken(tmp_path / "out", how))
    assert all(part in str(caught.value) for part in parts), caught.value
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("setting", ["num_hidden_layers", "num_local_experts"])
def test_layers_and_experts_beyond_any_model_are_refused_before_they_are_named(tmp_path, setting):
    """A name is made for each: with 10^9 of them memory would end first."""
    with pytest.raises(InterchangeError, match=rf"{setting} is 1000000000, and at most 16,384 in any model"):
        HuggingFace(copy("mixtral", tmp_path / "bad", lambda t: t, **{setting: 10**9}))
    with pytest.raises(InterchangeError, match=r"16,384 layers of 16,384 experts are no model's"):
        tensors.matrix("{layer}.{expert}", ("w", (1, 1)), layers=2**14, experts=2**14).names()


def test_what_holds_no_weights_is_refused(tmp_path, monkeypatch):
    """A pickle by its name alone; anything else with what was expected, and how what a package has is fetched."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    (tmp_path / "model.ckpt").write_bytes(b"")
    lines = {
        "model.ckpt": "is a pickle",
        "none": "no weights at .* no such file or folder$",
        ".": "expected a release",
        "weights/smollm2_135m": "run: python -m scripts.prepare_data smollm2_135m, or scripts.train with --prepare$",
        "weights/smolm2_135m": "did you mean 'smollm2_135m'",
    }
    for path, part in lines.items():
        with pytest.raises(InterchangeError, match=part):
            load_any.open_weights(tmp_path / path)


def test_a_folder_is_never_overwritten(tmp_path):
    with pytest.raises(InterchangeError, match="exists; choose a new folder"):
        huggingface.write_folder(HuggingFace(FIXTURES / "gpt2"), tmp_path)


# --- onto a model, onto a mesh ------------------------------------------------------------------------------------


def parameters(config, component: Component | None = None) -> list[ParamInfo]:
    scope = component or ours.WHERE
    return list(describe(jax.eval_shape(lambda key: family_of(config).model(config, key, scope), jax.random.key(0))))


class Counted:
    """Weights that remember how many numbers were asked of each parameter."""

    def __init__(self, source: weights.Weights):
        self.config, self.shapes, self.vocabulary = source.config, source.shapes, source.vocabulary
        self.stored = source.stored
        self.source, self.asked = source, dict.fromkeys(source.shapes, 0)

    def read(self, name, index):
        piece = self.source.read(name, index)
        self.asked[name] += piece.size
        return piece


def test_each_device_reads_its_own_piece(tmp_path):
    """Cut over eight devices, every number is read once, and every parameter is what it was."""
    config = GptConfig(
        vocab=64,
        layers=2,
        model_dim=32,
        attention=GroupedQuery(heads=8, head_dim=6),
        positions=Rotary(),
        feed_forward=Dense(hidden_dim=48, gated=True),
        output=Output(tied=False),
    )
    params = ours.fresh(config, 0)
    huggingface.write_folder(weights.Arrays(config, params), tmp_path / "hf")
    layout = LAYOUTS["fully_sharded"](8, 1)
    mesh = make_mesh(layout, jax.devices()[:8])
    infos = parameters(config, Component(layout, mesh=mesh))
    shardings = {info.name: jax.sharding.NamedSharding(mesh, info.spec()) for info in infos}
    source = Counted(HuggingFace(tmp_path / "hf"))
    loaded = weights.load(source, shardings, {i.name: i.shape for i in infos}, np.float32)
    for info in infos:
        copies = 8 * info.shard_size // info.size
        assert source.asked[info.name] <= copies * info.size
        assert loaded[info.name].sharding == shardings[info.name]
        assert_array_equal(np.asarray(loaded[info.name]), params[info.name])
    assert source.asked["decoder.attention.q"] == params["decoder.attention.q"].size


def shapes_of(config) -> dict[str, tuple[int, ...]]:
    return {info.name: info.shape for info in parameters(config)}


@pytest.mark.parametrize(
    ("fixture", "head", "taken"),
    [
        ("bert_pretraining", Classification(labels=5), {"head.pooler", "head.pooler_bias"}),
        ("bert_pretraining", Tagging(labels=5), set()),
        ("bert", Classification(labels=2), {"head.pooler", "head.pooler_bias"}),
        ("bert_tagging", Tagging(labels=7), {"head.weight", "head.bias"}),
        ("bert_tagging", Classification(labels=7, pooling="mean"), set()),
        ("bert_classification", Classification(labels=4), {"head.pooler", "head.pooler_bias"}),
        ("bert_span", Tagging(labels=2), set()),
        ("bert_masked_lm", SentenceEmbedding(), set()),
        ("bert_span", MaskedLm(), set()),
        ("bert_span", Span(), {"head.weight", "head.bias"}),
    ],
    ids=lambda value: type(value).__name__ if dataclasses.is_dataclass(value) else None,
)
def test_a_head_is_taken_from_its_like(fixture, head, taken):
    """Fine-tuning takes the encoder; of the head only the pooler, unless both are of one kind and size."""
    source = HuggingFace(FIXTURES / fixture)
    config = dataclasses.replace(source.config, head=head)
    shapes = shapes_of(config)
    weights.check(shapes, source)
    names = weights.fitting(config, shapes, source)
    assert {name for name in names if name.startswith("head.")} == taken
    assert {name for name in names if not name.startswith("head.")} == {n for n in shapes if not n.startswith("head.")}


def test_another_model_is_refused():
    """Other sizes by the names and shapes of parameters; the same sizes with another function by the setting."""
    source = HuggingFace(FIXTURES / "bert")
    larger = changed(source.config, {"layers": 3, "embedding.types": 3})
    with pytest.raises(InterchangeError) as caught:
        weights.check(shapes_of(larger), source)
    assert "encoder.attention.k is [2, 27, 3, 9], expected [3, 27, 3, 9]" in str(caught.value)
    assert "and 9 more" in str(caught.value)
    other = changed(source.config, {"feed_forward.activation": "gelu_tanh"})
    weights.check(shapes_of(other), source)
    with pytest.raises(InterchangeError, match=r"'gelu', this one has 'gelu_tanh'; set --model\.feed_forward\.activation gelu"):
        weights.fitting(other, shapes_of(other), source)
    shared = HuggingFace(FIXTURES / "albert")  # whose layers have one shape at any depth
    deeper = changed(shared.config, {"layers": 8})
    weights.check(shapes_of(deeper), shared)
    with pytest.raises(InterchangeError, match=r"layers=4, this one has 8; set --model\.layers 4"):
        weights.fitting(deeper, shapes_of(deeper), shared)


# --- released weights ---------------------------------------------------------------------------------------------


@pytest.mark.network
def test_minilm_embeds_as_transformers_does():
    """Released MiniLM gives the unit vectors of `transformers` to 1e-4, and our vocabulary its ids; paraphrases are nearer to
    each other than to any stranger."""
    folder = released_weights("minilm_l6")
    expected = load_file(FIXTURES / "minilm.safetensors")
    tokenizer = Tokenizer(folder)
    for text, ids, mask in zip(SENTENCES, expected["tokens"], expected["mask"], strict=True):
        assert [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] == ids[mask > 0].tolist()
    got = ours.outputs(HuggingFace(folder), {k: expected[k] for k in ("tokens", "mask", "types")})["embedding"]
    assert_allclose(got, expected["embedding"], atol=1e-4)
    near = got @ got.T
    assert near[0, 1] > 0.5 and near[2, 3] > 0.5
    for first, second in ((0, 1), (2, 3)):
        strangers = np.delete(near[[first, second]], [first, second], axis=1)
        assert near[first, second] > strangers.max() + 0.2
