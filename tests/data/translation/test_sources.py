from data.packages.fetch import Package
from data.translation.catalogues import every
from data.translation.sources import CATALOGUES
from tests.helpers.archives import tarball
from tests.helpers.catalogues import make_mo


def entries_of(name: str):
    """How the real catalogue reads the package of this name."""
    (source,) = (source for source in CATALOGUES["m4_102"].sources if source.package.name == name)
    return source.entries


def test_keyed_files_are_joined_part_by_part(tmp_path):
    """Files are joined to the English one of their own part, translators' notes are left out."""
    package = tarball(
        tmp_path / "scratch.tgz",
        {
            "package/a/en.json": '{"k": "one", "m": {"string": "many"}}',
            "package/a/sw.json": '{"k": "moja", "m": {"string": "nyingi"}, "x": "?"}',
            "package/a/qqq.json": '{"k": "a number"}',
            "package/b/en.json": '{"k": "two"}',
            "package/b/sw.json": '{"k": "mbili"}',
            "package/c/sw.json": '{"k": "no English"}',
            "package/scripts/tsconfig.json": "// no JSON",
        },
    )
    assert [entry for entry in entries_of("scratch-l10n")(package, every) if entry[0] != "en"] == [
        ("sw", "one", "moja"),
        ("sw", "many", "nyingi"),
        ("sw", "two", "mbili"),
    ]


def test_tagging_schema_paths_begin_with_the_language(tmp_path):
    """In id-tagging-schema the language heads each path and is not part of the key; search words are left out."""
    package = tarball(
        tmp_path / "id.tgz",
        {
            "package/dist/translations/en.json": '{"en": {"p": {"x": {"name": "Road", "terms": "street, way"}}}}',
            "package/dist/translations/sw.json": '{"sw": {"p": {"x": {"name": "Barabara", "terms": "njia"}}}}',
            "package/dist/translations/sw.min.json": "not read",
            "package/dist/translations/index.json": "not read",
        },
    )
    entries = [entry for entry in entries_of("@openstreetmap/id-tagging-schema")(package, every) if entry[0] != "en"]
    assert entries == [("sw", "Road", "Barabara")]


def test_contexts_are_stripped(tmp_path):
    """The context that a game writes before a string to tell its uses apart is no part of the English, the rest of it is."""
    for name, raw in (("freeciv-data", "?unit:Save ^ here"), ("wesnoth-1.16-data", "unit^Save ^ here")):
        mo = make_mo({"": "header", raw: "Hifadhi"}, "<")
        package = tarball(tmp_path / f"{name}.tgz", {"./usr/share/locale/sw/LC_MESSAGES/game.mo": mo})
        assert list(entries_of(name)(package, every)) == [("sw", "Save ^ here", "Hifadhi")]


def test_every_package_is_pinned():
    """Each package but the archive's index is pinned by a SHA-256, and no two share a file name."""
    packages: list[Package] = CATALOGUES["m4_102"].packages
    assert len({package.file for package in packages}) == len(packages)
    assert [package.registry for package in packages if package.sha256 is None] == ["debian-index"]
    assert all(len(package.sha256) == 64 for package in packages if package.sha256)
