"""Prepared caches and the models that read them."""

import re

import pytest

from configs import registry
from configs.overrides import override
from data.reading.caches import check_labels, labels_of
from data.task import DataError


@pytest.mark.parametrize("name", ["vit.quickstart", "bert.minilm_spam", "bert.minilm_brown_tags"])
def test_the_flag_that_is_named_for_another_number_of_classes_is_the_models(name):
    """The line can be followed: the experiment with the flag that it names takes the cache."""
    e, manifest = registry.load(name), {"cache": "mine", "labels": ["ant", "bee", "cow", "doe", "elk"]}
    assert labels_of(e.model) not in (0, 5)
    with pytest.raises(DataError, match="cache 'mine' has 5 labels; take ") as caught:
        check_labels(e.model, manifest)
    named = re.search(r"take (--\S+) (5)$", str(caught.value))
    assert named
    followed = override(e, named.groups())
    assert labels_of(followed.model) == 5
    check_labels(followed.model, manifest)
