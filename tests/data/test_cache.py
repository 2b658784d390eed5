"""The cache of prepared datasets: concurrent processes, changed files, damaged copies, checksums."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comity.data import Dataset, catalogue, files, load, prepared
from comity.data.files import FileLayout, FilePaths, checksum_warnings, load_dataset

PROCESSES = 4


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a COMITY_DATA that holds a small `usps.npz`."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("COMITY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COMITY_CACHE", str(tmp_path / "cache"))
    save(tmp_path / "data" / "usps.npz", 0)
    return tmp_path / "cache"


def save(path: Path, first: int) -> None:
    x, y = np.full((4, 16, 16), 7, np.uint8), (np.arange(4, dtype=np.uint8) + first) % 10
    np.savez_compressed(path, x_train=x, y_train=y, x_test=x, y_test=y)


def test_prepared_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("usps")
    (cached,) = cache.iterdir()
    assert cached.name.startswith("usps-")
    monkeypatch.setattr(prepared, "save", None)
    monkeypatch.setattr(files, "file_digest", None)  # checksums only when preparing
    second = load("usps")
    assert (second.fingerprint(), second.warnings) == (first.fingerprint(), first.warnings)


def test_a_changed_file_is_read_again(cache: Path) -> None:
    before = load("usps")
    path = cache.parent / "data" / "usps.npz"
    save(path, 3)
    os.utime(path, ns=(1, 1))
    assert load("usps").y.tolist() == [3, 4, 5, 6] * 2
    assert before.y.tolist() == [0, 1, 2, 3] * 2  # the loaded dataset does not change


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "no json", "junk json", "no array", "version"]
)
def test_a_damaged_copy_is_not_used_and_made_again(damage: str, cache: Path) -> None:
    fine = load("usps").fingerprint()
    (cached,) = cache.iterdir()
    description, x = cached / "dataset.json", cached / "x.npy"
    match damage:
        case "cut":
            x.write_bytes(x.read_bytes()[:-100])
        case "changed":
            x.write_bytes(x.read_bytes()[:-1] + b"\0")
        case "no json":
            description.unlink()
        case "junk json":
            description.write_text("{")
        case "no array":
            x.unlink()
        case "version":
            description.write_text(description.read_text().replace('"version": ', '"version": 9'))
    assert load("usps").fingerprint() == fine
    assert prepared.read(cached).fingerprint() == fine


def test_unwritable_cache_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMITY_CACHE", os.devnull)
    assert load("usps").y.tolist() == [0, 1, 2, 3] * 2


def test_concurrent_processes_share_one_cache(cache: Path) -> None:
    """All processes read the files before there is a cache; one writes it, and all share its
    folder.
    """
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(PROCESSES), context.Queue()

    def reader(paths: FilePaths) -> Dataset:
        start.wait(30)
        return Dataset("some", torch.zeros(8, 1, 16, 16, dtype=torch.uint8), torch.arange(8), 8)

    def read_dataset() -> None:
        dataset = load_dataset("some", (FileLayout(reader, ("usps.npz",)),))
        results.put((dataset.fingerprint(), len(list(cache.iterdir()))))

    workers = [context.Process(target=read_dataset) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    outcomes = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len({fingerprint for fingerprint, _ in outcomes}) == 1
    (cached,) = cache.iterdir()  # and no incomplete folder beside it
    assert prepared.read(cached).fingerprint() == outcomes[0][0]


def test_cached_data_are_memory_mapped(cache: Path) -> None:
    x = load("usps").x
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc here")
    assert any("usps-" in line and "x.npy" in line for line in maps.read_text().splitlines())
    assert x.shape == (8, 1, 16, 16)


def test_other_file_than_the_published_one_is_warned_of(cache: Path) -> None:
    data = load("usps")
    (note,) = [note for note in data.warnings if "published" in note]
    assert note.startswith("usps: usps.npz is not the published file (its sha256 is ")
    assert len(data) == 8


def test_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    md5, other = "900150983cd24fb0d6963f7d28e17f72", "0" * 32
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

    def notes(sums: dict[str, str]) -> tuple[str, ...]:
        return checksum_warnings("some", sums, {"a": path})

    assert (
        notes({"a.bin": md5})
        == notes({"a.bin": sha})
        == notes({"a.bin": f"{other} {md5}"})
        == notes({"b.bin": other})
        == ()
    )
    assert notes({"a.bin": other}) == (
        f"some: a.bin is not the published file (its md5 is {md5}).",
    )


@pytest.mark.parametrize("name", ["usps", "office-caltech"])
def test_the_real_files_are_the_published_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(card["name"] == name and card["here"] for card in catalogue()):
        pytest.skip(f"no {name} in COMITY_DATA")
    monkeypatch.setenv("COMITY_CACHE", str(tmp_path))
    assert not [note for note in load(name).warnings if "published" in note]


def test_folder_names_may_differ_in_case_and_hyphens(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = cache.parent / "data" / "usps.npz"
    for folder in ("USPS", "usps/raw", "Us_Ps"):
        path = cache.parent / folder.replace("/", "-") / folder / "usps.npz"
        path.parent.mkdir(parents=True)
        path.write_bytes(source.read_bytes())
        monkeypatch.setenv("COMITY_DATA", str(cache.parent / folder.replace("/", "-")))
        assert len(load("usps")) == 8


def test_several_folders_and_no_folder(
    cache: Path, monkeypatch: pytest.MonkeyPatch, refuses: Any
) -> None:
    monkeypatch.setenv(
        "COMITY_DATA", os.pathsep.join(["/no/such/place", str(cache.parent / "data")])
    )
    assert len(load("usps")) == 8
    monkeypatch.setenv("COMITY_DATA", "")
    with refuses(
        "usps",
        "put usps.bz2, usps.t.bz2 or usps.npz into a folder and name it with COMITY_DATA",
        "hub:flwrlabs/usps",
    ):
        load("usps")
