"""JSON files with checksums: what was written, or an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comity.checksums import read_json, with_crc
from comity.errors import CorruptedFile

CONTENT = {"seeds": [0, 1], "name": "fedavg"}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "content.json"
    path.write_text(json.dumps(with_crc(CONTENT)))
    assert read_json(path, needs_checksum=True) == CONTENT


def test_files_of_earlier_versions_have_no_checksum(tmp_path: Path) -> None:
    path = tmp_path / "content.json"
    path.write_text(json.dumps(CONTENT))
    assert read_json(path) == CONTENT
    with pytest.raises(CorruptedFile, match="checksum is missing"):
        read_json(path, needs_checksum=True)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(with_crc(CONTENT)).replace("fedavg", "fedprox"),
        json.dumps(with_crc(CONTENT))[:-1],
        "[" * 100_000,
        "[1]",
        "null",
        "",
        "\udcff",
    ],
    ids=["changed", "cut", "deep", "list", "null", "empty", "no text"],
)
def test_damage_is_an_error_that_names_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "content.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CorruptedFile, match=r"content\.json is damaged"):
        read_json(path)


def test_a_missing_file_is_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "content.json")
