"""Adapters in PEFT's form: those of PEFT give its logits, those written here are read as they were, others are refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file, save_file

from configs.experiment import Lora
from models.execution import Execution
from models.interchange import InterchangeError
from models.sharding.params import describe, with_params
from trainers import lora
from trainers.inference.load import load
from trainers.plan import abstract_model
from trainers.weights import peft
from trainers.weights.load_any import foreign, open_model, open_weights
from trainers.weights.source import Arrays

FIXTURES = Path(__file__).parents[2] / "fixtures"  # peft/ was made with PEFT 0.21.2 on the models of parity/
BASES = {
    "llama_all_linear": "llama",
    "llama_patterns": "llama",
    "gpt2_fused": "gpt2",
    "falcon_fused": "falcon_grouped",
    "gptj_neighbours": "gptj",
}


def logits(weights, ids: np.ndarray) -> np.ndarray:
    e = dataclasses.replace(foreign(weights.config), execution=Execution(dtype="float32"))
    served = load(weights, e.execution)
    ids_BL = jnp.asarray(ids)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    batch = {"tokens": ids_BL, "segments": jnp.ones_like(ids_BL), "positions": positions}
    return np.asarray(jax.jit(lambda params, batch: with_params(served.model, params)(batch))(served.params, batch))


@pytest.mark.parametrize("name", BASES)
def test_an_adapter_of_peft_gives_its_logits(name):
    """All projections, ranks and scales of their own, a fused projection whose A is shared, in groups too, and heads whose
    neighbouring dimensions are turned: logits are those of PEFT."""
    weights = open_weights(FIXTURES / "peft" / name, FIXTURES / "parity" / BASES[name])
    expected = load_file(FIXTURES / "peft" / name / "expected.safetensors")
    got = logits(weights, expected["ids"])
    assert_allclose(got, expected["logits"], atol=2e-5 * np.abs(expected["logits"]).max())


def adapter(folder: Path, name: str, **config) -> Path:
    """Returns a copy of a fixture's adapter with settings of its own."""
    shutil.copytree(FIXTURES / "peft" / name, folder)
    whole = json.loads((folder / peft.CONFIG).read_text()) | config
    (folder / peft.CONFIG).write_text(json.dumps(whole))
    return folder


# Made with PEFT 0.21.2: the `scaling` of each layer of PeftModel.from_pretrained on the fixture "llama" where it is not
# that of lora_alpha, for adapters of all linear layers with r=4, lora_alpha=6 and this alpha_pattern in this order.
SCALES = json.loads((FIXTURES / "peft" / "scales.json").read_text())
MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "wg": "mlp.gate_proj",
    "wi": "mlp.up_proj",
    "wo": "mlp.down_proj",
}


@pytest.mark.parametrize("case", SCALES)
def test_scales_by_pattern_are_those_of_peft(tmp_path, case):
    """Keys of `alpha_pattern` are regular expressions for the end of a module's name behind a dot, or all of it, and the first
    that matches counts."""
    base, pattern = FIXTURES / "parity" / "llama", SCALES[case]["alpha_pattern"]
    plain = open_weights(base)
    whole = open_weights(FIXTURES / "peft" / "llama_all_linear", base)
    changed = open_weights(
        adapter(tmp_path / "a", "llama_all_linear", alpha_pattern=pattern, use_rslora=SCALES[case]["use_rslora"]), base
    )
    for ours, theirs in MODULES.items():
        name = f"decoder.{'ffn' if ours.startswith('w') else 'attention'}.{ours}"
        for layer in (0, 1):
            at = (slice(layer, layer + 1),)
            scale = SCALES[case]["scales"].get(f"model.layers.{layer}.{theirs}", 3.0 if SCALES[case]["use_rslora"] else 1.5)
            start = plain.read(name, at)
            want = (whole.read(name, at) - start) * (scale / 1.5)
            assert_allclose(changed.read(name, at) - start, want, rtol=1e-3, atol=1e-5, err_msg=f"{theirs} of {layer}")


@pytest.mark.parametrize(
    "change, part",
    [
        ({"alpha_pattern": {"q_proj(": 3}}, r"the pattern 'q_proj\(' cannot be matched: missing \)"),
        ({"alpha_pattern": {"(?=model)q_proj": 3}}, "is not supported there"),
        ({"alpha_pattern": {"q_proj|" * 50_000: 3}}, "it takes too many steps"),
        ({"alpha_pattern": {"q_proj": "3"}}, 'alpha of model.layers.0.self_attn.q_proj is "3", which is no finite number'),
        ({"lora_alpha": float("nan")}, "is NaN, which is no finite number"),
        ({"lora_alpha": None}, "is null, which is no finite number"),
        ({"lora_alpha": 10**400}, "adapter_config.json is damaged"),
        ({"alpha_pattern": ["q_proj"]}, "adapter_config.json is damaged"),
    ],
)
def test_a_scale_that_is_none_is_refused(tmp_path, change, part):
    """An alpha that is no finite number, and an expression that is none or has no end, are one line."""
    with pytest.raises(InterchangeError, match=part):
        open_weights(adapter(tmp_path / "a", "llama_patterns", **change), FIXTURES / "parity" / "llama")


def test_pieces_are_those_of_the_whole():
    """A piece of a merged matrix is the same piece of the whole, cut in layers and in its own dimensions."""
    weights = open_weights(FIXTURES / "peft" / "llama_all_linear", FIXTURES / "parity" / "llama")
    for name in ("decoder.attention.q", "decoder.attention.o", "decoder.ffn.wo"):
        whole = weights.read(name, ())
        for index in ((slice(1, 2),), (slice(0, 2), slice(3, 7)), (slice(1, 2), slice(None), slice(2, 3))):
            assert_allclose(weights.read(name, index), whole[index], rtol=1e-6)


# Models, and adapters that are written of them and read again (also in the table of docs/WEIGHTS.md).
WRITTEN = [
    ("llama", Lora(rank=2, alpha=6.0, targets=("all-linear",))),
    ("gpt2", Lora(rank=2, alpha=6.0, targets=("c_attn", "wo"))),
    ("gpt2", Lora(rank=3, alpha=3.0, targets=("q", "v"))),
    ("falcon_grouped", Lora(rank=2, alpha=6.0, targets=("query_key_value", "dense"))),
    ("switch", Lora(rank=2, alpha=4.0, targets=("wi", "q"))),
    ("byt5", Lora(rank=2, alpha=4.0, targets=("q", "v"))),
    ("hubert", Lora(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))),
    ("wavlm", Lora(rank=2, alpha=4.0, targets=("all-linear",))),
    ("wav2vec2_bert", Lora(rank=2, alpha=4.0, targets=("linear_q", "linear_v"))),
    ("trocr", Lora(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))),
    ("electra_discriminator", Lora(rank=2, alpha=4.0, targets=("query", "value", "output.dense"))),
    ("albert", Lora(rank=2, alpha=4.0, targets=("attention.query", "ffn_output"))),
    ("mpnet_masked_lm", Lora(rank=2, alpha=4.0, targets=("attn.q", "attn.v", "intermediate.dense"))),
    ("deberta_classification", Lora(rank=2, alpha=4.0, targets=("query_proj", "value_proj", "output.dense"))),
    ("dinov2", Lora(rank=2, alpha=4.0, targets=("query", "wi"))),
    ("clip", Lora(rank=2, alpha=4.0, targets=("q_proj", "fc2"))),
]


@pytest.mark.parametrize(("base", "settings"), WRITTEN)
def test_what_is_written_is_read_as_it_was(tmp_path, base, settings):
    """Written and read, adapters of dense, fused and expert matrices give the same merged matrices; others are the base's."""
    weights = open_weights(FIXTURES / "parity" / base)
    e = foreign(weights.config)
    infos = {info.name: info for info in describe(abstract_model(e))}
    rng = np.random.default_rng(0)
    made = {name: rng.normal(size=i.shape).astype(np.float32) for name, i in lora.adapters(infos, settings, e.model).items()}
    whole = {name: np.asarray(weights.read(name, ())) for name in infos}
    folder = peft.write(e.model, whole | made, settings, tmp_path / "adapter", str(FIXTURES / "parity" / base))
    want = lora.merged(whole | made, settings)
    _, merged = open_model(folder)
    changed = 0
    for name, x in want.items():
        assert_allclose(merged.read(name, ()), x, rtol=1e-5, atol=1e-5, err_msg=name)
        changed += bool(np.any(x != whole[name]))
    assert changed == len(made) // 2 > 1


def test_target_modules_as_people_write_them():
    """Modules of `transformers`, parts of their names, our names, and all projections: no table, no output matrix, no router."""

    def names(base: str, *targets: str) -> set[str]:
        e = foreign(open_weights(FIXTURES / "parity" / base).config)
        infos = {info.name: info for info in describe(abstract_model(e))}
        return set(lora.targeted(infos, Lora(rank=1, targets=targets), e.model))

    every = {f"decoder.{m}" for m in ("attention.q", "attention.k", "attention.v", "attention.o", "ffn.wg", "ffn.wi", "ffn.wo")}
    assert names("llama", "all-linear") == every
    assert names("llama", "q_proj", "mlp.down_proj") == names("llama", "q", "wo") == {"decoder.attention.q", "decoder.ffn.wo"}
    assert names("gpt2", "c_attn") == {f"decoder.attention.{m}" for m in "qkv"}
    assert names("gpt2", "attn.c_proj") == {"decoder.attention.o"}
    assert not any("router" in name for name in names("switch", "all-linear"))


@pytest.mark.parametrize(
    "change, part",
    [
        ({"use_dora": True}, "use_dora=true is not supported"),
        ({"bias": "all"}, 'bias="all" is not supported, only "none"'),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_something_new": True}, "use_something_new"),
    ],
)
def test_what_is_more_than_low_rank_is_refused(tmp_path, change, part):
    """A setting by which the model would compute something else is an error that names it."""
    folder = tmp_path / "adapter"
    shutil.copytree(FIXTURES / "peft" / "llama_patterns", folder)
    config = json.loads((folder / peft.CONFIG).read_text())
    (folder / peft.CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(InterchangeError, match=part):
        open_weights(folder, FIXTURES / "parity" / "llama")


def test_odd_tensors_are_refused(tmp_path):
    """A tensor of another kind, a module that the model lacks, one half alone and a wrong shape are errors; so is no base."""
    folder = tmp_path / "adapter"
    shutil.copytree(FIXTURES / "peft" / "llama_patterns", folder)
    tensors = load_file(folder / peft.TENSORS)
    a = next(name for name in tensors if name.endswith("q_proj.lora_A.weight"))
    for change, part in [
        ({"base_model.model.lm_head.modules_to_save.weight": tensors[a]}, "is no low-rank matrix"),
        ({a.replace("q_proj", "x_proj"): tensors[a], a.replace("q_proj.lora_A", "x_proj.lora_B"): tensors[a]}, "no projection"),
        ({a.replace("q_proj", "k_proj"): tensors[a]}, "has one of lora_A and lora_B alone"),
        ({a: tensors[a][:, :-1].copy()}, r"expected \[r, 27\]"),
    ]:
        save_file(tensors | change, folder / peft.TENSORS)
        with pytest.raises(InterchangeError, match=part):
            open_weights(folder, FIXTURES / "parity" / "llama")
    with pytest.raises(InterchangeError, match="is an adapter of 'llama', which is no folder here"):
        open_weights(folder)


def test_a_base_must_end_in_a_model(tmp_path):
    """An adapter's base may be an adapter, of which both updates are merged; one that names itself, or a base of a name that no
    path can have, is one short line."""
    base = FIXTURES / "parity" / "llama"
    first = adapter(tmp_path / "first", "llama_all_linear", base_model_name_or_path=str(base))
    second = adapter(tmp_path / "second", "llama_patterns", base_model_name_or_path=str(first))
    name = "decoder.attention.q"
    plain, both = open_weights(base).read(name, ()), open_weights(second).read(name, ())
    updates = [open_weights(folder, base).read(name, ()) - plain for folder in (first, second)]
    assert_allclose(both - plain, updates[0] + updates[1], rtol=1e-4, atol=1e-5)
    itself = adapter(tmp_path / "itself", "llama_patterns", base_model_name_or_path=str(tmp_path / "itself"))
    with pytest.raises(InterchangeError, match="itself', is an adapter too, and so on"):
        open_weights(itself)
    long = adapter(tmp_path / "long", "llama_patterns", base_model_name_or_path="a" * 10**5)
    with pytest.raises(InterchangeError, match=r"is an adapter of 'a*\.\.\.', which is no folder here") as error:
        open_weights(long)
    assert len(str(error.value)) < 400


def test_matrices_without_a_form_there_are_not_written(tmp_path):
    """An adapted embedding has no such form, and a run without adapters nothing to write."""
    weights = open_weights(FIXTURES / "parity" / "llama")
    config = weights.config
    table = {"lora.embedding.table.a": np.zeros((101, 1), np.float32), "lora.embedding.table.b": np.zeros((1, 27), np.float32)}
    with pytest.raises(InterchangeError, match=r"embedding\.table is adapted"):
        peft.write(config, table, Lora(rank=1), tmp_path / "adapter", "")
    with pytest.raises(InterchangeError, match="no adapters"):
        peft.write(config, {}, Lora(), tmp_path / "adapter", "")
    assert isinstance(Arrays(config, table), Arrays) and not (tmp_path / "adapter").exists()
