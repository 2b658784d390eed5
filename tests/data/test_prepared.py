"""Prepared datasets on disk: they are read as written, completely or not at all; source files are
found, read once and cached.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_splits import assert_same

import comity
from comity import safe_files
from comity.data import Dataset, files, load, prepared
from comity.data.files import DatasetNotFound, FileLayout, cache_folder, load_dataset, locate
from comity.data.groups import Groups
from comity.errors import UsageError
from comity.runs.run import reopen


def pictures() -> Dataset:
    """A dataset of bytes with every optional field."""
    draw = np.random.default_rng(0)
    return Dataset(
        "pictures", torch.from_numpy(draw.integers(0, 256, (90, 3, 6, 5), dtype=np.uint8)), torch.arange(90) % 4, 4, "Über alles",
        "CC BY 4.0", torch.arange(90) >= 60, (0.1, 0.2, 0.3), (0.5,),
        {"who": Groups(("ann", "bob", "cyd"), np.arange(90) % 3), "where": Groups(("Zürich", "b 2"), np.arange(90) // 45)},
        "natural(by=where)", class_names=("a", "b", "c", "d"), warnings=("one note.", "another."),
    )  # fmt: skip


def table() -> Dataset:
    """A table with missing values."""
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(60, 4)))
    x[::7, 1] = torch.nan
    return Dataset(
        "table", x, torch.arange(60) % 2, 2, missing="impute", mean=(0.0, 1.0, 2.0, 3.0), std=(2.0,)
    )


def plain() -> Dataset:
    return Dataset(
        "plain",
        torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
        torch.arange(40) % 2,
        2,
    )


KINDS = {"pictures": pictures, "table": table, "plain": plain}


def save_dataset(folder: Path, kind: str = "pictures") -> Path:
    prepared.save(KINDS[kind](), folder / "kept")
    return folder / "kept"


# --- round trips


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, tmp_path: Path) -> None:
    before, after = KINDS[kind](), prepared.read(save_dataset(tmp_path, kind))
    for name in (
        "name",
        "classes",
        "description",
        "licence",
        "mean",
        "std",
        "default_partition",
        "missing",
        "class_names",
        "warnings",
        "shape",
    ):
        assert getattr(after, name) == getattr(before, name)
    assert after.x.dtype == before.x.dtype
    assert torch.equal(after.x.isnan(), before.x.isnan())
    assert torch.equal(after.x.nan_to_num(9), before.x.nan_to_num(9))
    assert torch.equal(after.y, before.y)
    assert (after.official_test is None) == (before.official_test is None)
    if before.official_test is not None and after.official_test is not None:
        assert torch.equal(after.official_test, before.official_test)
    assert list(after.groups) == list(before.groups)
    for by, groups in before.groups.items():
        assert after.groups[by].names == groups.names
        assert np.array_equal(after.groups[by].of, groups.of)
    assert after.fingerprint() == before.fingerprint()


@pytest.mark.parametrize(
    ("kind", "spec", "test"),
    [
        ("pictures", "natural", "official"),
        ("pictures", "auto", "common"),
        ("pictures", "domain(parts=2)|shift|concept", "own(0.25)"),
        ("pictures", "natural", "tail(0.25)"),
        ("table", "dirichlet(alpha=1,min=5)", "common"),
        ("plain", "iid|shift(kinds=texture,noise)", "matched"),
    ],
)
def test_a_federation_is_the_same_and_takes_the_same_split(
    kind: str, spec: str, test: str, tmp_path: Path
) -> None:
    before, after = KINDS[kind](), prepared.read(save_dataset(tmp_path, kind))
    fed = before.partition(
        spec, 3 if "iid" in spec or "dirichlet" in spec else None, seed=4, test=test
    )
    assert_same(
        fed,
        after.partition(spec, len(fed.names) if "auto" not in spec else None, seed=4, test=test),
    )
    assert_same(fed, after.split(fed.split))


def test_an_imported_folder_is_loaded_by_its_path(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path)
    assert load(str(folder)).fingerprint() == pictures().fingerprint()
    with pytest.raises(UsageError, match="There is no dataset"):
        load(str(tmp_path / "elsewhere"))


def test_read_dataset_can_be_saved_again(tmp_path: Path) -> None:
    prepared.save(prepared.read(save_dataset(tmp_path)), tmp_path / "second")
    for path in (tmp_path / "kept").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_bytes_are_mapped_not_copied(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path)
    data = prepared.read(folder)
    assert data.x.dtype == torch.uint8
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(folder / "x.npy") in maps.read_text()
    before = (folder / "x.npy").read_bytes()
    data.x[0] = 255 - data.x[0]  # writing changes a private copy of the page
    assert (folder / "x.npy").read_bytes() == before
    assert prepared.read(folder).fingerprint() == pictures().fingerprint()


# --- bytes are images


@given(seed=st.integers(0, 99), spec=st.sampled_from([
    "iid", "natural", "dirichlet(alpha=1,min=4)|shift", "domain(parts=2)|shift(kinds=texture,thick,thin,noise)|concept",
]), test=st.sampled_from(["own(0.25)", "tail(0.3)", "matched(size=3)", "common"]))  # fmt: skip
def test_bytes_are_their_values_over_255(seed: int, spec: str, test: str) -> None:
    """The same images as floats give an equal federation bit for bit."""
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.integers(0, 256, (80, 2, 5, 5), dtype=np.uint8))
    y, groups = (
        torch.from_numpy(draw.integers(0, 3, 80)),
        {"who": Groups(("ann", "bob"), np.arange(80) % 2)},
    )
    same: dict[str, Any] = {
        "y": y,
        "classes": 3,
        "groups": groups,
        "mean": (0.4, 0.6),
        "std": (0.3,),
        "official_test": torch.arange(80) % 3 == 0,
    }
    as_bytes, as_floats = (Dataset("d", x, **same) for x in (x, x.float() / 255))
    first, second = (d.partition(spec, 2, seed, test, 0.2) for d in (as_bytes, as_floats))
    assert first.preprocess.black == second.preprocess.black
    assert first.split.parties == second.split.parties
    for name in first.names:
        for part in ("train", "validation", "test"):
            a, b = (getattr(fed.parties[name], part) for fed in (first, second))
            assert a.x.dtype == torch.float32
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
            if "shift" not in spec:  # preprocessing of new bytes is the same
                assert torch.equal(
                    first.preprocess.for_party(name)(
                        x[list(getattr(first.split.parties[name], part))]
                    ),
                    a.x,
                )


def test_bytes_stay_bytes_and_are_checked() -> None:
    x = torch.zeros(20, 1, 4, 4, dtype=torch.uint8)
    assert Dataset("d", x, torch.arange(20) % 2, 2).x is x
    assert (
        Dataset("d", x[..., 0, 0], torch.arange(20) % 2, 2).x.dtype == torch.float32
    )  # a table of small numbers
    usual: dict[str, Any] = {"name": "d", "x": x, "y": torch.arange(20) % 2, "classes": 2}
    for change, message in (
        (
            {"y": torch.arange(20) % 3},
            "A label of dataset 'd' is 2, but labels must be less than classes=2",
        ),
        ({"y": torch.arange(19) % 2}, "The x and y of dataset 'd' must be of one length"),
        ({"y": torch.full((20,), 0.5)}, "The labels of dataset 'd' must be whole numbers"),
        ({"mean": (0.1, 0.2)}, "mean and std of dataset 'd' must be one number or one per channel"),
        (
            {"x": torch.zeros(0, 1, 4, 4, dtype=torch.uint8), "y": torch.zeros(0)},
            "There are no samples in dataset 'd'",
        ),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            Dataset(**(usual | change))


def test_fingerprint_depends_on_every_byte() -> None:
    first = pictures()
    x = first.x.clone()
    x[40, 2, 3, 3] += 1
    assert replace(first, x=x).fingerprint() != first.fingerprint()
    assert replace(first, x=first.x.clone()).fingerprint() == first.fingerprint()
    assert replace(first, mean=(0.1, 0.2, 0.31)).fingerprint() != first.fingerprint()


# --- changes to dataset.json

OTHERS = {
    "name": "others", "description": "another", "licence": "CC0", "home": "iid", "class_names": ["b", "a", "c", "d"],
    "notes": [], "mean": [0.1, 0.2, 0.4], "std": [0.6], "classes": 5, "missing": "impute", "version": 3,
    "groups": {"who": ["bob", "ann", "cyd"], "where": ["Zürich", "b 2"]}, "fingerprint": "0", "test": "0",
    "scale": "own", "scaled": [1], "schema": True,
}  # fmt: skip


def described(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    return description


@pytest.mark.parametrize("field", OTHERS)
def test_changed_field_is_refused(field: str, tmp_path: Path) -> None:
    """For example, swapped class names would be on every page."""
    folder = save_dataset(tmp_path)
    description = described(folder)
    assert description.keys() - {"crc"} == OTHERS.keys()
    assert description[field] != OTHERS[field]
    (folder / "dataset.json").write_text(
        json.dumps(description | {field: OTHERS[field]}), encoding="utf-8"
    )
    with pytest.raises(UsageError, match="damaged"):
        load(str(folder))


def test_a_folder_of_an_earlier_version_is_read_with_a_note(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path)
    description = {k: v for k, v in described(folder).items() if k != "crc"} | {"version": 3}
    (folder / "dataset.json").write_text(json.dumps(description), encoding="utf-8")
    data = load(str(folder))
    assert data.fingerprint() == pictures().fingerprint()
    assert data.warnings[:-1] == pictures().warnings
    assert "pictures: imported by an earlier version" in data.warnings[-1]
    (folder / "dataset.json").write_text(json.dumps(description | {"version": 4}), encoding="utf-8")
    with pytest.raises(UsageError, match="damaged"):
        load(str(folder))


# --- complete or not at all


@pytest.mark.parametrize("at", ["x.npy", "y.npy", "test.npy", "group-1.npy", "dataset.json"])
@pytest.mark.parametrize(
    "what", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_interrupted_write_leaves_nothing(
    at: str, what: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, write = safe_files.create_file, safe_files.write_atomically

    def torn(path: Path, *args: Any) -> Any:
        if path.name == at:
            path.write_bytes(b"half")
            raise what
        return (write if path.suffix == ".json" else create)(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(prepared, "create_file", torn)
        patch.setattr(prepared, "write_atomically", torn)
        with pytest.raises(type(what)):
            save_dataset(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert prepared.read(save_dataset(tmp_path)).fingerprint() == pictures().fingerprint()


def test_the_folder_appears_with_everything_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, renamed_files = os.rename, []

    def checked_rename(src: Path, dst: Path) -> None:
        assert not Path(dst).exists()
        renamed_files.append(sorted(p.name for p in Path(src).iterdir()))
        assert Path(src).parent == Path(dst).parent  # one file system, so the move is atomic
        rename(src, dst)

    monkeypatch.setattr(os, "rename", checked_rename)
    tmp_path.chmod(0o755)
    folder = save_dataset(tmp_path)
    assert renamed_files == [sorted(p.name for p in folder.iterdir())]
    assert renamed_files[0] == [
        "dataset.json",
        "group-0.npy",
        "group-1.npy",
        "test.npy",
        "x.npy",
        "y.npy",
    ]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755  # others may read it, too


def test_second_writer_leaves_the_existing_folder(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path)
    before = {p.name: (p.stat().st_ino, p.read_bytes()) for p in folder.iterdir()}
    prepared.save(table(), folder)
    assert {p.name: (p.stat().st_ino, p.read_bytes()) for p in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


def damage(folder: Path, how: str) -> None:
    """Damage a folder in one of several ways."""
    description = json.loads((folder / "dataset.json").read_text())
    match how.split():
        case ["flip", name]:
            blob = bytearray((folder / name).read_bytes())
            blob[-1] ^= 1
            (folder / name).write_bytes(bytes(blob))
        case ["lose", name]:
            (folder / name).unlink()
        case ["cut", name]:
            (folder / name).write_bytes((folder / name).read_bytes()[:-7])
        case ["empty", name]:
            (folder / name).write_bytes(b"")
        case ["swap", one, two]:
            (folder / one).write_bytes((folder / two).read_bytes())
        case ["pickle", name]:
            np.save(folder / name, np.array([{"a": 1}] * 90, dtype=object), allow_pickle=True)
        case ["tell", name, value]:
            (folder / "dataset.json").write_text(
                json.dumps(description | {name: json.loads(value)})
            )
        case ["forget", name]:
            del description[name]
            (folder / "dataset.json").write_text(json.dumps(description))
        case ["write", text]:
            (folder / "dataset.json").write_text(text)


@pytest.mark.parametrize("how", [
    "flip x.npy", "flip y.npy", "flip group-0.npy", "flip group-1.npy", "lose x.npy", "lose y.npy", "lose group-1.npy",
    "lose dataset.json", "cut x.npy", "cut y.npy", "cut test.npy", "empty x.npy", "empty dataset.json", "empty test.npy",
    "swap x.npy y.npy", "swap y.npy group-0.npy", "swap group-0.npy group-1.npy", "pickle y.npy", "pickle x.npy",
    "pickle test.npy", "tell version 0", "tell version null", 'tell fingerprint "0"', "tell classes 5", "tell classes 3",
    'tell classes "4"', "tell mean [0.1]", "tell std 0", "tell groups {}", "tell groups []", "tell groups null",
    'tell groups {"who":["a"],"b":["c"]}', 'tell missing "impute"', "forget version", "forget fingerprint", "forget name",
    "forget groups", "forget home", "write {", "write []", "write null", "write 3", 'write "x"', "write \x00",
])  # fmt: skip
def test_damaged_files_are_refused(how: str, tmp_path: Path) -> None:
    folder = save_dataset(tmp_path)
    damage(folder, how)
    with pytest.raises(UsageError):
        prepared.read(folder)


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "ran").touch, ())

    folder = save_dataset(tmp_path)
    for name in ("x", "y", "test", "group-0", "other"):
        np.save(folder / f"{name}.npy", np.array([Bad()] * 90, dtype=object), allow_pickle=True)
        with pytest.raises(UsageError):
            prepared.read(folder)
    assert not (tmp_path / "ran").exists()


# --- source files


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty COMITY_DATA, and an empty cache."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.setenv("COMITY_DATA", str(folder))
    monkeypatch.setenv("COMITY_CACHE", str(tmp_path / "cache"))
    return folder


class Reader:
    """Makes a dataset from the length of a file, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Path]] = []

    def __call__(self, paths: Any) -> Dataset:
        self.calls.append(dict(paths))
        n = sum(len(path.read_bytes()) for path in paths.values() if path.is_file())
        return Dataset("mine", torch.full((20, 2), float(n)), torch.arange(20) % 2, 2)

    def layout(self, *names: str, **more: Any) -> FileLayout:
        return FileLayout(self, names, **more)


@pytest.mark.parametrize(
    "inner", [".", "my-set", "MY-SET", "my_set", "raw", "my-set/raw", "MY-SET/raw"]
)
def test_files_are_found_plain_or_packed(inner: str, place: Path) -> None:
    layout = Reader().layout("a", "b")
    assert locate("my-set", layout) is None
    (place / inner).mkdir(parents=True, exist_ok=True)
    (place / inner / "a").write_text("a")
    assert locate("my-set", layout) is None  # all of them are needed
    with gzip.open(place / inner / "b.gz", "w") as file:
        file.write(b"b")
    paths = locate("my-set", layout)
    assert paths is not None
    assert {name: path.resolve() for name, path in paths.items()} == {
        "a": (place / inner / "a").resolve(), "b": (place / inner / "b.gz").resolve(),
    }  # fmt: skip
    (place / inner / "b").write_text("b")
    assert (locate("my-set", layout) or {})["b"].name == "b"  # plain before packed


def test_all_files_of_a_layout_come_from_one_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of one folder with the labels of another would be wrong silently."""
    second = tmp_path / "second"
    second.mkdir()
    monkeypatch.setenv("COMITY_DATA", f"{place}{os.pathsep}{second}")
    (place / "a").write_text("a")
    (second / "b").write_text("b")
    assert locate("d", Reader().layout("a", "b")) is None
    (second / "a").write_text("a")
    assert {p.parent for p in (locate("d", Reader().layout("a", "b")) or {}).values()} == {second}
    (place / "b").write_text("b")
    assert {p.parent for p in (locate("d", Reader().layout("a", "b")) or {}).values()} == {
        place
    }  # the first folder first


def test_files_are_read_once(place: Path, tmp_path: Path) -> None:
    read = Reader()
    (place / "a").write_text("four")
    first, second = (load_dataset("d", (read.layout("a"),)) for _ in range(2))
    assert len(read.calls) == 1
    assert first.fingerprint() == second.fingerprint()
    assert second.x[0, 0] == 4
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("change", ["content", "time", "place"])
def test_other_files_are_read_again(
    change: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Reader()
    (place / "a").write_text("four")
    load_dataset("d", (read.layout("a"),))
    match change:
        case "content":
            (place / "a").write_text("eleven more")
        case "time":
            os.utime(place / "a", ns=(1, 1))
        case "place":
            place.rename(tmp_path / "moved")
            monkeypatch.setenv("COMITY_DATA", str(tmp_path / "moved"))
    again = load_dataset("d", (read.layout("a"),))
    assert len(read.calls) == 2
    assert again.x[0, 0] == (11 if change == "content" else 4)


def test_a_folder_of_files_is_read_again_when_one_of_them_changes(place: Path) -> None:
    read = Reader()
    (place / "many" / "inner").mkdir(parents=True)
    (place / "many" / "inner" / "one").write_text("1")
    for expected in (1, 1):
        load_dataset("d", (read.layout("many"),))
        assert len(read.calls) == expected
    (place / "many" / "inner" / "two").write_text("2")
    load_dataset("d", (read.layout("many"),))
    assert len(read.calls) == 2


def test_first_layout_with_files_is_used(place: Path) -> None:
    first, second = Reader(), Reader()
    (place / "b").write_text("b")
    load_dataset("d", (first.layout("a"), second.layout("b")))
    assert (len(first.calls), len(second.calls)) == (0, 1)
    (place / "a").write_text("a")
    load_dataset("d", (first.layout("a"), second.layout("b")))
    assert (len(first.calls), len(second.calls)) == (1, 1)


def test_damaged_cache_is_rebuilt(place: Path, tmp_path: Path) -> None:
    read = Reader()
    (place / "a").write_text("four")
    fresh = load_dataset("d", (read.layout("a"),))
    cached = next((tmp_path / "cache").iterdir())
    damage(cached, "flip x.npy")
    assert load_dataset("d", (read.layout("a"),)).fingerprint() == fresh.fingerprint()
    assert len(read.calls) == 2


def test_unwritable_cache_is_ignored(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("COMITY_CACHE", str(tmp_path / "file" / "cache"))
    read = Reader()
    (place / "a").write_text("four")
    assert [load_dataset("d", (read.layout("a"),)).x[0, 0].item() for _ in range(2)] == [4, 4]
    assert len(read.calls) == 2


def test_pickles_are_read_with_trust_and_then_cached(place: Path) -> None:
    read, plain = Reader(), Reader()
    (place / "a.pkl").write_text("four")
    ways = (read.layout("a.pkl", pickles=True), plain.layout("a.bin"))
    message = (
        r"a\.pkl holds pickles, which can run anything: .* 'comity data prepare d"
        r" --trust-pickle'\.$"
    )
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            load_dataset("d", ways)
    assert read.calls == []
    load_dataset("d", ways, trust=True)
    load_dataset("d", ways)  # no longer a pickle
    assert len(read.calls) == 1
    (place / "a.pkl").write_text("other")  # other pickles
    with pytest.raises(UsageError, match=message):
        load_dataset("d", ways)
    (place / "a.bin").write_text("binary")
    assert load_dataset("d", ways).x[0, 0] == 6  # a layout without pickles is preferred
    assert len(read.calls) == 1


def test_damaged_cache_does_not_read_pickles_without_trust(place: Path, tmp_path: Path) -> None:
    read = Reader()
    (place / "a.pkl").write_text("four")
    load_dataset("d", (read.layout("a.pkl", pickles=True),), trust=True)
    damage(next((tmp_path / "cache").iterdir()), "flip x.npy")
    with pytest.raises(UsageError):
        load_dataset("d", (read.layout("a.pkl", pickles=True),))
    assert len(read.calls) == 1


def test_a_damaged_copy_is_replaced(place: Path, tmp_path: Path) -> None:
    read = Reader()
    (place / "a").write_text("four")
    load_dataset("d", (read.layout("a"),))
    damage(next((tmp_path / "cache").iterdir()), "flip x.npy")
    for _ in range(3):
        load_dataset("d", (read.layout("a"),))
    assert len(read.calls) == 2


def test_missing_files_error_names_all_layouts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = (Reader().layout("a", "b"), Reader().layout("c", description="the archive c"))
    with pytest.raises(DatasetNotFound) as caught:
        load_dataset("d", ways)
    assert (
        str(caught.value)
        == "The files of d are not here: put a, b or the archive c into the folder named by"
        f" COMITY_DATA ({place})."
    )
    monkeypatch.delenv("COMITY_DATA")
    assert (
        str(DatasetNotFound("d", ways, "owner/d"))
        == "The files of d are not here: put a, b or the archive c into a folder and name it with"
        " COMITY_DATA; or take it from the Hugging Face hub with --data hub:owner/d."
    )


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("COMITY_CACHE", "/mine")
    assert cache_folder() == Path("/mine")
    monkeypatch.delenv("COMITY_CACHE")
    assert cache_folder() == Path("/xdg/comity")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/comity")
    monkeypatch.setenv("COMITY_DATA", os.pathsep.join(["~/a", "", "/b"]))
    assert files.data_folders() == [Path("/home/me/a"), Path("/b")]


# --- regressions


@pytest.mark.parametrize("how", ["lose test.npy", "flip test.npy"])
def test_damage_to_the_official_test_part_is_noticed(how: str, tmp_path: Path) -> None:
    folder = save_dataset(tmp_path)
    damage(folder, how)
    with pytest.raises(UsageError):
        prepared.read(folder)


@pytest.mark.parametrize("how", ["lose cut_by.npy", "flip cut_by.npy"])
def test_cut_by_is_saved_and_checked(how: str, tmp_path: Path) -> None:
    cut = np.arange(20) // 2
    prepared.save(
        Dataset(
            "d",
            torch.rand(20, 3),
            torch.arange(20) % 2,
            2,
            official_test=torch.arange(20) < 4,
            cut_by=cut,
        ),
        tmp_path / "kept",
    )
    saved_units = prepared.read(tmp_path / "kept").cut_by
    assert saved_units is not None
    assert saved_units.tolist() == cut.tolist()
    damage(tmp_path / "kept", how)
    with pytest.raises(UsageError):
        prepared.read(tmp_path / "kept")


def test_bytes_of_numpy_are_bytes_too() -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    first = Dataset("d", x, np.arange(20) % 2, 2)  # type: ignore[arg-type]
    assert (
        first.fingerprint()
        == Dataset("d", torch.from_numpy(x), torch.arange(20) % 2, 2).fingerprint()
    )


def test_a_run_on_an_imported_folder_is_resumed_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_dataset(tmp_path, "plain")
    monkeypatch.chdir(tmp_path)
    result = comity.run(
        "solo",
        data="./kept",
        parties=2,
        model="linear",
        rounds=1,
        engine="loop",
        out=tmp_path / "run",
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert reopen(tmp_path / "run").federation.fingerprint() == result.job.federation.fingerprint()


@pytest.mark.filterwarnings("error")
def test_read_only_bytes_are_accepted_without_a_warning() -> None:
    """For example arrays that numpy maps from a file, or reads from a buffer."""
    x = np.frombuffer(bytes(range(160)) * 2, dtype=np.uint8).reshape(20, 1, 4, 4)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns only once per process
    try:
        assert Dataset("d", x, np.arange(20) % 2, 2).x.dtype == torch.uint8  # type: ignore[arg-type]
    finally:
        torch.set_warn_always(always)
