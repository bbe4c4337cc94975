"""Settings of encoders' config.json: what each says where it is there, left out or null, and that none is passed over."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from models.bert.config import BertConfig
from models.bert.huggingface import INTERCHANGE
from models.interchange import InterchangeError
from models.parts.attention.config import LayerVariant, Rotary
from models.parts.heads_config import Tagging
from models.parts.nested import changed
from tests.parity.live import FIXTURES

STEMS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "modernbert": "ModernBert",
    "electra": "Electra",
    "albert": "Albert",
    "mpnet": "MPNet",
    "deberta-v2": "DebertaV2",
}
# Settings without which a model of this kind is another than those that are read.
NEEDED: dict[str, dict[str, Any]] = {
    "deberta-v2": dict(
        relative_attention=True,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        pos_att_type="p2c|c2p",
        position_buckets=256,
    )
}
CHANGED: dict[str, Any] = dict(
    vocab_size=7,
    num_attention_heads=6,
    n_heads=6,
    hidden_act="relu",
    activation="relu",
    hidden_activation="relu",
    is_decoder=True,
    add_cross_attention=True,
    tie_word_embeddings=False,
    max_relative_positions=300,
    sinusoidal_pos_embds=True,
    norm_bias=True,
    attention_bias=True,
    mlp_bias=True,
    decoder_bias=False,
    classifier_bias=True,
    classifier_activation="relu",
    classifier_pooling="mean",
    layer_types=["full_attention"] * 22,
    rope_parameters={"full_attention": {"rope_theta": 5.0}},
)
# Settings of `transformers` that no output depends on, outside training.
SILENT = {
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "classifier_dropout_prob",
    "cls_dropout",
    "cls_token_id",
    "deterministic_flash_attn",
    "dtype",
    "embedding_dropout",
    "eos_token_id",
    "id2label",
    "initializer_cutoff_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "legacy",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pooler_dropout",
    "problem_type",
    "qa_dropout",
    "return_dict",
    "sep_token_id",
    "seq_classif_dropout",
    "sparse_pred_ignore_index",
    "sparse_prediction",
    "summary_activation",
    "summary_last_dropout",
    "summary_type",
    "summary_use_proj",
    "transformers_version",
    "use_cache",
}
PAIRED = {"hidden_activation": "classifier_activation", "mlp_bias": "classifier_bias"}  # of which ours has one
PADDING = {"bert", "distilbert", "modernbert", "electra", "albert", "deberta-v2"}  # whose positions don't depend on its id
DEFAULTS = {kind: table.defaults for kind, table in INTERCHANGE.model_types.items()}
KEYS = [(kind, key) for kind, table in DEFAULTS.items() for key in table if key not in NEEDED.get(kind, {})]


def read(kind: str, head: str = "ForMaskedLM", given: Mapping[str, Any] = MappingProxyType({}), **settings: Any) -> BertConfig:
    named = {"model_type": kind, "architectures": [STEMS[kind] + head]}
    return INTERCHANGE.read_config(named | NEEDED.get(kind, {}) | dict(given) | settings)


def test_defaults_are_those_of_transformers():
    """Each setting that is read has the default of `transformers`' own configuration, and each that is not changes nothing."""
    theirs = json.loads((FIXTURES / "defaults.json").read_text())
    assert theirs.keys() >= DEFAULTS.keys() == set(INTERCHANGE.model_types)
    for kind, table in DEFAULTS.items():
        known = theirs[kind]
        silent = SILENT | ({"pad_token_id"} if kind in PADDING else set())
        # What rotary positions do without, and a size that follows another where it is absent.
        silent |= {"modernbert": {"max_position_embeddings"}, "deberta-v2": {"pooler_hidden_size"}}.get(kind, set())
        assert not known.keys() - silent - table.keys()
        for key in known.keys() & table.keys() - {"layer_types", "rope_parameters"}:
            assert known[key] == table[key], (kind, key)


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=[f"{kind}-{key}" for kind, key in KEYS])
def test_a_setting_there_and_left_out(kind, key):
    """Left out, it is its default. Changed, it is another model or refused by its name; one of training alone is neither."""
    default = DEFAULTS[kind][key]
    head = "ForSequenceClassification" if key == "classifier_pooling" else "ForMaskedLM"
    plain = read(kind, head)
    if default is not None:
        assert read(kind, head, {key: default}) == plain
    other = CHANGED.get(key, default * 2 if default else None)
    try:
        changed = read(kind, head, {key: other})
    except InterchangeError as error:
        assert PAIRED.get(key, key) in str(error), error
        assert len(str(error).splitlines()) == 1
    else:
        assert (changed == plain) == (key == "sinusoidal_pos_embds")


@pytest.mark.parametrize(("kind", "key"), KEYS, ids=[f"{kind}-{key}" for kind, key in KEYS])
def test_a_setting_that_is_null(kind, key):
    """Null is refused by the setting's name, as `transformers` does, but where it means that the setting is left out."""
    if DEFAULTS[kind][key] is None:
        assert read(kind, given={key: None}) == read(kind)
    else:
        with pytest.raises(InterchangeError, match=f"{key} is null; left out, it would be"):
            read(kind, given={key: None})


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in NEEDED.items() for key in keys])
def test_a_setting_that_is_needed(kind, key):
    """Left out, it means another model, which is refused by the setting's name and the value that is read."""
    with pytest.raises(InterchangeError, match=f"{key}=.* is not supported, only") as caught:
        read(kind, given={key: DEFAULTS[kind][key]})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", INTERCHANGE.model_types)
def test_settings_of_no_model_are_read_over(kind):
    """A key that no class of `transformers` looks at changes nothing."""
    assert read(kind, of_ours=3, output_past=True) == read(kind)


@pytest.mark.parametrize(
    ("kind", "head", "settings", "part"),
    [
        ("roberta", "Model", dict(pad_token_id=511), "pad_token_id=511: no row of 512 positions follows"),
        ("roberta", "Model", dict(pad_token_id=-1), "pad_token_id=-1"),
        ("roberta", "ForMaskedLM", dict(hidden_act="relu"), "hidden_act='relu': the head of RobertaForMaskedLM has 'gelu'"),
        ("xlm-roberta", "Model", dict(position_embedding_type="relative_key"), "position_embedding_type"),
        ("distilbert", "Model", dict(hidden_size=500), "hidden_size=500 is not supported, only 768"),
        ("distilbert", "Model", dict(n_heads=7), "dim=768 is no multiple of n_heads=7"),
        ("distilbert", "ForPreTraining", {}, "no head like that of 'DistilBertForPreTraining'"),
        ("bert", "Model", dict(type_vocab_size=0), "type_vocab_size=0"),
        ("electra", "ForMultipleChoice", {}, "no head like that of 'ElectraForMultipleChoice' here; did you mean"),
        ("electra", "ForMaskedLM", dict(hidden_act="relu"), "hidden_act='relu': the head of ElectraForMaskedLM has 'gelu'"),
        ("electra", "Model", dict(embedding_size=0), "embedding_size=0: must be 1 or more"),
        ("albert", "Model", dict(embedding_size=4096), "embedding_size=4096 is not supported with hidden_size=4096"),
        ("albert", "Model", dict(num_hidden_groups=5), "num_hidden_groups=5 must divide num_hidden_layers=12; nearest is"),
        ("albert", "Model", dict(num_hidden_groups=0), "num_hidden_groups=0 must divide"),
        ("albert", "Model", dict(inner_group_num=2), "inner_group_num=2 is not supported, only 1"),
        ("albert", "ForPreTraining", {}, "no head like that of 'AlbertForPreTraining'"),
        ("mpnet", "Model", dict(pad_token_id=0), "pad_token_id=0 is not supported, only 1"),
        (
            "mpnet",
            "Model",
            dict(relative_attention_num_buckets=16),
            "relative_attention_num_buckets=16 is not supported, only 32",
        ),
        ("mpnet", "Model", dict(max_position_embeddings=2), "first=2: must be below rows=2"),
        ("deberta-v2", "Model", dict(conv_kernel_size=3), "conv_kernel_size=3 is not supported, only 0"),
        ("deberta-v2", "Model", dict(pos_att_type=["c2p"]), "pos_att_type=\"['c2p']\" is not supported, only 'p2c|c2p'"),
        ("deberta-v2", "Model", dict(pos_att_type="p2c|c2p|p2p"), "pos_att_type='p2c|c2p|p2p'"),
        ("deberta-v2", "Model", dict(position_buckets=0), "position_buckets=0 is not supported, only 2 or more; DeBERTa v3 has"),
        ("deberta-v2", "Model", dict(max_relative_positions=129), "max_distance=129: must be 130 or more"),
        ("deberta-v2", "Model", dict(embedding_size=128), "embedding_size=128 is not supported, only 1536"),
        ("deberta-v2", "Model", dict(attention_head_size=32), "attention_head_size=32 is not supported, only 64"),
        ("deberta-v2", "Model", dict(num_attention_heads=0), "hidden_size=1536 is no multiple of num_attention_heads=0"),
        ("deberta-v2", "ForSequenceClassification", dict(pooler_hidden_act="tanh"), 'pooler_hidden_act="tanh" is not'),
        ("deberta-v2", "ForMultipleChoice", {}, "no head like that of 'DebertaV2ForMultipleChoice' here; did you mean"),
        ("modernbert", "Model", dict(layer_types=["full_attention"] * 3), "layer_types are 3, of num_hidden_layers=22"),
        ("modernbert", "Model", dict(layer_types=["sliding"] * 22), "no layer_types 'sliding' here"),
        ("modernbert", "Model", dict(rope_parameters={"rope_theta": 5.0}), "rope_parameters of 'rope_theta'"),
        ("modernbert", "Model", dict(rope_parameters={"full_attention": {"rope_type": "yarn"}}), 'rope_type="yarn"'),
        ("modernbert", "Model", dict(rope_parameters={"full_attention": {"rope_theta": None}}), "rope_theta is missing"),
        ("modernbert", "Model", dict(rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling"),
        ("modernbert", "Model", dict(global_attn_every_n_layers=0), "global_attn_every_n_layers=0"),
        ("modernbert", "Model", dict(local_attention=1), "local_attention=1"),
        ("modernbert", "Model", dict(head_dim=32), "head_dim=32 is not supported, only 64"),
        ("modernbert", "Model", dict(num_hidden_layers=1), "layers=1"),
        ("modernbert", "Model", dict(num_hidden_layers=0), "layers=0"),
        ("modernbert", "Model", dict(local_rope_theta=0), "sliding_attention: rope_theta=0.0"),
        ("modernbert", "ForSequenceClassification", dict(classifier_pooling="max"), 'classifier_pooling="max"'),
    ],
)
def test_what_an_encoder_has_not_is_refused(kind, head, settings, part):
    """A setting that would make other numbers is refused in one line that names the setting and its value."""
    with pytest.raises((InterchangeError, ValueError)) as caught:  # a configuration's own check is of the second kind
        read(kind, head, settings)
    assert part in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", INTERCHANGE.model_types)
@pytest.mark.parametrize(
    "head", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_what_is_written_is_read_the_same(kind, head):
    """Settings written from a configuration give it again, through JSON."""
    ours = read(kind, head, num_labels=5)
    assert INTERCHANGE.read_config(json.loads(json.dumps(INTERCHANGE.write_config(ours)))) == ours


def test_layers_are_told_apart_in_the_old_way_and_in_the_new():
    """Version 4 says how often a layer sees everything and two bases, version 5 each layer and each base: the same model."""
    types = ["full_attention" if i % 3 == 0 else "sliding_attention" for i in range(22)]
    bases = {"full_attention": {"rope_theta": 500}, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
    new = read("modernbert", layer_types=types, rope_parameters=bases, global_rope_theta=7.0, global_attn_every_n_layers=9)
    assert read("modernbert", global_rope_theta=500.0, local_rope_theta=50.0) == new
    full, near = LayerVariant(), LayerVariant(window=65, base=50.0)
    assert new.attention.pattern == (full, near, near) and new.positions == Rotary(base=500.0)
    assert read("modernbert", rope_parameters={"full_attention": None}) == read("modernbert")
    odd = read("modernbert", layer_types=[*types[1:], types[1]], local_attention=7)
    near = LayerVariant(window=4, base=10_000.0)
    assert odd.attention.pattern == (near, near, full)
    assert read("modernbert", layer_types=["full_attention"] * 22).attention.pattern == (full,)
    written = INTERCHANGE.write_config(odd)
    assert written["local_attention"] == 6 and "global_attn_every_n_layers" not in written
    assert INTERCHANGE.write_config(new)["global_attn_every_n_layers"] == 3


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"norm.order": "sandwich", "bare_first": False}, "order='sandwich' (it has 'pre')"),
        ({"attention.pattern": (LayerVariant(window=3), LayerVariant(window=5))}, "its layers are of two kinds"),
        ({"attention.pattern": (LayerVariant(rotary=False),)}, "its layers are of two kinds"),
        ({"embedding.types": 2}, "types=2 (it has 0)"),
        (dict(head=Tagging(labels=3)), "transform=False (it has True)"),
    ],
)
def test_what_no_modernbert_has_is_not_written(changes, part):
    with pytest.raises(InterchangeError) as caught:
        INTERCHANGE.write_config(changed(read("modernbert"), changes))
    assert part in str(caught.value) and len(str(caught.value).splitlines()) == 1
