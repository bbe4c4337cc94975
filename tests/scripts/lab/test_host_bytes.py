"""The rows that the hosts of a pod read, by the layout and the torus alone."""

import pytest

from configs import registry
from scripts.lab.host_bytes import pod
from trainers.runtime.chips import parse_slice


@pytest.mark.parametrize(
    ("name", "rows_a_host", "hosts_a_row", "kib_a_host"),
    [
        # Rows are cut over all 2,048 chips: 16 a chip, 4 chips a host; a row has 2 sides of 3 x 128 numbers of 4 bytes.
        ("gshard_m4.moe_2048e_36l", 64, 1, 64 * 2 * 3 * 128 * 4 / 1024),
        # Rows are cut over 256 groups of 8 chips, two groups meet in a host: 2 x 3,072 / 256; a row has 3 x 1,024 numbers.
        ("gpt.gspmd_1t", 24, 4, 24 * 3 * 1024 * 4 / 1024),
    ],
)
def test_rows_of_a_host_are_those_of_its_chips(name, rows_a_host, hosts_a_row, kib_a_host):
    result = pod(registry.load(name), parse_slice("v4:8x16x16"))
    assert (result["hosts"], result["rows_a_host"], result["hosts_a_row"]) == (512, rows_a_host, hosts_a_row)
    assert result["kib_a_host"] == kib_a_host and result["needed"] == "100%"
