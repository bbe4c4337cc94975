"""Tests of which emoji look alike."""

import pytest

from data.images.emoji import look


@pytest.mark.parametrize(
    "codes",
    [
        ["1F9D1-200D-1F692", "1F468-200D-1F692", "1F469-1F3FB-200D-1F692"],  # firefighters
        ["1F9B8", "1F9B8-200D-2642-FE0F", "1F9B8-1F3FF-200D-2640-FE0F"],  # superheroes
        ["1F46B", "1F46C-1F3FB", "1F468-1F3FB-200D-1F91D-200D-1F468-1F3FC", "1F9D1-200D-1F91D-200D-1F9D1"],  # holding hands
        ["1F491-1F3FB", "1F469-200D-2764-FE0F-200D-1F468"],  # couples with a heart
        ["1F48F", "1F469-1F3FB-200D-2764-FE0F-200D-1F48B-200D-1F469-1F3FC"],  # kisses
        ["1F46A", "1F468-200D-1F469-200D-1F466", "1F469-200D-1F467-200D-1F466", "1F9D1-200D-1F9D2"],  # families
        ["1F468-200D-1F9B0", "1F469-1F3FD-200D-1F9B3", "1F9D1", "1F468"],  # hair
        ["1F468-200D-1F9BC", "1F469-200D-1F9BC-200D-27A1-FE0F"],  # the way that they look
        ["1F474", "1F475-1F3FB", "1F9D3"],
        ["1F466", "1F467", "1F9D2-1F3FE"],
        ["1F934", "1F478", "1FAC5"],
        ["1F385", "1F936", "1F9D1-200D-1F384"],
        ["1F930", "1FAC3", "1FAC4-1F3FB"],
        ["1F931", "1F9D1-200D-1F37C", "1F469-200D-1F37C"],
        ["1F57A", "1F483-1F3FF"],
        ["2764-FE0F", "2764"],
    ],
)
def test_people_of_any_skin_and_gender_look_alike(codes):
    """Whatever sequence Unicode writes them with; case does not matter."""
    assert len({look(code) for code in codes} | {look(codes[0].lower())}) == 1


def test_what_looks_otherwise_is_told_apart():
    """Persons, children and the old; jobs; flags; hearts; and the signs that stand for themselves."""
    codes = "1F9D1 1F9D2 1F9D3 1F46A 1F9D1-200D-1F692 1F9D1-200D-1F33E 1F9B8 1F1E8-1F1FF 1F1E8-1F1ED 2764 1F491 1F48F 1F46B"
    codes += " 2640-FE0F 2642-FE0F 27A1-FE0F 1F9B0 1F3FB 1F3F4-E0067-E0062-E0065-E006E-E0067-E007F 1F3F4"
    assert len({look(code) for code in codes.split()}) == len(codes.split())
