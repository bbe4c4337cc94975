"""Groups of emoji that look alike, by their code points (Unicode Technical Standard 51): a group is in one split.
Standard library alone.
"""

_TONES = frozenset(f"{0x1F3FB + tone:X}" for tone in range(5))
_HAIR = frozenset(f"{0x1F9B0 + style:X}" for style in range(4))  # red, curly, none, white
# How it is drawn; joined; female, male; that it looks to the right.
_SIGNS = frozenset(("FE0F", "200D", "2640", "2642", "27A1"))
_PERSON, _CHILD, _OLDER = "1F9D1", "1F9D2", "1F9D3"
# An emoji of one gender, or of people of some, and the one, or the sequence, of any.
_ANY = {
    "1F468": _PERSON,
    "1F469": _PERSON,
    "1F466": _CHILD,
    "1F467": _CHILD,
    "1F474": _OLDER,
    "1F475": _OLDER,
    "1F934": "1FAC5",
    "1F478": "1FAC5",  # prince and princess: person with crown
    "1F930": "1FAC4",
    "1FAC3": "1FAC4",  # pregnant
    "1F57A": "1F483",  # dancing
    "1F385": f"{_PERSON}-1F384",
    "1F936": f"{_PERSON}-1F384",  # Father, Mother and Mx Christmas
    "1F931": f"{_PERSON}-1F37C",  # breast-feeding: feeding a baby
    **dict.fromkeys(("1F46B", "1F46C", "1F46D"), f"{_PERSON}-1F91D-{_PERSON}"),  # holding hands
    "1F491": f"{_PERSON}-2764-{_PERSON}",
    "1F48F": f"{_PERSON}-2764-1F48B-{_PERSON}",  # with a heart; a kiss
}
_FAMILY = "1F46A"


def look(code: str) -> str:
    """Returns the code of what an emoji shows, whatever the people's skin, gender and hair and the way that they look.

    Args:
      code: hexadecimal code points with hyphens between them, such as "1F469-1F3FB-200D-1F692", a woman firefighter.
    """
    parts = code.upper().split("-")
    shown = [part for part in parts if part not in _TONES | _SIGNS | _HAIR] or parts[:1]  # a sign by itself is one
    people = "-".join(_ANY.get(part, part) for part in shown).split("-")
    family = len(people) > 1 and {_PERSON, _CHILD}.issuperset(people)
    return _FAMILY if family else "-".join(people)
