import itertools
import random

import pytest

from data.reading.splits import Item, divide, subset, text_key, without_copies


def items() -> list[Item]:
    """Three examples in each of 200 groups; one group in ten is of the stratum "rare"."""
    return [Item(f"g{n % 200}", {"n": n}, "rare" if n % 10 == 0 else "") for n in range(600)]


def test_a_group_is_in_one_split():
    """All examples of a group are in the same split, and every example is in one."""
    splits = divide(items(), validation=0.1, test=0.2)
    groups = {name: {example["n"] % 200 for example in some} for name, some in splits.items()}
    assert {name: len(some) for name, some in groups.items()} == {"train": 140, "validation": 20, "test": 40}
    assert sorted(example["n"] for some in splits.values() for example in some) == list(range(600))


def test_every_split_has_its_share_of_a_stratum():
    """The test has 4 of 20 rare groups and the validation 2; of a stratum of three groups one is in each."""
    for name, count in {"test": 4, "validation": 2, "train": 14}.items():
        rare = {e["n"] % 200 for e in divide(items(), validation=0.1, test=0.2)[name] if e["n"] % 10 == 0}
        assert len(rare) == count
    few = [Item(str(n), {"n": n}) for n in range(3)]
    assert all(len(some) == 1 for some in divide(few, validation=0.01, test=0.01).values())


@pytest.mark.parametrize(("groups", "want"), [(1, (1, 0, 0)), (2, (2, 0, 0)), (3, (1, 1, 1)), (4, (2, 1, 1)), (40, (30, 4, 6))])
def test_training_comes_first(groups, want):
    """A stratum that has too few groups for one in each split is trained on whole, and never held out whole."""
    alone = [Item(str(n), {"n": n}) for n in range(groups)]
    splits = divide(alone, validation=0.1, test=0.15)
    assert tuple(len(splits[name]) for name in ("train", "validation", "test")) == want
    large = divide(alone, validation=0.9, test=0.9)
    assert large["train"] and (groups < 3 or all(large.values()))
    assert len(divide(alone, validation=0.1, test=0)["validation"]) == (0, 1)[groups > 1] + (groups == 40) * 3


def test_copies_of_what_is_held_out_are_left_out():
    """The test keeps its own of what is in several splits, then the validation; copies within a split stay."""
    splits = {"train": ["a", "A", "b", "c", "d"], "validation": ["b", "C", "e"], "test": ["c", "c", "f"]}
    assert without_copies(splits, str.lower) == {"train": ["a", "A", "d"], "validation": ["b", "e"], "test": ["c", "c", "f"]}


def test_a_group_of_several_strata_is_in_one_split():
    """A picture that lies in two classes is held out of both; it counts for the class of most of its copies, then the first."""
    items = [Item(f"g{n}", n, stratum) for n in range(30) for stratum in ("a", "b")]
    splits = divide([*items, Item("g0", 0, "b")], validation=0.1, test=0.2)
    numbers = {name: set(examples) for name, examples in splits.items()}
    assert sum(map(len, numbers.values())) == 30 and len(set.union(*numbers.values())) == 30


def test_the_order_of_examples_decides_nothing():
    """The same examples in another order give the same splits and the same subsets."""
    shuffled = random.Random(0).sample(items(), 600)
    splits, others = (divide(some, validation=0.1, test=0.2) for some in (items(), shuffled))
    assert all(subset(splits[name]) == subset(others[name]) for name in ("train", "validation", "test"))


def test_subsets_nest():
    """A smaller subset is the beginning of a larger one of the same seed; another seed draws another."""
    examples = [item.example for item in items()]
    assert subset(examples, 600) == subset(examples) and subset(examples)[:50] == subset(examples, 50)
    assert sorted(e["n"] for e in subset(examples)) == list(range(600))
    drawn = [{e["n"] for e in subset(examples, 300, seed)} for seed in range(3)]
    assert all(100 < len(a & b) < 200 for a, b in itertools.pairwise(drawn))  # 150 expected of two random halves


def test_views_of_the_same_examples_have_the_same_order():
    """A second text changes nothing in the order; between examples that differ in nothing else it decides."""
    plain = [{"text": f"t{n}", "label": "a"} for n in range(50)]
    paired = [{**example, "pair": f"p{n}"} for n, example in enumerate(plain)]
    assert [e["text"] for e in subset(paired, 20, 3)] == [e["text"] for e in subset(plain, 20, 3)]
    twins = [{"text": "t", "pair": f"p{n}"} for n in range(9)]
    assert subset(twins) == subset(twins[::-1])


def test_what_identifies_a_text():
    """Case, punctuation, spacing and the value of numbers don't tell texts apart; letters of any script do."""
    assert text_key("The  Cats (v1.25)!") == text_key("the cats: V2.5") == "the cats v0 0"
    assert text_key("naïve café") != text_key("naive cafe") and text_key("+-*_") == ""
