"""Whatever has happened to a run's files, the page is written, says what is wrong, and shows the
rest.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written import SMALL, Written, compared, without_checksums

from comity import run
from comity.reporting import build_sections, report
from comity.reporting.blocks import Text
from comity.reporting.gather import gather

FILES = (
    "config.toml",
    "metrics.csv",
    "ledger.csv",
    "summary.json",
    "outcomes.csv",
    "split.json",
    "env.json",
)
GARBAGE = bytes(range(256)) * 3
HEADS = "method,left_out,party,effect,low,high"
SHAPES = (
    "[]",
    "3",
    "null",
    '"x"',
    "{}",
    '{"parties": {"p0": 3}}',
    '{"accuracy": 3, "bytes": [], "seconds": null}',
    "[" * 9999,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    compared(folder, ["fedavg"])
    assert not read(folder).notes
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A comparison of SOLO and FedAvg, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "it"))


def read(folder: Path) -> Written:
    return Written(report(folder, quick=True))


def told(page: Written, name: str) -> bool:
    """Whether a note names the file; no section is lost, and SOLO is still in the table."""
    assert not page.broken, page.notes
    assert [len(some) for some in page.sections.values()] == [7]
    assert page.table("accuracy")[0]["method"] in ("solo", "fedavg")
    assert {row["method"] for row in page.table("accuracy")} == {"solo", "fedavg"}
    assert "accuracy-by-round" in {chart["name"] for chart in page.charts.values()}
    return any(name in note and "fedavg/seed-0" in note for note in page.notes)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "cut", "a folder"])
def test_a_damaged_file(name: str, how: str, folder: Path) -> None:
    path = folder / "fedavg" / "seed-0" / name
    body = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "missing":
        path.write_bytes({"empty": b"", "garbage": GARBAGE, "cut": body[: len(body) // 2 + 1]}[how])
    page = read(folder)
    if (name, how) == ("summary.json", "missing"):
        assert told(page, "comity resume")
        assert "fedavg, seed 0, is not finished: it has 2 of 2 rounds." in page.words
    else:
        whole = (name, how) == ("config.toml", "empty")  # every setting has a default
        assert told(
            page,
            f"{name}"
            f" {'and env.json do not agree' if whole else f'is {how}' if how == 'missing' else 'is damaged'}",
        )


@pytest.mark.parametrize("name", ["metrics.csv", "ledger.csv", "outcomes.csv"])
def test_a_table_cut_between_two_lines(name: str, folder: Path) -> None:
    """It looks whole, but its figures are not the summary's."""
    path = folder / "fedavg" / "seed-0" / name
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    last = {"metrics.csv": -7, "ledger.csv": -9, "outcomes.csv": -2}[name]
    path.write_text("".join(lines[:last]), encoding="utf-8")
    page = read(folder)
    assert told(page, f"{name} is damaged") or told(page, f"{name} and summary.json do not agree")


@pytest.mark.parametrize("name", ["metrics.csv", "ledger.csv", "outcomes.csv"])
def test_a_table_without_rows(name: str, folder: Path) -> None:
    path = folder / "fedavg" / "seed-0" / name
    path.write_text(path.read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
    assert told(read(folder), f"{name} is damaged")


def test_a_summary_of_an_earlier_version(folder: Path) -> None:
    """What the contract names is enough."""
    path = folder / "fedavg" / "seed-0" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({k: v for k, v in summary.items() if k not in ("newcomers", "diverged", "auc")}),
        encoding="utf-8",
    )
    without_checksums(folder)
    assert not read(folder).notes


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s[:20])
@pytest.mark.parametrize("name", ["summary.json", "split.json", "config.toml", "metrics.csv"])
def test_another_shape(name: str, shape: str, folder: Path) -> None:
    (folder / "fedavg" / "seed-0" / name).write_text(shape, encoding="utf-8")
    assert told(read(folder), f"{name} is damaged")


PLACES = [
    ("accuracy", "mean"),
    ("accuracy", "per_party"),
    ("bytes", "total"),
    ("seconds", "total"),
    ("diverged",),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [None, "x", {}, {"p0": None}, float("nan"), 7])
def test_a_summary_with_a_wrong_value(place: tuple[str, ...], value: object, folder: Path) -> None:
    path = folder / "fedavg" / "seed-0" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    inner = summary
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(summary), encoding="utf-8")
    page = read(folder)
    escape_terminal = (place[-1] == "diverged" and value in ("x", {}, {"p0": None})) or (
        place[0] == "seconds" and value == 7
    )
    assert told(page, "summary.json") or escape_terminal
    assert "nan" not in page.words.lower()


@pytest.mark.parametrize("name", ["env.json", "measures.json"])
@pytest.mark.parametrize(
    "shape", ["[]", '{"layers": 3}', '{"layers": {"fc1": {"after": {}}}}', "[[1, 2]]"]
)
def test_files_of_which_little_is_asked(name: str, shape: str, folder: Path) -> None:
    (folder / "fedavg" / "seed-0" / name).write_text(shape, encoding="utf-8")
    page = read(folder)
    assert not page.broken
    bad = name == "measures.json" and "layers" in shape
    assert any("measures.json of fedavg, seed 0, is damaged" in note for note in page.notes) == bad


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_values_that_are_no_numbers(value: str, folder: Path) -> None:
    """A loss may be anything; of an accuracy, an overlap or an effect that is no number nothing is
    drawn.
    """
    metrics = folder / "fedavg" / "seed-0" / "metrics.csv"
    text = metrics.read_text(encoding="utf-8").replace(
        "0,p0,test,accuracy,", f"0,p0,test,accuracy,{value}\n9,p0,test,loss,"
    )
    metrics.write_text(
        text + f"2,p0,test,overlap/p1,{value}\n2,server,,discriminator/accuracy,{value}\n",
        encoding="utf-8",
    )
    (folder / "leave-one-out.csv").write_text(
        f"{HEADS}\nfedavg,p0,p1,{value},0,0\n", encoding="utf-8"
    )
    page = read(folder)
    assert not page.broken
    assert not any(word in page.words for word in ("nan", "inf%"))
    assert any("leave-one-out.csv is damaged" in note for note in page.notes)


@pytest.mark.parametrize(
    "body", [b"", GARBAGE, b"a,b\n1,2\n", f"{HEADS}\nfedavg,p0,p1,x,0,0\n".encode(), b"method,left"]
)
def test_who_helps_whom(body: bytes, folder: Path) -> None:
    (folder / "leave-one-out.csv").write_bytes(body)
    page = read(folder)
    assert any("leave-one-out.csv is damaged" in note for note in page.notes)
    assert not page.broken


@pytest.mark.parametrize("body", [b"", GARBAGE, b"a,b\n1\n1,2,3\n", b'"' + b"x" * 200_000])
def test_a_papers_table(body: bytes, folder: Path) -> None:
    (folder / "table.csv").write_bytes(body)
    page = read(folder)
    assert not page.broken
    assert any("table.csv is damaged" in note for note in page.notes)


def test_a_run_that_is_still_writing(folder: Path) -> None:
    """Half a line at the end is no damage while a run goes on, and is not read."""
    made = folder / "fedavg" / "seed-0"
    (made / "summary.json").unlink()
    for name, more in (
        ("metrics.csv", "2,p2,test,accuracy,0."),
        ("ledger.csv", "2,local,ser"),
        ("timing.csv", "2,0.1"),
    ):
        with (made / name).open("a", encoding="utf-8") as file:
            file.write(more)
    page = read(folder)
    assert len(page.notes) == 1
    assert "is not finished" in page.notes[0]


@pytest.mark.parametrize(
    "body", [b"", GARBAGE, b"round,train,evaluate,checkpoint,memory\nnan,0,0,0,0\n", None]
)
def test_the_times_of_a_run_that_goes_on(body: bytes | None, folder: Path) -> None:
    made = folder / "fedavg" / "seed-0"
    (made / "summary.json").unlink()
    (made / "timing.csv").unlink()
    if body is not None:
        (made / "timing.csv").write_bytes(body)
    page = read(folder)
    assert told(page, "timing.csv is missing" if body is None else "timing.csv is damaged")
    assert "it has 2 of 2 rounds" in page.words


def test_everything_is_damaged(folder: Path) -> None:
    for name in FILES:
        for method in ("solo", "fedavg"):
            (folder / method / "seed-0" / name).write_bytes(GARBAGE)
    page = read(folder)
    assert not page.broken
    known = [
        f"{m}/seed-0: {n} is damaged."
        for m in ("solo", "fedavg")
        for n in ("config.toml", "metrics.csv", "summary.json")
    ]
    assert set(known) <= set(page.notes)


@pytest.mark.parametrize(
    "name", ["config.toml", "env.json", "split.json", "checkpoints/manifest.json", "checkpoints"]
)
def test_data_or_models_that_cannot_be_opened(name: str, folder: Path, tmp_path: Path) -> None:
    for method in ("solo", "fedavg"):
        path = folder / method / "seed-0" / name
        shutil.rmtree(path) if path.is_dir() else path.write_bytes(b"[]")
    page = Written(report(folder))
    assert not page.broken
    if "checkpoints" in name:
        assert "classes" in page.content["data"]
    else:
        assert any(
            "cannot be opened here" in note or "No run's split.json" in note for note in page.notes
        )
    assert sum("its representations cannot be shown" in note for note in page.notes) == 2
    assert not any("Traceback" in note or ".py:" in note for note in page.notes), page.notes


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from([*FILES, "measures.json"]),
    at=st.floats(0, 1),
    length=st.integers(0, 40),
    put=st.binary(max_size=30),
)
def test_bytes_changed_anywhere(
    name: str, at: float, length: int, put: bytes, folder: Path
) -> None:
    """Some bytes of a file replaced by others."""
    path = folder / "fedavg" / "seed-0" / name
    before = path.read_bytes() if path.exists() else b'{"layers": {}}'
    k = int(at * len(before))
    path.write_bytes(before[:k] + put + before[k + length :])
    try:
        (group,) = gather(folder)
        texts = [
            b.text
            for s in build_sections(group, folder, None, None, True, False)
            for b in s.blocks
            if isinstance(b, Text)
        ]
        assert not any("cannot be shown" in text for text in texts), texts
    finally:
        path.write_bytes(before)


def test_a_single_run(tmp_path: Path) -> None:
    run("fedavg", out=tmp_path, **SMALL)
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    page = read(tmp_path)
    assert f"{tmp_path.name}: summary.json is damaged." in page.notes
    assert not page.broken
