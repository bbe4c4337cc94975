import gettext
import io

import pytest

from data.translation import catalogue_formats as formats
from tests.helpers.catalogues import make_mo

PO = r"""
# The header's empty msgid is no string.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

#: views.py:1
msgid "Save"
msgstr "Hifadhi"

#, fuzzy
msgid "Guess"
msgstr "Kisio"

msgid "Not translated"
msgstr ""

#, python-format
msgctxt "a verb"
msgid "Open \"%s\"\tnow"
msgstr "Fungua \"%s\"\tsasa"

msgid ""
"Two "
"lines\n"
"of text"
msgstr ""
"Mistari "
"miwili"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "faili %d"
msgstr[1] "mafaili %d"
msgid "No blank line before"
msgstr "Hakuna"

#, fuzzy
#~ msgid "Obsolete"
#~ msgstr "Zamani"

msgid "After an obsolete entry"
msgstr "Baada"

#~ msgid "Obsolete at the end"
#~ msgstr "Mwisho"
"""


def test_po_entries():
    """The live, sure and translated entries of a .po file come out, escapes resolved, and nothing else.

    Left out are the header, fuzzy, untranslated and obsolete entries (whose fuzzy mark is not the next entry's);
    contexts are dropped, plural forms paired, lines of one string joined, with or without blank lines between entries.
    """
    assert list(formats.parse_po(PO)) == [
        ("Save", "Hifadhi"),
        ('Open "%s"\tnow', 'Fungua "%s"\tsasa'),
        ("Two lines\nof text", "Mistari miwili"),
        ("%d file", "faili %d"),
        ("%d files", "mafaili %d"),
        ("No blank line before", "Hakuna"),
        ("After an obsolete entry", "Baada"),
    ]


def test_po_strings_may_hold_any_character():
    """A line ends at a newline only, not at the other characters that Python's splitlines() cuts at."""
    assert list(formats.parse_po('msgid "one\u2028two\x0cthree"\nmsgstr "moja\x85"')) == [("one\u2028two\x0cthree", "moja\x85")]


def test_one_plural_form_goes_with_the_singular():
    """A language without plural forms gives one pair for an entry with a plural."""
    po = 'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d 日"\n'
    assert list(formats.parse_po(po)) == [("%d day", "%d 日")]


@pytest.mark.parametrize("order", "<>")
def test_mo_equals_gettext(order):
    """A .mo file of either byte order gives the singular strings that Python's gettext finds in it, and plurals."""
    content = make_mo(
        {"": "Content-Type: text/plain; charset=UTF-8\n", "menu\x04Open": "Fungua", "a\0b": "x\0y", "no": ""}, order
    )
    pairs = list(formats.parse_mo(content))
    assert pairs == [("Open", "Fungua"), ("a", "x"), ("b", "y")]
    translations = gettext.GNUTranslations(io.BytesIO(content))
    assert translations.pgettext("menu", "Open") == "Fungua" and translations.ngettext("a", "b", 1) == "x"
    assert list(formats.parse_mo(b"")) == []


def test_json_strings_are_joined_by_path():
    """Two JSON catalogues give pairs where both have a string under the same keys, in message objects too."""
    english = formats.parse_json(b'{"a": {"b": "one"}, "c": {"string": "two", "note": "n"}, "d": 4, "e": "three"}')
    other = formats.parse_json(b'{"a": {"b": "moja"}, "c": {"string": "mbili"}, "f": "?"}')
    assert list(formats.join(english, other)) == [("one", "moja"), ("two", "mbili")]


def test_blockly_messages():
    """Blockly's JavaScript gives its strings by key, escapes resolved, links to help left out."""
    script = rb'Blockly.Msg["OK"] = "it\'s\ \"fine\"\\\n";' + b'\nBlockly.Msg["A_HELPURL"] = "https://example.org";'
    assert formats.parse_blockly(script) == {"OK": 'it\'s "fine"\\\n'}
