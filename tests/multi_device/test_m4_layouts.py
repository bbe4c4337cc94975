"""A layout changes where a mixture of experts computes its numbers, never the numbers: all layouts, against one device."""

import dataclasses
from collections import Counter

import jax
import pytest
from numpy.testing import assert_array_equal

from models.gshard_m4.layouts import LAYOUTS
from models.sharding.layout import LayoutError, rules
from models.sharding.layouts import LAYOUTS as DENSE
from tests.helpers.layouts import assert_equal_to_one_device, assert_same_draws, case_id, cases, experiment, initial, trial
from trainers.hlo import tables
from trainers.plan import fresh_state, make_plan

pytestmark = pytest.mark.integration

M4 = "gshard_m4.quickstart"
EXPERTS = tuple(name for name in LAYOUTS if name not in DENSE)
TABLE = [
    *cases(M4, keep=("expert_parallel",), slow=("fully_sharded", "sequence_parallel")),
    *cases(M4, slow=(name for name in EXPERTS if name != "expert_parallel")),
    pytest.param(M4, "expert_fully_sharded", (8, 1), marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, and tokens go to the same experts."""
    assert_equal_to_one_device(name, layout, mesh)


@pytest.mark.slow
def test_what_is_drawn_does_not_depend_on_the_layout():
    """With dropout and second experts dropped at random, and Adafactor's factored statistics, losses are still those of one
    device: a layout changes no draw, unless it says so (pipelines)."""
    assert_same_draws(M4, "mixed")


def test_initial_weights_depend_on_the_seed_alone(float64):
    """Made on eight devices under a layout that cuts them, weights have the bits that one device gives them."""
    p = make_plan(dataclasses.replace(experiment(M4), layout=LAYOUTS["fully_sharded"](2, 4)), jax.devices())
    made = fresh_state(p)
    jax.tree.map(assert_array_equal, jax.device_get(made.params), jax.device_get(initial(M4).params))
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(made.params))


@pytest.mark.slow
def test_expert_layouts_communicate_as_they_should():
    """Expert parallel exchanges tokens by all-to-all along the experts' axis alone; mixed does that and reduces activations in
    one program; tensor parallelism exchanges none. No two layouts of experts have the same collectives."""
    names = [name for name in EXPERTS if len(LAYOUTS[name].axes) == 2]
    collectives = {name: trial(M4, name, (2, 4)).collectives for name in [*names, "fully_sharded", "sequence_parallel"]}
    kinds = {name: Counter(c.kind for c in sent) for name, sent in collectives.items()}
    exchanges = {name: {c.axes for c in sent if c.kind == "all-to-all"} for name, sent in collectives.items()}
    assert "all-to-all" not in kinds["sequence_parallel"]
    # Tokens, gates and outputs and their gradients, in the encoder's and in the decoder's MoE layer.
    assert kinds["expert_parallel"]["all-to-all"] == 12 and exchanges["expert_parallel"] == {("expert",)}
    assert kinds["mixed"]["all-to-all"] == 6 and exchanges["mixed"] == {("model",)}
    assert kinds["mixed"]["all-reduce"] > kinds["expert_parallel"]["all-reduce"]
    assert len({tuple(sorted(k.items())) for k in kinds.values()}) == len(collectives)


def test_routing_groups_are_not_cut():
    """Positions of an MoE layer's tokens cannot be cut: the error names the component and the rule."""
    wrong = dataclasses.replace(experiment(M4), layout=DENSE["context_ring"](2, 4))
    with pytest.raises(LayoutError, match=r"'encoder.moe', layout 'context_ring': rule 'length' -> \('model',\), but"):
        make_plan(wrong)


@pytest.mark.slow
def test_experts_stay_where_they_are():
    """Under expert parallelism no all-gather has the size of an expert weight or of the dispatched tokens."""
    for name in ("expert_parallel", "expert_fully_sharded"):
        e = dataclasses.replace(experiment(M4), layout=LAYOUTS[name](2, 4))
        assert tables.expert_gathers(e, trial(M4, name, (2, 4)).collectives) == 0
    assert not any(c.kind == "all-gather" for c in trial(M4, "expert_parallel", (2, 4)).collectives)


@pytest.mark.slow
def test_a_gathered_expert_would_be_noticed():
    """With experts cut but their tokens' buffers not, the compiler must gather the weights, and they are counted."""
    layout = LAYOUTS["expert_parallel"](2, 4)
    cut = dict(layout.rules) | dict(rules(act_expert=None, expert_group=("data", "expert")))
    e = dataclasses.replace(experiment(M4), layout=dataclasses.replace(layout, rules=tuple(cut.items())))
    assert tables.communication(e)["expert_gathers"] > 0
