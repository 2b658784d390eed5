"""The TOML files with the descriptions of the datasets, and their loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from comity.data import Dataset
from comity.data.files import FilePaths
from comity.data.library import Entry, _library
from comity.data.sets import descriptions
from comity.data.sets.descriptions import Description, read_descriptions, register_datasets
from comity.data.sets.text import VOCABULARY
from comity.errors import ComityError

TOYS = """
[toys]
description = "Toys"
licence = "MIT"
samples = 12
classes = 2
shape = [1, 4, 4]
class_names = ["bear", "car"]
layouts = [{ reader = "npz", files = ["toys.npz"], options = { first_label = 1 } }]

[toys.checksums]
"toys.npz" = "0123456789abcdef0123456789abcdef"

[more-toys]
like = "toys"
samples = 24
class_names = []
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "toys.toml"
    path.write_text(TOYS)
    return path


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> dict[str, Entry]:
    """The datasets that the test registers, which are not added to the library."""
    entries: dict[str, Entry] = {}

    def register(entry: Entry) -> None:
        entries[entry.card.name] = entry

    monkeypatch.setattr(descriptions, "register", register)
    return entries


def npz(card: Description, paths: FilePaths, first_label: int = 0) -> Dataset:
    raise AssertionError(f"{card.name} is not read: {paths}, {first_label}")


def test_a_dataset_takes_the_keys_that_it_does_not_have_from_the_one_it_is_like(path: Path) -> None:
    cards = read_descriptions(path)
    assert list(cards) == ["toys", "more-toys"]
    toys, more = cards.values()
    assert (toys.name, toys.samples, toys.shape) == ("toys", 12, (1, 4, 4))
    assert (more.name, more.samples, more.shape) == ("more-toys", 24, (1, 4, 4))
    assert (toys.class_names, more.class_names) == (("bear", "car"), ())
    assert (more.layouts, more.checksums) == (toys.layouts, toys.checksums)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("samples = 12", "samples = 12\ncolour = 3", "toys.colour is not a known key"),
        ('reader = "npz"', 'reader = "npz", path = "a"', "toys.layouts.0.path is not a known key"),
        ("samples = 12", 'samples = "12"', "toys.samples is not valid"),
        ("samples = 12", "samples = 12.0", "valid integer, not 12.0"),
        ("samples = 12", "samples = true", "valid integer, not True"),
        ('"Toys"', "3", "toys.description is not valid"),
        ('"Toys"', "2020-01-01", "date is not JSON"),
        ("[1, 4, 4]", '[1, "4", 4]', "toys.shape.1 is not valid"),
        ('["bear", "car"]', '"bear"', "toys.class_names is not valid"),
        ('["toys.npz"]', '"toys.npz"', "toys.layouts.0.files is not valid"),
        ("0123456789abcdef0123456789abcdef", "0123", "toys.checksums.toys.npz is not valid"),
        ('licence = "MIT"', "", "toys.licence is not valid"),
        ('like = "toys"', 'like = "games"', "more-toys is like 'games'"),
        ('like = "toys"', "like = []", "more-toys is like '[]'"),
        ("samples = 12", 'samples = 12\nname = "b"', "toys.name is not a known key"),
        ("[toys]", "games = 3\n[toys]", "games is not valid"),
        ("[toys]", "[toys", "cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(path: Path, old: str, new: str, words: str) -> None:
    assert TOYS.count(old) >= 1
    path.write_text(TOYS.replace(old, new, 1))
    with pytest.raises(ComityError) as caught:
        read_descriptions(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match=r"nowhere\.toml cannot be read"):
        read_descriptions(tmp_path / "nowhere.toml")


def test_readers_get_the_description_and_the_options(path: Path, entries: dict[str, Entry]) -> None:
    register_datasets(path, readers={"npz": npz})
    (layout,) = entries["more-toys"].layouts
    assert layout.files == ("toys.npz",)
    assert layout.sums == {"toys.npz": "0123456789abcdef0123456789abcdef"}
    with pytest.raises(AssertionError, match=r"more-toys is not read: \{\}, 1"):
        layout.read({})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('reader = "npz"', 'reader = "mat"', "There is no reader 'mat'"),
        ("first_label = 1", "colour = 1", "There is no option of npz called 'colour'"),
        ("first_label = 1", 'first_label = "a"', "first_label of npz must be a whole number"),
    ],
)
@pytest.mark.usefixtures("entries")
def test_readers_and_options_that_do_not_exist_are_refused(
    path: Path, old: str, new: str, words: str
) -> None:
    assert old in TOYS
    path.write_text(TOYS.replace(old, new))
    with pytest.raises(ComityError) as caught:
        register_datasets(path, readers={"npz": npz})
    assert str(caught.value).startswith(f"{path}: toys: ")
    assert words in str(caught.value)


def test_every_dataset_has_a_file_a_function_or_parts() -> None:
    for name, entry in _library().items():
        assert bool(entry.layouts) + bool(entry.make) + bool(entry.join and entry.parts) == 1, name
        assert set(entry.parts) <= set(_library()), name


def test_every_file_with_a_checksum_is_one_of_the_dataset() -> None:
    folder = Path(descriptions.__file__).parent
    cards = [card for file in folder.glob("*.toml") for card in read_descriptions(file).values()]
    assert {card.name for card in cards} == set(_library())
    for card in cards:
        files = {file for layout in card.layouts for file in layout.files}
        assert {name.removesuffix(".gz") for name in card.checksums} <= {
            file.removesuffix(".gz") for file in files
        }, card.name


def test_the_description_of_agnews_has_the_size_of_the_vocabulary() -> None:
    assert f"a number below {VOCABULARY:,} " in _library()["agnews"].card.description


def test_importing_comity_reads_no_description() -> None:
    code = (
        "import json, sys, comity, comity.data;"
        "print(json.dumps([name for name in sys.modules if name.startswith('comity.data.sets.')]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = json.loads(result.stdout)
    assert set(modules) <= {"comity.data.sets.common", "comity.data.sets.descriptions"}


def test_the_order_of_datasets_does_not_depend_on_what_was_imported_first() -> None:
    code = """
import comity.data.sets.{first}
from comity.data import catalogue
print([row["name"] for row in catalogue()])
"""
    lists = {
        subprocess.run(
            [sys.executable, "-c", code.format(first=first)],
            capture_output=True, text=True, check=True,
        ).stdout
        for first in ("embedded", "text")
    }  # fmt: skip
    assert len(lists) == 1
    assert next(iter(lists)).startswith("['digits'")
