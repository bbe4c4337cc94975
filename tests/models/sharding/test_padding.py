"""Dimensions that their mesh axes do not divide: padded between programs, cut elsewhere where they must not be padded."""

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from models.sharding.component import make_mesh
from models.sharding.layout import Layout
from models.sharding.padding import even, padded_shape, resized

MESH = make_mesh(Layout(name="mine", mesh=(("data", 2), ("model", 4))))


def sharding(*axes) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*axes))


def test_a_dimension_is_rounded_up_to_its_shards():
    """Five rows over two devices and three columns over four become six and four; a dimension that is whole stays as it is."""
    assert padded_shape((5, 3, 7), sharding("data", "model")) == (6, 4, 7)
    assert padded_shape((5,), sharding(("data", "model"))) == (8,)
    assert padded_shape((4, 8), sharding("data", "model")) == (4, 8)


def test_padding_is_zero_and_is_cut_off_again():
    """Cutting off takes away what filling up has added: the array comes back as it was, bit by bit."""
    x = np.arange(6.0).reshape(2, 3) + 1
    wide = np.asarray(resized(x, (4, 4)))
    assert wide[2:].sum() == wide[:, 3:].sum() == 0
    assert np.array_equal(resized(wide, x.shape), x)


def test_axes_that_do_not_divide_their_dimension_cut_another():
    """In factors, so that no array of some size is whole on every device: six rows are cut in two of four parts, and the columns
    in what remains; vectors of odd size are whole."""
    assert even((5, 16), sharding("model", "data")).shard_shape((5, 16)) == (5, 2)
    assert even((6, 16), sharding("model", "data")).shard_shape((6, 16)) == (3, 4)
    assert even((3, 6, 4), sharding(None, ("data", "model"))).shard_shape((3, 6, 4)) == (3, 3, 1)
    assert even((5,), sharding("model")).shard_shape((5,)) == (5,)
    assert even((5, 16), sharding("model", "data")).device_set == set(MESH.devices.flat)


def test_a_sharding_in_equal_parts_stays():
    """Where nothing is padded, arrays go in and out as the layout cuts them."""
    given = sharding("model", "data")
    assert even((8, 16), given) is given
