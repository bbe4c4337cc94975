"""The activations of a traced model: their names, axes and number are the family's; a family without names is traced too."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest

from configs import registry
from models import families
from models.errors import UserError
from models.parts.activations import DENSE, HEADS, HIDDEN, IN_EXPERTS, SHARED_HEADS, WITH_EXPERTS
from models.parts.nested import changed
from trainers.hlo import variants
from trainers.hlo.activations import activations, logits, program_flops
from trainers.plan import abstract_model
from trainers.pods.bound import Work


def test_a_name_has_the_form_whose_axes_are_as_long():
    """The name "attention_in" has two forms, of 4 heads and of 2 for keys and values, each with the axes of its own heads."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    e = dataclasses.replace(e, model=changed(e.model, {"attention.heads": 4, "attention.kv_heads": 2}))
    forms = {a.shape[2]: a.axes for a in activations(e) if a.name == "attention_in"}
    assert forms == {4: HEADS, 2: SHARED_HEADS}


def test_a_mixture_has_hidden_products_of_both_kinds():
    """Every second layer's "up" is computed expert by expert; its tokens travel there and back."""
    e = registry.tiny(registry.load("gshard_m4.quickstart"))
    traced = activations(e)
    assert {a.axes for a in traced if a.name == "up"} == {HIDDEN, IN_EXPERTS}
    assert {a.name for a in traced if a.kind.exchanged} == {"dispatched", "returned"}


def test_all_that_is_named_is_in_the_familys_table():
    """A mark that no table describes would be planned as if nothing cut it but rows."""
    for name in ("gpt.quickstart", "bert.quickstart", "gshard_m4.quickstart"):
        e = registry.tiny(registry.load(name))
        assert {a.name for a in activations(e)} <= families.family_of(e.model).activations.keys()


@pytest.mark.integration
def test_stacks_are_kept_as_their_own_policy_says():
    """The input alone is kept of an encoder that is recomputed under a decoder that keeps all."""
    e = registry.tiny(registry.load("gshard_m4.quickstart"))
    mixed = dataclasses.replace(e, execution=dataclasses.replace(e.execution, remat_of=(("encoder", "full"),)))
    assert {a.component for a in activations(mixed)} == {"encoder", "decoder"}
    for a in activations(mixed):
        assert a.kept(mixed.execution) == a.kept(variants.with_remat(e, "full" if a.component == "encoder" else "none").execution)
    none, both = variants.with_remat(e, "none"), variants.with_remat(e, "full")
    kept = [Work(x)._kept() for x in (both, mixed, none)]
    flops = [program_flops(x) for x in (none, mixed, both)]
    assert kept == sorted(set(kept)) and flops == sorted(set(flops))


def test_logits_are_those_of_the_vocabulary():
    """16 rows of 16 positions by 64 words, found by the parameters' axis "vocab"."""
    assert logits(registry.tiny(registry.load("gpt.quickstart"))) == 16 * 16 * 64


def test_a_family_without_names_is_planned_by_what_its_backward_pass_keeps(monkeypatch):
    """Its residuals are cut as the batch is: on two data shards half as much of each is kept, and positions have their name."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    family = dataclasses.replace(families.family_of(e.model), activations={}, policies=())
    monkeypatch.setattr("trainers.hlo.activations.family_of", lambda config: family)
    traced = activations(e)
    assert {a.name for a in traced} == {"residual"}
    c: Any = e.model
    elements = sum(jnp.prod(jnp.array(a.shape)) for a in traced)
    assert elements > 4 * 16 * 16 * c.model_dim  # at least the input of each of four layers
    assert (None, "batch", "length", None) in {a.axes for a in traced}  # of a stack of layers
    layouts = families.family_of(e.model).layouts
    whole, halves = (Work(dataclasses.replace(e, layout=layouts["data_parallel"](n, 1)))._kept() for n in (1, 2))
    assert 1.5 < whole / halves <= 2


def test_a_policy_may_name_only_what_the_family_has():
    """A dense model has no tokens that travel to experts."""
    e = registry.tiny(registry.load("bert.quickstart"))
    assert "dispatched" in WITH_EXPERTS and "dispatched" not in DENSE
    with pytest.raises(UserError, match="no activation 'dispatched'"):
        abstract_model(variants.with_remat(e, "dispatched"))
