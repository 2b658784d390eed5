"""`import_federation`: arrays, tables and images, one file or folder for each party."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import comity
from comity import cli
from comity.data import load
from comity.data.importing import import_federation
from comity.data.tables import summarize_schema
from comity.errors import UsageError

RNG = np.random.default_rng(0)


def arrays(
    path: Path, n: int = 8, shape: tuple[int, ...] = (3,), classes: int = 2, **more: Any
) -> None:
    arrays_to_save = {"x": RNG.normal(size=(n, *shape)), "y": np.arange(n) % classes} | more
    np.savez(path, **arrays_to_save)


def table(path: Path, rows: list[str], header: str = "age,colour,label") -> None:
    text = "\n".join([header, *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def photo(path: Path, shade: int, size: tuple[int, int] = (6, 4)) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(np.full((*size, 3), shade, np.uint8)).save(path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_arrays(source: Path, out: Path) -> None:
    arrays(source / "north.npz", 8)
    arrays(source / "south.npz", 12, classes=3)
    data = import_federation(source, out)
    assert (data.name, len(data), data.shape, data.classes) == ("mine", 20, (3,), 3)
    assert data.groups["party"].names == ("north", "south")
    assert (data.default_partition, data.official_test, data.mean, data.std) == (
        "natural(by=party)",
        None,
        (0.0,),
        (1.0,),
    )
    with np.load(source / "north.npz") as saved:
        assert np.allclose(data.x[:8].numpy(), saved["x"])
    fed = load(str(out)).partition("auto")
    assert {
        name: len(p.train) + len(p.validation) + len(p.test) for name, p in fed.parties.items()
    } == {"north": 8, "south": 12}


def test_a_test_part(source: Path, out: Path) -> None:
    for name, test_count in (("north", 2), ("south", 4)):
        arrays(
            source / f"{name}.npz",
            8,
            x_test=np.zeros((test_count, 3)),
            y_test=np.zeros(test_count, np.int64),
        )
    data = import_federation(source, out, name="hospitals")
    assert data.official_test is not None
    assert data.official_test.sum() == 6
    assert any("--test official" in note for note in data.warnings)
    fed = data.partition("auto", test="official")
    assert [len(p.test) for p in fed.parties.values()] == [2, 4]
    assert (fed.parties["south"].test.x == 0).all()


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (RNG.integers(0, 256, (8, 6, 5), np.uint8), (1, 6, 5)),
        (RNG.integers(0, 256, (8, 6, 5, 3), np.uint8), (3, 6, 5)),
        (RNG.integers(0, 256, (8, 3, 6, 5), np.uint8), (3, 6, 5)),
        (RNG.random((8, 6, 5, 3)), (3, 6, 5)),
        (RNG.normal(size=(8, 9, 12)), (9, 12)),
        (RNG.integers(0, 256, (8, 7), np.uint8), (7,)),
    ],
)
def test_arrays_of_pictures_and_signals(
    x: Any, shape: tuple[int, ...], source: Path, out: Path
) -> None:
    np.savez(source / "a.npz", x=x, y=np.arange(8) % 2)
    data = import_federation(source, out)
    assert data.shape == shape
    assert data.x.dtype == (
        torch.uint8 if x.dtype == np.uint8 and len(shape) == 3 else torch.float32
    )
    assert data.mean == ((0.5,) if len(shape) == 3 else (0.0,))


def test_tables_of_all_kinds(source: Path, out: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table(source / "east.csv", ["31,red,no", "?,blue,yes", "40,red,no", "41,,no"])
    table(
        source / "north.csv.gz",
        ["no,green,50", "yes,red,", "no,red,1.5", "yes,red,2"],
        header="label,colour,age",
    )
    saved = {"age": [1, 2, 3, 4], "colour": ["blue"] * 4, "label": ["maybe", "no", "no", "no"]}
    parquet.write_table(arrow.table(saved), source / "west.parquet")
    data = import_federation(source, out, keep_label_words=True)
    assert data.class_names == ("maybe", "no", "yes")
    assert data.y.tolist() == [1, 2, 1, 1, 1, 2, 1, 2, 0, 1, 1, 1]
    assert data.groups["party"].names == ("east", "north", "west")
    assert data.x[:, 1:].int().tolist()[:5] == [
        [0, 0, 1],
        [1, 0, 0],
        [0, 0, 1],
        [0, 0, 0],
        [0, 1, 0],
    ]  # blue, green, red
    assert data.x[:, 0].isnan().tolist() == [False, True, False, False, False, True] + [False] * 6
    assert (data.missing, data.shape) == ("impute", (5,))
    assert data.schema is not None
    assert any("colour (blue, green, red)" in line for line in summarize_schema(data.schema))
    assert any("12% of all values are missing" in note for note in data.warnings)
    x = data.partition("auto").parties["east"].train.x
    assert x.isfinite().all()
    assert x.shape[1] == 5  # a column marks filled cells


def test_numeric_labels_are_unchanged(source: Path, out: Path) -> None:
    table(source / "a.csv", [f"{k},{k % 2 + 1}.0" for k in range(8)], header="age,outcome")
    table(source / "b.csv", [f"{k},2" for k in range(8)], header="age,outcome")
    data = import_federation(source, out, label="outcome", classes=4)
    assert (data.classes, data.class_names) == (4, ())
    assert data.y.tolist() == [1, 2] * 4 + [2] * 8
    assert any("no sample has the label 0, 3." in note for note in data.warnings)


@pytest.mark.parametrize("kind", ["tables", "arrays", "pictures"])
@pytest.mark.parametrize(
    ("labels", "span"), [(range(1, 11), "1 to 10"), ((0, 7), "0, 7"), ((1, 2), "1, 2")]
)
def test_numbers_with_gaps_are_classes_by_name(
    kind: str, labels: Sequence[int], span: str, source: Path, out: Path
) -> None:
    """Labels 1 to 10 are ten classes and not eleven; {0, 7} are two and not eight."""
    for party in ("a", "b"):
        chosen = [labels[k % len(labels)] for k in range(20)]
        if kind == "tables":
            table(source / f"{party}.csv", [f"{k},red,{y}" for k, y in enumerate(chosen)])
        elif kind == "arrays":
            np.savez(source / f"{party}.npz", x=RNG.normal(size=(20, 3)), y=chosen)
        else:
            for k, y in enumerate(chosen):
                photo(source / party / str(y) / f"{k}.png", k)
    data = import_federation(source, out)
    assert data.classes == len(labels)
    assert data.class_names == tuple(map(str, labels))
    places = [labels.index(y) for y in chosen]
    if kind == "pictures":  # in the order of their folders
        places = [labels.index(y) for y in sorted(chosen, key=str)]
    assert data.y.tolist() == places * 2
    (warning,) = (text for text in data.warnings if "no sample has the label" in text)
    assert f"named {span}." in warning
    assert f"--classes {max(labels) + 1}" in warning
    federation = data.partition("auto")
    assert not any("no sample" in text for text in federation.warnings if text != warning)


def test_amounts_with_gaps_are_no_classes(source: Path, out: Path) -> None:
    np.savez(source / "a.npz", x=RNG.normal(size=(20, 3)), y=np.arange(20) * 3)
    with pytest.raises(UsageError, match="number the classes 0, 1, 2"):
        import_federation(source, out)


def test_each_party_is_standardised_by_its_own_file(source: Path, out: Path) -> None:
    table(
        source / "a.csv",
        [f"{k},1,{k % 2},{k % 2}" for k in range(10)],
        header="age,same,flag,label",
    )
    table(
        source / "b.csv",
        [f"{100 * k if k else ''},2,{k % 2},{k % 2}" for k in range(10)],
        header="age,same,flag,label",
    )
    data = import_federation(source, out, kinds={"age": "number"})
    assert data.x[:10, 0].tolist() == list(range(10)), (
        "the saved values differ from those of the file"
    )
    fed = data.partition("auto", validation=0.0)
    for name, party in fed.parties.items():
        values = party.train.x
        raw = data.x[list(fed.split.parties[name].train)]
        present = raw[:, 0][~raw[:, 0].isnan()].double()
        assert values[:, 0].mean().abs() < 1e-6
        expected = (raw[:, 0].double() - present.mean()) / present.std(correction=0)
        assert torch.allclose(
            values[:, 0][~raw[:, 0].isnan()], expected[~raw[:, 0].isnan()].float(), atol=1e-5
        )
        assert (values[:, 1] == 0).all()  # constant, so not scaled
        assert set(values[:, 2].tolist()) == {0.0, 1.0}  # binary columns are not scaled
    assert data.schema is not None
    assert any("standardised by the mean" in line for line in summarize_schema(data.schema))


def test_shared_statistics_are_common_and_charged(source: Path, out: Path, tmp_path: Path) -> None:
    table(source / "a.csv", [f"{k * 1.5},{k % 2}" for k in range(10)], header="age,label")
    table(source / "b.csv", [f"{100.5 * k},{k % 2}" for k in range(20)], header="age,label")
    data = import_federation(source, out, scale="shared")
    fed = data.partition("auto", validation=0.0)
    rows = [row for share in fed.split.parties.values() for row in share.train]
    assert fed.preprocess.mean == pytest.approx([data.x[rows].double().mean().item()])
    assert fed.preprocess.std == pytest.approx([data.x[rows].double().std(correction=0).item()])
    assert torch.cat([party.train.x for party in fed.parties.values()]).mean().abs() < 1e-6
    ledger = comity.run("fedavg", fed, rounds=1, model="linear", out=tmp_path / "run").ledger
    assert [(row.src, row.dst, row.kind, row.bytes) for row in ledger if row.call == "scale"] == [
        ("a", "server", "setup", 24), ("server", "a", "setup", 16), ("b", "server", "setup", 24), ("server", "b", "setup", 16),
    ]  # fmt: skip
    alone = comity.run(
        "fedavg",
        import_federation(source, tmp_path / "own").partition("auto"),
        rounds=1,
        model="linear",
    ).ledger
    assert not [row for row in alone if row.call == "scale"]


def test_a_test_part_is_scaled_by_the_training_part(source: Path, out: Path) -> None:
    arrays(
        source / "a.npz",
        x=np.array([[0.0], [2.0], [4.0], [6.0]]),
        y=[0, 1, 0, 1],
        x_test=[[30.0]],
        y_test=[0],
    )
    party = (
        import_federation(source, out, scale="own")
        .partition("auto", test="official", validation=0.0)
        .parties["a"]
    )
    assert party.train.x.mean().item() == pytest.approx(0, abs=1e-6)
    assert party.test.x.item() == pytest.approx((30 - 3) / np.sqrt(5))


def test_pictures(source: Path, out: Path) -> None:
    for party, kinds in (("east", ("cat", "dog")), ("west", ("ant", "dog"))):
        for k, kind in enumerate(kinds):
            for n in range(3):
                photo(source / party / kind / f"{n}.png", 50 * k + n)
    data = import_federation(source, out)
    assert (data.shape, data.classes, data.class_names) == ((3, 6, 4), 3, ("ant", "cat", "dog"))
    assert data.x.dtype == torch.uint8
    assert data.y.tolist() == [1] * 3 + [2] * 3 + [0] * 3 + [2] * 3
    assert data.x[:, 0, 0, 0].tolist() == [0, 1, 2, 50, 51, 52] * 2
    assert import_federation(source, out.with_name("small"), size=2).shape == (3, 2, 2)


def test_folders_called_by_numbers_are_numbers(source: Path, out: Path) -> None:
    for kind in ("0", "2", "10"):
        for n in range(4):
            photo(source / "a" / kind / f"{n}.png", 9)
    data = import_federation(source, out)
    assert data.class_names == ("0", "2", "10")
    assert data.y.tolist() == [0] * 4 + [2] * 4 + [1] * 4


def test_imported_federation_runs(
    source: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(source / "a.csv", [f"{k % 5},{'red' if k % 3 else ''},{k % 2}" for k in range(24)])
    table(source / "b.csv", [f"{k % 7 or ''},blue,{k % 2}" for k in range(30)])
    import_federation(source, out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sys.argv", ["comity", "run", "fedavg", "--data", str(out), "--rounds", "1", "--out", "run"]
    )
    cli.main()
    assert (tmp_path / "run" / "summary.json").exists()


def test_small_parties_are_warned_of(source: Path, out: Path) -> None:
    arrays(source / "big.npz", 20)
    arrays(source / "tiny.npz", 2)
    data = import_federation(source, out)
    assert any("tiny with fewer than 4 samples take no part" in note for note in data.warnings)
    assert data.partition("auto").names == ["big"]
    assert data.partition("natural(min=1)").names == ["big", "tiny"]


TABLE_ROWS = ["1,red,0", "2,red,1", "3,red,0", "4,red,1"]
WriteFiles = Callable[[Path], Any]


def import_federation_into(folder: Path) -> None:
    """Make the source a folder that an import has written."""
    folder.rmdir()
    other = folder.with_name("other")
    other.mkdir()
    arrays(other / "a.npz")
    import_federation(other, folder)


def two_parties(
    first: Callable[[Path], Any], second: Callable[[Path], Any], ending: str = "npz"
) -> WriteFiles:
    return lambda s: (first(s / f"north.{ending}"), second(s / f"south.{ending}"))


BAD: dict[str, tuple[WriteFiles, dict[str, Any], str]] = {
    "nothing": (lambda s: None, {}, "is empty: put one file or folder per party into it."),
    "no folder": (lambda s: s.rmdir(), {}, "There is no folder"),
    "a stray file": (
        lambda s: (s / "README.md").write_text("x"),
        {},
        "README.md is not a party's file",
    ),
    "imported already": (import_federation_into, {}, "is already an imported dataset"),
    "a bad name": (lambda s: arrays(s / "north,1.npz"), {}, "A party cannot be called 'north,1'"),
    "the server": (lambda s: arrays(s / "Server.npz"), {}, "which stands for the server"),
    "two files": (
        lambda s: (arrays(s / "a.npz"), table(s / "a.csv", TABLE_ROWS)),
        {},
        "has two files, a.csv and a.npz",
    ),
    "two kinds": (
        lambda s: (arrays(s / "a.npz"), table(s / "b.csv", TABLE_ROWS)),
        {},
        "Party 'b' brings a table but party 'a' arrays",
    ),
    "size": (lambda s: arrays(s / "a.npz"), {"size": 8}, "size is for pictures"),
    "columns": (
        lambda s: arrays(s / "a.npz"),
        {"drop": ("x",)},
        "drop is for tables, but these parties bring arrays.",
    ),
    "scale": (
        lambda s: arrays(s / "a.npz"),
        {"scale": "all"},
        "scale must be own, shared or none, not 'all'.",
    ),
    "no x": (
        lambda s: np.savez(s / "a.npz", z=[1], y=[1]),
        {},
        "a.npz has no array called x; it has z, y.",
    ),
    "half a test": (
        lambda s: arrays(s / "a.npz", x_test=np.zeros((2, 3))),
        {},
        "has no array called y_test",
    ),
    "pickles": (
        lambda s: np.savez(s / "a.npz", x=np.array([{}], object), y=[1]),
        {},
        "holds Python objects in x",
    ),
    "lengths": (
        lambda s: arrays(s / "a.npz", y=np.zeros(3)),
        {},
        "a.npz has 8 samples but 3 labels",
    ),
    "flat": (lambda s: arrays(s / "a.npz", x=np.zeros(8)), {}, "has samples of shape (8,)"),
    "words": (
        lambda s: arrays(s / "a.npz", x=np.full((8, 2), "a")),
        {},
        "but each sample must be a row of numbers",
    ),
    "two labels": (
        lambda s: arrays(s / "a.npz", y=np.zeros((8, 2))),
        {},
        "has labels of shape (8, 2)",
    ),
    "no samples": (lambda s: arrays(s / "a.npz", 0), {}, "a.npz holds no samples."),
    "another test": (
        lambda s: arrays(s / "a.npz", x_test=np.zeros((2, 5)), y_test=[0, 1]),
        {},
        "test samples of shape (5,)",
    ),
    "shapes": (
        two_parties(arrays, lambda p: arrays(p, shape=(4,))),
        {},
        "The samples of party 'south' have shape (4,) but",
    ),
    "types": (
        two_parties(
            lambda p: arrays(p, x=np.zeros((8, 1, 4, 4), np.uint8)),
            lambda p: arrays(p, x=np.zeros((8, 1, 4, 4))),
        ),
        {},
        "The samples of party 'south' are of type float32 but those of party 'north' of type uint8",
    ),
    "one test": (
        two_parties(arrays, lambda p: arrays(p, x_test=np.zeros((1, 3)), y_test=[0])),
        {},
        "Party 'south' has a test part but party 'north' has none",
    ),
    "infinite": (
        two_parties(arrays, lambda p: arrays(p, x=np.full((8, 3), np.inf))),
        {},
        "Party 'south' has infinite values",
    ),
    "missing": (
        two_parties(
            lambda p: arrays(p, shape=(3, 4)), lambda p: arrays(p, x=np.full((8, 3, 4), np.nan))
        ),
        {},
        "Party 'south' has missing values",
    ),
    "bright": (
        lambda s: arrays(s / "a.npz", x=np.full((8, 3, 4, 4), 200.0)),
        {},
        "scale them to [0, 1]",
    ),
    "half labels": (
        lambda s: arrays(s / "a.npz", y=np.full(8, 0.5)),
        {},
        "has the label 0.5 in row 1",
    ),
    "negative": (lambda s: arrays(s / "a.npz", y=np.full(8, -1)), {}, "has the label -1 in row 1"),
    "few classes": (
        lambda s: arrays(s / "a.npz", classes=4),
        {"classes": 3},
        "has the label 3 in row 4",
    ),
    "years": (
        lambda s: arrays(s / "a.npz", y=np.arange(8) + 1990),
        {},
        "The labels run up to 1997, but there are only 8",
    ),
    "one class": (lambda s: arrays(s / "a.npz", classes=1), {}, "All samples have the same label"),
    "mixed labels": (
        two_parties(arrays, lambda p: arrays(p, y=np.array(["a", "b"] * 4))),
        {},
        "The labels of party 'north' are numbers but those of party 'south' words",
    ),
    "no label": (
        lambda s: table(s / "a.csv", ["1,red,yes", "1,red,"]),
        {},
        "a.csv has no label in row 2 of 'label': fill",
    ),
    "no number": (
        lambda s: table(s / "a.csv", ["1,red,1", "1,red,NA"]),
        {},
        "a.csv has no label in row 2 of 'label': fill",
    ),
    "word classes": (
        lambda s: table(s / "a.csv", ["1,red,yes", "1,red,no"]),
        {"classes": 3},
        "are 2 words, not 3",
    ),
    "label column": (
        lambda s: table(s / "a.csv", TABLE_ROWS),
        {"label": "class"},
        "a.csv has no column called 'class', the label to predict",
    ),
    "only labels": (
        lambda s: table(s / "a.csv", ["1", "0"], header="label"),
        {},
        "no column but 'label'",
    ),
    "a typing error": (
        two_parties(
            lambda p: table(p, TABLE_ROWS), lambda p: table(p, ["12o,red,0", "5,red,1"]), "csv"
        ),
        {},
        (
            "The column 'age' of party 'south' has '12o', but that of party 'north' only numbers:"
            " correct"
        ),
    ),
    "names": (
        lambda s: table(s / "a.csv", [f"1,name{k},{k % 2}" for k in range(300)]),
        {"kinds": {"colour": "words"}},
        "has 300 different words",
    ),
    "a cut table": (
        lambda s: (s / "a.csv").write_text("age,label\n1,0\n2\n"),
        {},
        "a.csv has 1 cells in line 3, but 2 columns",
    ),
    "damaged": (
        lambda s: (s / "a.npz").write_bytes(b"PK\3\4junk"),
        {},
        "a.npz is damaged or cut short",
    ),
    "a loose picture": (
        lambda s: photo(s / "a" / "cat.png", 1),
        {},
        "cat.png is not in a folder of its class.",
    ),
    "an empty party": (
        lambda s: (s / "a").mkdir(),
        {},
        "is empty: it must have one folder per class.",
    ),
    "sizes": (
        lambda s: (photo(s / "a/x/1.png", 1), photo(s / "b/x/1.png", 1, (9, 9))),
        {},
        "has 9 x 9 pixels but",
    ),
    "scaled pictures": (
        lambda s: photo(s / "a" / "x" / "1.png", 1),
        {"scale": "own"},
        "scale is for tables and signals",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_sources_are_refused(case: str, source: Path, out: Path) -> None:
    make, options, message = BAD[case]
    make(source)
    with pytest.raises(UsageError) as caught:
        import_federation(source, out, **options)
    text = str(caught.value)
    assert message in text
    assert text.endswith(".")
    assert "\n" not in text
    assert not re.search(r"[.!?] +[A-Z]", text)
    assert not out.exists()


def test_nothing_is_overwritten(source: Path, out: Path) -> None:
    arrays(source / "a.npz")
    out.mkdir()
    with pytest.raises(UsageError, match="is there already: choose another folder, or remove it"):
        import_federation(source, out)
    with pytest.raises(UsageError, match="would lie among the parties"):
        import_federation(source, source / "out")
    assert list(out.iterdir()) == []
