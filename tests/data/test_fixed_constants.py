"""Schemas with `"scale": "fixed"`: constants for scaling that users write by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import comity as command
from harness import succeed

from comity.data import load
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
    lines = [f"{40 + 7 * k % 31},{k % 3 % 2},{'yes' if k % 2 else 'no'}" for k in range(40)]
    folder.mkdir(exist_ok=True)
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


def test_constants_can_be_typed(tmp_path: Path) -> None:
    source = table(tmp_path / "in")
    typed = ["--label", "label", "--constant", "age=60,15"]
    succeed("data", "schema", source, *typed, "--out", tmp_path / "schema.json")
    schema = read_schema(tmp_path / "schema.json")
    (age, _ill) = schema.columns
    assert (schema.scale, age.mean, age.std) == ("fixed", 60.0, 15.0)
    # Merged again, as where each party describes its own file.
    succeed("data", "schema", tmp_path / "schema.json", "--out", tmp_path / "merged.json")
    assert read_schema(tmp_path / "merged.json").columns == schema.columns
    out = tmp_path / "out"
    succeed("data", "import", source, "--schema", tmp_path / "schema.json", "--out", out)
    succeed("data", "import", source, *typed, "--out", tmp_path / "direct")
    assert load(str(out)).fingerprint() == load(str(tmp_path / "direct")).fingerprint()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--constant bmi=25,4", "There is no column of numbers called 'bmi'"),
        ("--constant age=60", "--constant takes column=mean,std"),
        ("--constant age=60,0", "standard deviation above 0"),
        ("--scale fixed", "say --constant COLUMN=MEAN,STD for each column of numbers"),
    ],
)
def test_wrong_constants_are_refused(tmp_path: Path, words: str, message: str) -> None:
    result = command(
        *("data", "import", table(tmp_path / "in"), "--label", "label"),
        *(*words.split(), "--out", tmp_path / "out"),
    )
    assert result.code == 2
    assert message in result.err


def test_all_numbers_need_constants(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--constant 'age=MEAN,STD'"):
        import_federation(
            heights(tmp_path), tmp_path / "out", label="label", constants={"height": (170, 10)}
        )


def heights(folder: Path) -> Path:
    """A table with two columns of numbers."""
    lines = [f"{40 + 7 * k % 31},{160 + k % 30},{'yes' if k % 2 else 'no'}" for k in range(40)]
    path = folder / "north.csv"
    path.write_text("\n".join(["age,height,label", *lines]) + "\n")
    return path


def test_every_dead_end_says_how_to_get_constants(tmp_path: Path) -> None:
    source = table(tmp_path / "in")
    sites = tmp_path / "sites"
    succeed("data", "import", source, "--label", "label", "--out", sites)
    budget = ("--budget", "epsilon=3,delta=1e-5", "--model", "linear")
    succeed("data", "schema", source, "--label", "label", "--out", tmp_path / "schema.json")
    for words in (
        ("plan", "fedavg+dp", "--data", sites, *budget),
        ("plan", "fedavg+dp", "--data", f"{sites}(scale=fixed)", *budget),
        (
            *("data", "import", source, "--schema", tmp_path / "schema.json", "--scale", "fixed"),
            *("--out", tmp_path / "x"),
        ),
    ):
        result = command(*words)
        assert result.code == 2
        assert "--constant COLUMN=MEAN,STD" in result.err, result.err
    assert (
        "takes no options such as 'scale'"
        in command("run", "fedavg", "--data", f"{sites}(scale=x)").err
    )
