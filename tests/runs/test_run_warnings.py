"""A run's warnings are one list, each with the time at which it was known, also for folders of
earlier versions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import succeed

import comity
from comity.checksums import Checksum, with_crc, without_crc
from comity.components.robust import TOO_FEW
from comity.errors import ComityError
from comity.runs import checkpoint
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import RunWarning, add_warnings, read_warnings, warning_texts
from comity.runs.server_run import Quiet

METHOD = "fedprox(mu=0)+median"
PLAN = "party,round,how\np0,2,lost\n"
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "partition": "iid|keep(samples=40)",
    "parties": 3,
    "model": "linear",
    "rounds": 3,
    "engine": "loop",
}
BEFORE = RunWarning(
    "before", f"{METHOD}: with mu=0 there is no proximal term, so that this is fedavg."
)
DURING = RunWarning("during", f"median: {TOO_FEW}", round=2)
AFTER = RunWarning("after", "Calls that were missed: p0 2 (2 lost).")


class StopAfterRound2(Quiet):
    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == 2:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods, and a stopped run."""
    folder = tmp_path_factory.mktemp("warnings")
    plan = folder / "plan.csv"
    plan.write_text(PLAN, encoding="utf-8")
    settings = SETTINGS | {"absent": str(plan)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            comity.run(METHOD, out=folder / "stopped", progress=StopAfterRound2(), **settings)
        comity.compare([METHOD, "fedavg+median"], out=folder / "comparison", **settings)
    return folder


@pytest.fixture
def run(folders: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(folders / "comparison" / METHOD / "seed-0", tmp_path / "run"))


@pytest.fixture
def stopped_run(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "stopped", tmp_path / "stopped"))


@pytest.fixture
def comparison(folders: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders / "comparison", tmp_path / "comparison"))


def open_run(folder: Path) -> comity.Result:
    result = comity.open(folder)
    assert isinstance(result, comity.Result)
    return result


def write_as_before(folder: Path) -> None:
    """Write the summary as earlier versions did, with two lists."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    summary["cautions"] = warning_texts(summary, "before")
    summary["remarks"] = warning_texts(summary, "during")
    del summary["warnings"]
    _write_summary(folder, summary)


def _write_summary(folder: Path, summary: Any) -> None:
    text = json.dumps(summary, indent=2) + "\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
    checksums = without_crc(json.loads((folder / ".checksums.json").read_text(encoding="utf-8")))
    checksums["files"]["summary.json"] = Checksum.of(text.encode())
    (folder / ".checksums.json").write_text(json.dumps(with_crc(checksums)), encoding="utf-8")


def test_each_warning_has_the_time_at_which_it_was_known(run: Path) -> None:
    assert open_run(run).warnings == [BEFORE, DURING, AFTER]
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["warnings"] == [
        {"when": "before", "text": BEFORE.text, "round": None},
        {"when": "during", "text": DURING.text, "round": 2},
        {"when": "after", "text": AFTER.text, "round": None},
    ]


def test_a_resumed_run_has_the_same_warnings(stopped_run: Path) -> None:
    """A warning of a round before the last checkpoint is in the checkpoint."""
    succeed("resume", stopped_run)
    assert open_run(stopped_run).warnings == [BEFORE, DURING, AFTER]


def test_a_checkpoint_of_an_earlier_version_is_resumed(stopped_run: Path) -> None:
    path = stopped_run / "checkpoints" / "manifest.json"
    manifest = without_crc(json.loads(path.read_text(encoding="utf-8")))
    manifest["counters"]["remarks"] = warning_texts(manifest["counters"])
    del manifest["counters"]["warnings"]
    path.write_text(json.dumps(with_crc(manifest)), encoding="utf-8")
    succeed("resume", stopped_run)
    assert open_run(stopped_run).warnings == [BEFORE, RunWarning("during", DURING.text), AFTER]


def test_a_summary_of_an_earlier_version_is_read(run: Path) -> None:
    write_as_before(run)
    result = open_run(run)
    assert result.warnings == [BEFORE, RunWarning("during", DURING.text), AFTER]
    assert not {"cautions", "remarks"} & result.summary.keys()


def test_a_run_of_an_earlier_version_is_displayed_alike(run: Path) -> None:
    def renderings() -> tuple[str, str, str]:
        screen = succeed("resume", run).out
        page = comity.report(run, quick=True).read_text(encoding="utf-8")
        return screen, page, open_run(run)._repr_html_()

    now = renderings()
    screen, page, view = now
    assert f"Warning: {DURING}" in screen
    assert f"Warning: {AFTER}" in screen
    assert BEFORE.text not in screen
    assert f"{METHOD}, seed 0: {AFTER}" in page
    assert BEFORE.text in page
    assert str(DURING) in view
    assert str(AFTER) in view
    write_as_before(run)
    assert renderings() == now


def test_a_run_of_an_earlier_version_is_disclosed(run: Path) -> None:
    write_as_before(run)
    page, _ = comity.disclose(run, "p1")
    assert "p1" in page.read_text(encoding="utf-8")


def test_a_comparison_of_an_earlier_version_is_read(comparison: Path) -> None:
    path = comparison / "comparison.json"
    content = without_crc(json.loads(path.read_text(encoding="utf-8")))
    [entry] = content.pop("warnings")
    assert entry["when"] == "after"
    assert "are the same here" in entry["text"]
    path.write_text(json.dumps(with_crc(content | {"notes": [entry["text"]]})), encoding="utf-8")
    for folder in comparison.glob("*/seed-0"):
        write_as_before(folder)
    result = comity.open(comparison)
    assert isinstance(result, comity.Comparison)
    assert result.findings.warnings == [RunWarning("after", entry["text"])]
    assert result.results[METHOD][0].warnings[-1] == AFTER


def test_a_comparison_continues_with_runs_of_an_earlier_version(
    comparison: Path, folders: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for folder in comparison.glob("*/seed-0"):
        write_as_before(folder)
    settings = SETTINGS | {"absent": str(folders / "plan.csv")}
    again = comity.compare([METHOD, "fedavg+median"], out=comparison, **settings)
    texts = [str(warning.message) for warning in recwarn]
    assert f"{METHOD}: {DURING}" in texts
    [row] = [row for row in again.rows if row.algorithm == METHOD]
    assert row.caveats == [f"{METHOD}, seed 0: {AFTER}"]


@pytest.mark.parametrize(
    "damaged",
    [
        7,
        [7],
        ["text"],
        [{"when": "during", "round": None}],
        [{"when": "some day", "text": "x", "round": None}],
        [{"when": "during", "text": 7, "round": None}],
        [{"when": "during", "text": "x", "round": "2"}],
    ],
    ids=str,
)
def test_damaged_warnings_are_refused(damaged: object, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    _write_summary(run, summary | {"warnings": damaged})
    with pytest.raises(ComityError, match=r"summary\.json cannot be read: it is damaged"):
        RunFolder(run).read_summary()


def test_each_warning_is_added_once() -> None:
    summary: dict[str, Any] = {}
    add_warnings(summary, [DURING, AFTER])
    add_warnings(summary, [RunWarning("during", DURING.text, round=3), BEFORE])
    assert read_warnings(summary) == [DURING, AFTER, BEFORE]
    assert warning_texts(summary, "before", "after") == [AFTER.text, BEFORE.text]
