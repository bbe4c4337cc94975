"""Experiments: every one builds, and a change to any of them shows as a changed line."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs import registry
from configs.experiment import Experiment, Lora
from configs.moved import MOVED
from configs.optimizers import AdamW, Constant
from configs.overrides import override
from configs.pods import PODS
from configs.registry import ConfigError
from data import kinds
from data.grids.caches import GridCache, Selection
from data.prepare import PREPARED
from data.reading.caches import vocabulary_fields
from models.families import FAMILIES, config_classes
from models.vit.config import VitConfig
from tests.helpers import golden


@pytest.mark.parametrize("name", registry.names())
def test_golden_dump(name):
    """Config, parameter table and decay groups are those of configs/golden/ (after a change that is meant: make golden)."""
    assert golden.dump(name) == (golden.FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", registry.names())
def test_json_round_trip(name):
    """An experiment read back from its JSON equals itself; its name finds it; its docstring is a page."""
    e = registry.load(name)
    assert registry.from_json(json.loads(json.dumps(registry.to_json(e)))) == e
    assert e.name == name
    assert registry.lookup(name).__doc__


def parameters(name: str) -> int:
    """Returns the number of parameters that the last line of an experiment's golden dump states."""
    total = re.search(r"^parameters: (\d+)$", (golden.FOLDER / f"{name}.txt").read_text(), re.MULTILINE)
    assert total
    return int(total[1])


def test_large_experiments_and_all_families_have_a_pod():
    """`make pods` plans every experiment of more than 10e9 parameters, and every family."""
    assert [name for name in registry.names() if parameters(name) > 10e9 and name not in PODS] == []
    assert {registry.load(name).model.family for name in PODS} == {*FAMILIES}


# What the papers print, or count exactly (see each experiment's docstring).
SIZES = {
    "gshard_m4.moe_2048e_36l": 619_399_180_288,
    "bert.mlperf_480b": 481_815_347_200,
    "bert.mlperf_200b": 199_717_148_096,
    "bert.roberta_base": 124_697_433,
    "bert.modernbert_base": 149_655_232,
    "gpt.gspmd_128b": 137_702_416_384,
    "gpt.gspmd_1t": 1_100_041_175_040,
    "gpt.lingvo_175b": 174_366_928_896,
    "gpt.mixtral_8x7b": 46_702_792_704,
    "gpt.qwen3_30b_a3b": 30_532_122_624,
    "gpt.olmoe_1b_7b": 6_919_161_856,
    "gpt.gpt_oss_20b": 20_914_757_184,
    "gpt.deepseek_v3": 671_026_419_200,
}
PRINTED = {  # and in which unit
    "bert.base": ("110", 1e6),
    "bert.large": ("335", 1e6),
    "gpt.gpt2_124m": ("124", 1e6),
    "gpt.gpt2_355m": ("355", 1e6),
    "gpt.gpt2_774m": ("774", 1e6),
    "gpt.gpt2_1558m": ("1558", 1e6),
    "gpt.gpt3_125m": ("125", 1e6),
    "gpt.gpt3_760m": ("760", 1e6),
    "gpt.gpt3_1_3b": ("1.3", 1e9),
    "gpt.gpt3_2_7b": ("2.7", 1e9),
    "gpt.gpt3_6_7b": ("6.7", 1e9),
    "gpt.gpt3_13b": ("13", 1e9),
    "gpt.gpt3_175b": ("175", 1e9),
    "gpt.megatron_1_7b": ("1.7", 1e9),
    "gpt.megatron_3_6b": ("3.6", 1e9),
    "gpt.megatron_7_5b": ("7.5", 1e9),
    "gpt.megatron_18_4b": ("18.4", 1e9),
    "gpt.megatron_39_1b": ("39.1", 1e9),
    "gpt.megatron_76_1b": ("76.1", 1e9),
    "gpt.megatron_145_6b": ("145.6", 1e9),
    "gpt.megatron_310_1b": ("310.1", 1e9),
    "gpt.megatron_529_6b": ("529.6", 1e9),
    "gpt.megatron_1008b": ("1008.0", 1e9),
    "gpt.palm_8b": ("8.63", 1e9),
    "gpt.palm_62b": ("62.50", 1e9),
    "gpt.maxtext_22b": ("21.9", 1e9),
    "gpt.maxtext_52b": ("51.9", 1e9),
    "gpt.smollm2_135m": ("134.5", 1e6),
}


@pytest.mark.parametrize("name", [*SIZES, *PRINTED])
def test_sizes_are_the_published_ones(name):
    """Parameters are as many as counted, or round to what the paper prints; read from the golden dump, see above."""
    last = (golden.FOLDER / f"{name}.txt").read_text().splitlines()[-1]
    total = int(last.removeprefix("parameters: "))
    if name in SIZES:
        assert total == SIZES[name]
    else:
        printed, unit = PRINTED[name]
        assert f"{total / unit:.{len(printed.partition('.')[2])}f}" == printed


# GLaM's, as its table has them but for norms and biases of relative positions.
MATRICES = {"gpt.glam_64b_64e": 1_161_755_099_136, "gpt.glam_8b_64e": 142_942_928_896}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_add_up_to_the_papers_total(name):
    """Tables and matrices of attention, of dense layers, routers and experts; read from the golden dump."""
    lines = (golden.FOLDER / f"{name}.txt").read_text().splitlines()
    sizes = [line.split()[2] for line in lines if line.startswith("tensor ")]
    of = [line.split()[1] for line in lines if line.startswith("tensor ")]
    total = sum(
        math.prod(map(int, size.split("x")))
        for size, tensor in zip(sizes, of, strict=True)
        if not tensor.removesuffix(":").endswith((".scale", ".relative_bias"))
    )
    assert total == MATRICES[name]


@pytest.mark.parametrize("name", registry.names())
def test_caches_fit_their_experiments(name):
    """Lengths, slots and vocabularies of an experiment are those of the cache that prepare_data makes for it."""
    e = registry.load(name)
    if not e.data.cache:
        return
    made = PREPARED[e.data.cache]
    for field in ("source_length", "target_length", "length", "slots", "pairs"):
        assert getattr(e.data, field, 0) == getattr(made, field, 0), field
    for side in ("source", "target"):
        if hasattr(made, f"{side}_vocabulary"):
            field = vocabulary_fields(e.model)[f"{side}_vocabulary"]
            assert getattr(e.model, field) >= getattr(made, f"{side}_vocabulary")


def test_json_is_read_strictly():
    """An unknown key, a missing one, a wrong type and an unknown class are errors that name the path."""
    good = registry.to_json(registry.load("gshard_m4.quickstart"))

    def read(**changes):
        data = json.loads(json.dumps(good))
        for path, value in changes.items():
            node = data
            *parents, last = path.split("__")
            for parent in parents:
                node = node[parent]
            node.pop(last) if value is None else node.__setitem__(last, value)
        return registry.from_json(data)

    with pytest.raises(ConfigError, match=r"experiment.model.moe: unknown field 'expert'; did you mean 'experts'"):
        read(model__moe__expert=3)
    with pytest.raises(ConfigError, match="field 'steps' is missing"):
        read(train__steps=None)
    for field in ("execution__unroll", "execution__quantization"):
        assert read(**{field: None}) == registry.load("gshard_m4.quickstart")  # a release from before it came
    with pytest.raises(ConfigError, match=r"experiment\.model\.layers: expected int"):
        read(model__layers="four")
    with pytest.raises(ConfigError, match="did you mean 'Adafactor'"):
        read(optimizer__class="Adafacter")
    with pytest.raises(ConfigError, match="not one of 'sort', 'einsum'"):
        read(execution__dispatch="sorted")
    with pytest.raises(ConfigError, match="quantization: 'int4' is not one of 'none', 'int8', 'fp8'"):
        read(execution__quantization="int4")
    with pytest.raises(ConfigError, match=r"experiment\.optimizer\.schedule: warmup=500: must be below steps=500"):
        read(optimizer__schedule__warmup=500)


def test_a_union_keeps_its_member():
    """The class of an optimizer is stored beside its fields."""
    e = dataclasses.replace(registry.load("gshard_m4.quickstart"), optimizer=AdamW(schedule=Constant(value=0.1)))
    back = registry.from_json(registry.to_json(e), Experiment)
    assert isinstance(back.optimizer, AdamW) and back == e


def test_differences_name_fields():
    """Differences between two experiments are listed by path, old to new."""
    a, b = registry.load("gshard_m4.moe_128e_12l"), registry.load("gshard_m4.moe_512e_12l")
    differences = registry.differences(a.model, b.model)
    assert differences == ["moe.experts.count: 128 -> 512", "moe.group_size: 8192 -> 2048"]


def test_a_misspelt_experiment_names_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'gshard_m4.quickstart'\?"):
        registry.load("gshard_m4.quickstrat")


def test_routing_groups_divide_over_the_chips():
    """The positions of a batch of every mixture make as many groups as its layout has shards of them, or a multiple."""
    for name in registry.names():
        e = registry.load(name)
        moe = getattr(e.model, "moe", None)
        if not moe:
            continue
        features = e.data.features()
        lengths = [("encoder.moe", e.model.length)] if isinstance(e.model, VitConfig) else []
        for side, component in (("inputs", "encoder.moe"), ("targets", "decoder.moe")) if not lengths else ():
            if side in features:
                lengths.append((component, features[side].shape[0]))
        for component, length in lengths:
            tokens = e.data.batch_size * length
            shards = e.layout.num_shards(e.layout.resolve(component).get("group", ()))
            assert tokens % (moe.group_size * shards) == 0, (name, component)


@pytest.mark.integration
def test_configs_and_random_data_need_neither_tensorflow_nor_jax():
    """Configs import no JAX (devices can still be chosen), models and the trainer no TensorFlow; weights that are no run's own
    are opened without Orbax."""
    program = (
        "import sys\n"
        "from configs import registry; registry.load('gshard_m4.quickstart')\n"
        "assert 'jax' not in sys.modules\n"
        "import trainers.inference.load, trainers.weights.init_from, trainers.weights.load_any\n"
        "assert 'orbax' not in sys.modules\n"
        "import trainers.trainer, scripts.train, models.gshard_m4.model\n"
        "assert not {'tensorflow', 'seqio', 'tensorflow_datasets'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_moved_fields_are_found_where_they_were():
    """Before, how a model is computed and its mixture were fields of the model itself, and a dense model had 0 experts."""
    m4 = {
        "experts": 8,
        "gating": "top1",
        "group_size": 1024,
        "capacity_factor": 1.25,
        "balance_weight": 0.01,
        "input_jitter": 0.0,
    }
    mixtures = {"gshard_m4.bench_67m": m4, "gshard_m4.dense_96l": {"experts": 0, "gating": "top2"}, "gpt.maxtext_22b": {}}
    for name, mixture in mixtures.items():
        e = registry.load(name)
        before = registry.to_json(e)
        later = ("class", "remat_of", "exchange_parts", "quantization", "offload")
        before["model"] |= {k: v for k, v in before.pop("execution").items() if k not in later} | mixture
        before["model"].pop("moe")
        assert registry.from_json(before) == e


STORED = Path(__file__).parents[1] / "fixtures" / "before" / "models.jsonl"


@pytest.mark.parametrize("before", map(json.loads, STORED.read_text().splitlines()), ids=lambda before: before["name"])
def test_a_model_of_one_class_is_one_of_parts(before):
    """A stored model whose fields were all its own, or its mixture's, is read as parts, and is what it was."""
    e = registry.load(before["name"])
    assert registry.from_json(registry.to_json(e) | {"model": before["model"]}) == e


def parts(kind: Any) -> Iterator[type]:
    """Yields a configuration's class, and those of its parts."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from parts(hint)
    for argument in typing.get_args(kind):
        yield from parts(argument)


OF_DATA = {*kinds.config_classes().values(), *kinds.eval_classes().values(), *kinds.cache_classes()}
KINDS = [Experiment, *config_classes().values(), *sorted(OF_DATA, key=lambda kind: kind.__name__)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_configuration_has_more_than_14_fields(kind):
    """Inherited ones included, and those of all parts."""
    assert {part.__name__: len(dataclasses.fields(part)) for part in parts(kind) if len(dataclasses.fields(part)) > 14} == {}


def test_the_parts_of_train_were_its_own_fields():
    """Checkpoints, faults and fine-tuning were fields of `train`; the old name of a flag names the new one."""
    e = registry.load("gpt.quickstart").with_finetune(lora=Lora(rank=2))
    before = registry.to_json(e)
    parts = {part: before["train"].pop(part) for part in ("checkpoint", "faults", "finetune")}
    for old, new in MOVED.items():
        if old.startswith("train."):
            part, field = new.split(".")[1:]
            before["train"][old.removeprefix("train.")] = parts[part][field]
            of_lora = ".rank" if field == "lora" else ""
            with pytest.raises(ConfigError, match=rf"no field or option --{old}{of_lora}; did you mean '{new}{of_lora}'"):
                override(e, [f"--{old}{of_lora}", "1"])
    assert registry.from_json(before) == e


@pytest.mark.parametrize(("name", "part"), [("metnet2.quickstart", "area"), ("multimodal.quickstart", "packing")])
def test_a_part_of_data_was_fields_of_its_own(name, part):
    """They are read where they were, and the old name of a flag names the new one."""
    e = registry.load(name)
    before = registry.to_json(e)
    fields = {field: value for field, value in before["data"].pop(part).items() if field != "class"}
    before["data"] |= fields
    assert registry.from_json(before) == e
    for field in fields:
        with pytest.raises(ConfigError, match=rf"no field or option --data.{field}; did you mean 'data\.{part}\.{field}'"):
            override(e, [f"--data.{field}", "1"])


def test_fields_of_one_class_of_data_are_not_those_of_another():
    """The area of a grid had a height, which a picture still has."""
    e = registry.load("metnet2.quickstart")
    with pytest.raises(ConfigError, match=r"^data\.area: target_height=27: is not the centre of height=48; the nearest is 28"):
        override(e, ["--data.area.target_height", "27"])
    pictures = override(registry.load("vit.quickstart"), ["--data.height", "64"])
    assert registry.from_json(registry.to_json(pictures)) == pictures
    with pytest.raises(ConfigError, match=r"--data\.heigth; did you mean 'data\.height'"):
        override(pictures, ["--data.heigth", "64"])


def test_the_selection_of_windows_was_fields_of_the_cache():
    """The old name of an option of scripts.prepare_data names the new one."""
    for old, new in ((name, f"selection.{name}") for name in vars(Selection())):
        with pytest.raises(ConfigError, match=f"no field or option --{old}; did you mean '{new}'"):
            override(GridCache(source="radolan"), [f"--{old}", "1"])
