"""Reports of damaged runs: the page is written, names each damaged file, and shows the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_page import SMALL, ReportPage, run_comparison, without_checksums

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
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_comparison(folder, ["fedavg"])
    assert not quick_page(folder).notes
    return folder


@pytest.fixture
def folder(comparison_folder: Path, tmp_path: Path) -> Path:
    """A comparison of SOLO and FedAvg, to be damaged."""
    return Path(shutil.copytree(comparison_folder, tmp_path / "it"))


def quick_page(folder: Path) -> ReportPage:
    return ReportPage(report(folder, quick=True))


def is_reported(page: ReportPage, name: str) -> bool:
    """Whether a note names the file; no section may be missing, and SOLO must be in the table."""
    assert not page.failed_sections, page.notes
    assert [len(sections) for sections in page.sections.values()] == [8]
    assert page.table("accuracy")[0]["method"] in ("solo", "fedavg")
    assert {row["method"] for row in page.table("accuracy")} == {"solo", "fedavg"}
    assert "accuracy-by-round" in {chart["name"] for chart in page.charts.values()}
    return any(name in note and "fedavg/seed-0" in note for note in page.notes)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "cut", "a folder"])
def test_damaged_file_is_reported(name: str, how: str, folder: Path) -> None:
    path = folder / "fedavg" / "seed-0" / name
    body = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "missing":
        # In settings the cut is after a key, so that the rest cannot be valid by chance.
        middle = body.index(b"=") + 1 if name == "config.toml" else len(body) // 2 + 1
        path.write_bytes({"empty": b"", "garbage": GARBAGE, "cut": body[:middle]}[how])
    page = quick_page(folder)
    if (name, how) == ("summary.json", "missing"):
        assert is_reported(page, "comity resume")
        assert "fedavg, seed 0, is not finished: it has 2 of 2 rounds." in page.words
    else:
        has_defaults = (name, how) == ("config.toml", "empty")  # every setting has a default
        assert is_reported(
            page,
            f"{name}"
            f" {'and env.json do not agree' if has_defaults else f'is {how}' if how == 'missing' else 'is damaged'}",
        )


@pytest.mark.parametrize("name", ["metrics.csv", "ledger.csv", "outcomes.csv"])
def test_truncated_table_is_reported(name: str, folder: Path) -> None:
    """The table is well-formed, but its figures differ from the summary's."""
    path = folder / "fedavg" / "seed-0" / name
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    last = {"metrics.csv": -7, "ledger.csv": -9, "outcomes.csv": -2}[name]
    path.write_text("".join(lines[:last]), encoding="utf-8")
    page = quick_page(folder)
    assert is_reported(page, f"{name} is damaged") or is_reported(
        page, f"{name} and summary.json do not agree"
    )


@pytest.mark.parametrize("name", ["metrics.csv", "ledger.csv", "outcomes.csv"])
def test_table_without_rows_is_reported(name: str, folder: Path) -> None:
    path = folder / "fedavg" / "seed-0" / name
    path.write_text(path.read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
    assert is_reported(quick_page(folder), f"{name} is damaged")


def test_summary_of_an_earlier_version_is_read(folder: Path) -> None:
    """Optional entries may be missing."""
    path = folder / "fedavg" / "seed-0" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({k: v for k, v in summary.items() if k not in ("newcomers", "diverged", "auc")}),
        encoding="utf-8",
    )
    without_checksums(folder)
    assert not quick_page(folder).notes


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s[:20])
@pytest.mark.parametrize("name", ["summary.json", "split.json", "config.toml", "metrics.csv"])
def test_file_with_another_structure_is_reported(name: str, shape: str, folder: Path) -> None:
    (folder / "fedavg" / "seed-0" / name).write_text(shape, encoding="utf-8")
    assert is_reported(quick_page(folder), f"{name} is damaged")


PLACES = [
    ("accuracy", "mean"),
    ("accuracy", "per_party"),
    ("bytes", "total"),
    ("seconds", "total"),
    ("diverged",),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [None, "x", {}, {"p0": None}, float("nan"), 7])
def test_wrong_value_in_a_summary_is_reported(
    place: tuple[str, ...], value: object, folder: Path
) -> None:
    path = folder / "fedavg" / "seed-0" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    inner = summary
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(summary), encoding="utf-8")
    page = quick_page(folder)
    is_harmless = (place[-1] == "diverged" and value in ("x", {}, {"p0": None})) or (
        place[0] == "seconds" and value == 7
    )
    assert is_reported(page, "summary.json") or is_harmless
    assert "nan" not in page.words.lower()


@pytest.mark.parametrize("name", ["env.json", "measures.json"])
@pytest.mark.parametrize(
    "shape", ["[]", '{"layers": 3}', '{"layers": {"fc1": {"after": {}}}}', "[[1, 2]]"]
)
def test_optional_files_with_another_structure(name: str, shape: str, folder: Path) -> None:
    (folder / "fedavg" / "seed-0" / name).write_text(shape, encoding="utf-8")
    page = quick_page(folder)
    assert not page.failed_sections
    bad = name == "measures.json" and "layers" in shape
    assert any("measures.json of fedavg, seed 0, is damaged" in note for note in page.notes) == bad


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_values_that_are_not_finite_are_not_drawn(value: str, folder: Path) -> None:
    """An accuracy, an overlap or an effect that is not finite is not drawn; a loss may be anything."""
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
    page = quick_page(folder)
    assert not page.failed_sections
    assert not any(word in page.words for word in ("nan", "inf%"))
    assert any("leave-one-out.csv is damaged" in note for note in page.notes)


@pytest.mark.parametrize(
    "body", [b"", GARBAGE, b"a,b\n1,2\n", f"{HEADS}\nfedavg,p0,p1,x,0,0\n".encode(), b"method,left"]
)
def test_damaged_leave_one_out_table_is_reported(body: bytes, folder: Path) -> None:
    (folder / "leave-one-out.csv").write_bytes(body)
    page = quick_page(folder)
    assert any("leave-one-out.csv is damaged" in note for note in page.notes)
    assert not page.failed_sections


@pytest.mark.parametrize("body", [b"", GARBAGE, b"a,b\n1\n1,2,3\n", b'"' + b"x" * 200_000])
def test_damaged_table_of_a_paper_is_reported(body: bytes, folder: Path) -> None:
    (folder / "table.csv").write_bytes(body)
    page = quick_page(folder)
    assert not page.failed_sections
    assert any("table.csv is damaged" in note for note in page.notes)


def test_incomplete_last_line_of_a_running_run_is_ignored(folder: Path) -> None:
    """While a run is in progress, an incomplete last line is not read and not reported."""
    run_folder = folder / "fedavg" / "seed-0"
    (run_folder / "summary.json").unlink()
    for name, more in (
        ("metrics.csv", "2,p2,test,accuracy,0."),
        ("ledger.csv", "2,local,ser"),
        ("timing.csv", "2,0.1"),
    ):
        with (run_folder / name).open("a", encoding="utf-8") as file:
            file.write(more)
    page = quick_page(folder)
    assert len(page.notes) == 1
    assert "is not finished" in page.notes[0]


@pytest.mark.parametrize(
    "body", [b"", GARBAGE, b"round,train,evaluate,checkpoint,memory\nnan,0,0,0,0\n", None]
)
def test_damaged_timing_of_a_running_run_is_reported(body: bytes | None, folder: Path) -> None:
    run_folder = folder / "fedavg" / "seed-0"
    (run_folder / "summary.json").unlink()
    (run_folder / "timing.csv").unlink()
    if body is not None:
        (run_folder / "timing.csv").write_bytes(body)
    page = quick_page(folder)
    assert is_reported(page, "timing.csv is missing" if body is None else "timing.csv is damaged")
    assert "it has 2 of 2 rounds" in page.words


def test_page_when_every_file_is_damaged(folder: Path) -> None:
    for name in FILES:
        for method in ("solo", "fedavg"):
            (folder / method / "seed-0" / name).write_bytes(GARBAGE)
    page = quick_page(folder)
    assert not page.failed_sections
    expected_notes = [
        f"{m}/seed-0: {n} is damaged."
        for m in ("solo", "fedavg")
        for n in ("config.toml", "metrics.csv", "summary.json")
    ]
    assert set(expected_notes) <= set(page.notes)


@pytest.mark.parametrize(
    "name", ["config.toml", "env.json", "split.json", "checkpoints/manifest.json", "checkpoints"]
)
def test_unreadable_data_or_models_are_reported(name: str, folder: Path, tmp_path: Path) -> None:
    for method in ("solo", "fedavg"):
        path = folder / method / "seed-0" / name
        shutil.rmtree(path) if path.is_dir() else path.write_bytes(b"[]")
    page = ReportPage(report(folder))
    assert not page.failed_sections
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
    replacement=st.binary(max_size=30),
)
def test_random_damage_breaks_no_section(
    name: str, at: float, length: int, replacement: bytes, folder: Path
) -> None:
    """Some bytes of a file are replaced by others."""
    path = folder / "fedavg" / "seed-0" / name
    before = path.read_bytes() if path.exists() else b'{"layers": {}}'
    k = int(at * len(before))
    path.write_bytes(before[:k] + replacement + before[k + length :])
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


def test_damaged_single_run_is_reported(tmp_path: Path) -> None:
    run("fedavg", out=tmp_path, **SMALL)
    (tmp_path / "summary.json").write_text("{", encoding="utf-8")
    page = quick_page(tmp_path)
    assert f"{tmp_path.name}: summary.json is damaged." in page.notes
    assert not page.failed_sections
