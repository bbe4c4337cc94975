"""Experiments: every one builds, and a change to any of them shows as a changed line."""

import json
import subprocess
import sys

import pytest

from configs import registry
from configs.registry import ConfigError
from configs.schema import AdamW, Constant, Experiment
from scripts import golden


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

    with pytest.raises(ConfigError, match=r"experiment.model: unknown field 'expert'; did you mean 'experts'"):
        read(model__expert=3)
    with pytest.raises(ConfigError, match="field 'steps' is missing"):
        read(train__steps=None)
    with pytest.raises(ConfigError, match=r"experiment\.model\.layers: expected int"):
        read(model__layers="four")
    with pytest.raises(ConfigError, match="did you mean 'Adafactor'"):
        read(optimizer__class="Adafacter")
    with pytest.raises(ConfigError, match="not one of 'sort', 'einsum'"):
        read(model__dispatch="sorted")


def test_a_union_keeps_its_member():
    """The class of an optimizer is stored beside its fields."""
    import dataclasses

    e = dataclasses.replace(registry.load("gshard_m4.quickstart"), optimizer=AdamW(schedule=Constant(value=0.1)))
    back = registry.from_json(registry.to_json(e), Experiment)
    assert isinstance(back.optimizer, AdamW) and back == e


def test_differences_name_fields():
    """What differs between two experiments is listed by path, old to new."""
    a, b = registry.load("gshard_m4.moe_128e_12l"), registry.load("gshard_m4.moe_512e_12l")
    found = registry.differences(a.model, b.model)
    assert found == ["experts: 128 -> 512", "group_size: 8192 -> 2048"]


def test_a_misspelt_experiment_names_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'gshard_m4.quickstart'\?"):
        registry.load("gshard_m4.quickstrat")


def test_configs_and_random_data_need_neither_tensorflow_nor_jax():
    """Configs import no JAX (devices can still be chosen), models and the trainer no TensorFlow."""
    program = (
        "import sys\n"
        "from configs import registry; registry.load('gshard_m4.quickstart')\n"
        "assert 'jax' not in sys.modules\n"
        "import trainers.trainer, scripts.train, models.gshard_m4.model\n"
        "assert not {'tensorflow', 'seqio', 'tensorflow_datasets'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
