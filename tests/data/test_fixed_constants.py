"""Schemas with `"scale": "fixed"`: constants for scaling that users write by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comity.data.importing import import_federation
from comity.data.preparation import Schema
from comity.data.tables import read_schema
from comity.errors import UsageError


def schema_with(folder: Path, **constants: Any) -> Path:
    """A schema file with the constants of the column age."""
    columns = [{"name": "age", "kind": "number", **constants}, {"name": "ill", "kind": "flag"}]
    content = {
        "comity_schema": 1,
        "columns": columns,
        "label": "label",
        "classes": ["no", "yes"],
        "scale": "fixed",
    }
    path = folder / "schema.json"
    path.write_text(json.dumps(content))
    return path


def table(folder: Path) -> Path:
    lines = [f"{40 + k % 40},{k % 3 % 2},{'yes' if k % 2 else 'no'}" for k in range(40)]
    path = folder / "north.csv"
    path.write_text("\n".join(["age,ill,label", *lines]) + "\n")
    return path


@pytest.mark.parametrize("constants", [(60, 15), (60.0, 15), (0, 1), (0.0, 1.0)])
def test_whole_numbers_are_constants(tmp_path: Path, constants: tuple[float, float]) -> None:
    mean, std = constants
    schema = read_schema(schema_with(tmp_path, mean=mean, std=std))
    data = import_federation(table(tmp_path), tmp_path / "out", schema=schema)
    assert data.mean[0] == mean
    assert data.std[0] == std
    assert data.schema == schema
    assert Schema.from_dict(schema.to_dict()) == schema


def test_constants_must_be_there(tmp_path: Path) -> None:
    for constants in ({}, {"mean": 60}, {"std": 15}):
        with pytest.raises(UsageError) as caught:
            read_schema(schema_with(tmp_path, **constants))
        assert "age has no mean and std, which scale fixed needs" in str(caught.value)
        assert '"mean": 60, "std": 15' in str(caught.value)


@pytest.mark.parametrize("constants", [("60", 15), (60, 0), (True, 15), (60, float("nan"))])
def test_constants_must_be_numbers(tmp_path: Path, constants: tuple[Any, Any]) -> None:
    mean, std = constants
    with pytest.raises(UsageError, match="mean and std of 'age' must be numbers"):
        read_schema(schema_with(tmp_path, mean=mean, std=std))
