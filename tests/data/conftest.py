"""A tiny catalogue that a module can have in place of the real one."""

import random

import pytest

from data.translation import sources
from data.translation.catalogues import Catalogue, Source
from data.translation.sources import CATALOGUES
from tests.helpers.catalogues import LANGUAGES, WORDS, po_file, write_wheel


@pytest.fixture(scope="module")  # no longer: other modules read the real catalogue
def tiny(tmp_path_factory):
    """A data folder whose 'permissive' catalogue is one small wheel of four invented languages."""
    root = tmp_path_factory.mktemp("tiny")
    chance = random.Random(1)
    english = sorted({" ".join(chance.sample(WORDS, chance.randint(2, 9))) + "." for _ in range(400)})
    files = {}
    for code, prefix in LANGUAGES.items():
        translations = {text: " ".join(prefix + word[::-1] for word in text.split()) for text in english}
        translations["A line break <br> is a tag of another kind"] = f"{prefix} <br> {prefix}"
        translations["Far too long by any measure"] = f"{prefix}yz " * 25
        files[f"tiny/locale/{code}/LC_MESSAGES/django.po"] = po_file(translations)
    package = write_wheel(root / "packages" / "tiny-1.0-py3-none-any.whl", files)
    only = (Source(package, sources.po_entries),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CATALOGUES, "permissive", Catalogue(sources=only, languages=9, test=9, validation=5, share=0.1))
        yield root
