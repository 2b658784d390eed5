"""A site whose policy withholds its test figures keeps its model and its report, and the researcher
reads that the figures were withheld. An ending that fails at a site is visible to the researcher.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process_sites import Root, Sites, ended

from comity import cli
from comity.data.tables import agreed_schema
from comity.deploy import site_results
from comity.deploy.comparison import compare_sites
from comity.deploy.data import import_site_data
from comity.deploy.handler import FAULT, LOG
from comity.deploy.job_submission import SubmittedJob
from comity.deploy.messages import REQUESTS, End, unpack
from comity.deploy.policy import write
from comity.deploy.server import FAILURE, SCHEMA
from comity.errors import ComityError
from comity.reporting import build_sections, report
from comity.reporting.blocks import Table, Text
from comity.reporting.gather import gather
from comity.runs import config
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts

SIZES = {"east": (40, 7), "north": (40, 23), "south": (34, 17)}
USUAL: dict[str, Any] = {"model": "linear", "rounds": 2, "test": "official", "lr": 0.05}
NEW_POLICY: dict[str, str] = {}
"""No line of a new site's policy is changed: `records` is 10."""


@pytest.fixture(autouse=True)
def _fast_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.studies.export.find_spec", lambda name: None)  # no ONNX: it is slow
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """East has seven test samples, fewer than its policy asks for."""
    return Sites(tmp_path / "sites", SIZES, NEW_POLICY)


class TableSites(Sites):
    """Sites with regression data."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self.folder, self.names = folder, sorted(sizes)
        self.root = Root()
        files = folder / "files"
        files.mkdir(parents=True)
        (folder / "hub").mkdir()
        draw = np.random.default_rng(0)
        for name, count in sizes.items():
            age = draw.normal(50, 9, count)
            dose = draw.normal(3, 1, count)
            days = 0.2 * age + 2 * dose + draw.normal(0, 1, count)
            rows = [f"{a:.2f},{b:.2f},{c:.2f}" for a, b, c in zip(age, dose, days, strict=True)]
            (files / f"{name}.csv").write_text("age,dose,days\n" + "\n".join(rows) + "\n")
        schema = folder / "hub" / SCHEMA
        agreed_schema([files], label="days", kinds={"days": "number"}, scale="own").write(schema)
        for name in self.names:
            self.site(name).mkdir()
            import_site_data(files / f"{name}.csv", self.site(name) / "data", schema)
            write(self.site(name), name, "data")


def site_summary(sites: Sites, name: str, run: str) -> dict[str, Any]:
    """A site's own summary; its model and its report must exist."""
    own = sites.site(name) / "runs" / run
    assert (own / "model" / "card.md").exists(), (sites.site(name) / LOG).read_text()[-2000:]
    assert (own / "report.html").exists()
    summary = RunFolder(own).read_summary()
    assert summary is not None
    RunFolder(own).check()
    return summary


def rows_of_test_metrics(folder: Path, party: str) -> list[Any]:
    rows = RunFolder(folder).read_metrics()
    return [row for row in rows if row.party == party and row.split.startswith("test")]


def sentences(folder: Path) -> str:
    """All sentences and tables of a page."""
    words: list[str] = []
    for group in gather(folder):
        for section in build_sections(group, folder, None, None, False, True):
            for block in section.blocks:
                words += [block.text] if isinstance(block, Text) else []
                words += (
                    [" ".join(map(str, row)) for row in block.rows]
                    if isinstance(block, Table)
                    else []
                )
    return "\n".join(words)


def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `comity` command."""
    monkeypatch.setattr("sys.argv", ["comity", *map(str, words)])
    code: Any = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    screen = capsys.readouterr()
    return int(code or 0), " ".join(screen.out.split()), " ".join(screen.err.split())


def check_withheld(folder: Path, party: str, others: int) -> dict[str, Any]:
    """The server's run says that a party's figures were withheld, and has none of them."""
    summary = ended(folder)
    assert summary["withheld"] == [party]
    assert summary["failed_endings"] == {}
    assert rows_of_test_metrics(folder, party) == []
    block = summary[summary["metric"]]
    assert block["per_party"].get(party) is None
    assert sum(figure is not None for figure in block["per_party"].values()) == others
    texts = " ".join(warning_texts(summary, "after"))
    assert f"Withheld by site policy, and in no mean: the test figures of {party}." in texts
    assert "ever heard" not in texts
    assert "ever heard" not in " ".join(warning_texts(summary, "during"))
    return summary


# A small site


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "macro_f1"])
def test_a_small_site_keeps_its_model_and_its_report(metric: str, sites: Sites) -> None:
    folder = sites.run("fedavg", "small", **USUAL, metric=metric)
    check_withheld(folder, "east", others=2)
    for name in sites.names:  # a site has its own figures
        own = site_summary(sites, name, "small")
        assert own[metric]["mean"] == own[metric]["per_party"][name]
        assert own[metric]["best_on_test"]["mean"] >= own[metric]["mean"]


@pytest.mark.parametrize("metric", ["auc", "sensitivity"])
def test_small_site_with_two_classes(metric: str, tmp_path: Path) -> None:
    sites = Sites(tmp_path / "sites", SIZES, NEW_POLICY, classes=2)
    folder = sites.run("fedavg", "two", **USUAL, metric=metric)
    check_withheld(folder, "east", others=2)
    assert site_summary(sites, "east", "two")[metric]["mean"] is not None


def test_small_site_with_regression_data(tmp_path: Path) -> None:
    sites = TableSites(tmp_path / "sites", {"east": 24, "north": 80, "south": 60})
    folder = sites.run("fedavg", "number", **USUAL | {"test": "own(0.25)"})
    check_withheld(folder, "east", others=2)
    assert site_summary(sites, "east", "number")["r2"]["per_party"].keys() == {"east"}


def test_policy_relaxed_during_the_run(sites: Sites) -> None:
    """The introduction announced no metrics, but metrics arrive: the last ones count."""
    transport = sites.transport()

    def relax_policy(name: str, request: bytes) -> str:
        head, _ = unpack(request, REQUESTS, 1 << 30)
        if getattr(head, "call", ("", 0, 0, 0))[2] == 2 and name == "south":
            sites.change("east", {"records = 10\n": "records = 5\n"})
        return ""

    transport.lost = relax_policy
    summary = ended(sites.run("fedavg", "relaxed", transport, **USUAL, metric="macro_f1"))
    assert summary["withheld"] == []
    assert summary["macro_f1"]["per_party"]["east"] is not None
    site_summary(sites, "east", "relaxed")


def test_policy_tightened_during_the_run(sites: Sites) -> None:
    sites.change("east", {"records = 10\n": "records = 5\n"})
    transport = sites.transport()

    def tighten_policy(name: str, request: bytes) -> str:
        head, _ = unpack(request, REQUESTS, 1 << 30)
        if getattr(head, "call", ("", 0, 0, 0))[2] == 1 and name == "south":
            sites.change("east", {"records = 5\n": "records = 10\n"})
        return ""

    transport.lost = tighten_policy
    summary = ended(sites.run("fedavg", "tightened", transport, **USUAL))
    assert summary["withheld"] == ["east"]
    [text] = [text for text in warning_texts(summary, "after") if "east" in text]
    assert (
        text
        == "Withheld by site policy at the end: the test figures of east (its accuracy is that of"
        " round 0)."
    )


def test_run_resumed_after_its_last_round(sites: Sites) -> None:
    """The checkpoint says which sites withhold figures."""
    folder = sites.run("fedavg", "again", **USUAL)
    (folder / "summary.json").unlink()
    assert sites.run("fedavg", "again", **USUAL) == folder
    check_withheld(folder, "east", others=2)


def test_run_of_small_sites_only_is_refused(sites: Sites) -> None:
    """The run is refused in one sentence before training."""
    for name in sites.names:
        sites.change(name, {"records = 10\n": "records = 25\n"})
    folder = sites.run("fedavg", "none", **USUAL)
    assert (
        (folder / FAILURE).read_text().startswith("No site would send a score of its test samples")
    )


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
def test_only_the_small_site_stays_connected(metric: str, sites: Sites) -> None:
    """The others disconnect after the start: no figure is known, and east has its model."""
    transport = sites.transport()
    has_started = False

    def disconnect_others(name: str, request: bytes) -> str:
        nonlocal has_started
        head, _ = unpack(request, REQUESTS, 1 << 30)
        has_started = has_started or hasattr(head, "round") or hasattr(head, "call")
        return "offline" if has_started and name != "east" else ""

    transport.lost = disconnect_others
    folder = sites.run("fedavg", "left", transport, **USUAL, metric=metric)
    summary = ended(folder)
    assert summary["withheld"] == ["east"]
    assert summary["accuracy"]["mean"] is None
    assert set(summary["failed_endings"]) == {"north", "south"}
    site_summary(sites, "east", "left")
    assert report(folder).exists()
    assert "Withheld by site policy" in sentences(folder)
    assert "damaged" not in sentences(folder)


def test_site_without_test_samples_takes_no_part(sites: Sites) -> None:
    """The site takes no part, because its data cannot be split, and the warning says so."""
    np.savez(sites.folder / "few.npz", x=np.zeros((1, 1, 8, 8), np.float32), y=np.zeros(1, int))
    for path in (sites.site("east") / "data").iterdir():
        path.unlink()
    import_site_data(sites.folder / "few.npz", sites.site("east") / "data", None, classes=10)
    summary = ended(sites.run("fedavg", "zero", **USUAL | {"test": "own(0.25)"}))
    [text] = [
        text for text in warning_texts(summary, "during") if text.startswith("east takes no part: ")
    ]
    assert "sample" in text
    assert summary["failed_endings"] == {}


# Newcomers


@pytest.mark.parametrize("records", [10, 20])
def test_a_newcomer_keeps_its_model_and_its_report(records: int, sites: Sites) -> None:
    """South is the last by name: it joins after the last round, with 17 test samples."""
    sites.change("south", {"records = 10\n": f"records = {records}\n"})
    folder = sites.run("fedavg", "late", **USUAL, newcomers=1)
    summary = ended(folder)
    assert summary["failed_endings"] == {}
    assert summary["withheld"] == (["east"] if records == 10 else ["east", "south"])
    assert summary["newcomers"].keys() == ({"south"} if records == 10 else set())
    own = site_summary(sites, "south", "late")
    assert own["accuracy"]["per_party"]["south"] == own["newcomers"]["south"]["joined"]
    if records == 10:
        assert own["newcomers"] == summary["newcomers"]
    assert (
        "17 test samples: accuracy" in (sites.site("south") / "runs/late/model/card.md").read_text()
    )
    assert "damaged" not in sentences(sites.site("south") / "runs" / "late")


# An ending that fails


FAILING_PARTS: dict[str, tuple[str, Callable[..., object], Exception]] = {
    "summary": (
        "summarise",
        lambda server_run, *_: server_run.info.names[0],
        RuntimeError("figure 0.25"),
    ),
    "model": ("export", lambda result, party, out: party, OSError(28, "No space left on device")),
    "page": ("report", lambda folder: folder.parts[-3], ValueError("figure 0.25")),
}
"""For each part that a site writes at the end: the function that writes it, a function that gets
the site from its arguments, and an error.
"""


@pytest.mark.parametrize("part", FAILING_PARTS)
def test_failed_ending_is_reported_and_can_be_repeated(
    part: str, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets one sentence without the error's text; the other sites finish normally."""
    function, site_of, error = FAILING_PARTS[part]
    original = getattr(site_results, function)
    broken_sites = {"east"}

    def fail_at_broken_sites(*args: Any, **more: Any) -> Any:
        if site_of(*args) in broken_sites:
            raise error
        return original(*args, **more)

    monkeypatch.setattr(site_results, function, fail_at_broken_sites)
    folder = sites.run("fedavg", "fails", **USUAL)
    summary = ended(folder)
    assert summary["failed_endings"].keys() == {"east"}
    assert summary["failed_endings"]["east"] == f"its {part} was not written: its own log says why."
    assert "0.25" not in json.dumps(summary["failed_endings"])
    assert str(error.args[-1]) in (sites.site("east") / LOG).read_text()
    assert any("not completed at east" in text for text in warning_texts(summary, "after"))
    assert "not completed at east" in sentences(folder)
    site_summary(sites, "north", "fails")
    site_summary(sites, "south", "fails")
    if part != "summary":
        assert RunFolder(sites.site("east") / "runs" / "fails").is_finished

    broken_sites.clear()
    sites.run("fedavg", "fails", **USUAL)
    resumed_summary = ended(folder)
    assert resumed_summary["failed_endings"] == {}
    assert resumed_summary["accuracy"] == summary["accuracy"]
    site_summary(sites, "east", "fails")
    RunFolder(folder).check()


def test_site_disconnected_at_the_end(sites: Sites) -> None:
    transport = sites.transport()

    def disconnect_at_end(name: str, request: bytes) -> str:
        is_end = isinstance(unpack(request, REQUESTS, 1 << 30)[0], End)
        return "offline" if name == "east" and is_end else ""

    transport.lost = disconnect_at_end
    folder = sites.run("fedavg", "gone", transport, **USUAL)
    assert ended(folder)["failed_endings"] == {"east": "it did not answer."}
    sites.run("fedavg", "gone", **USUAL)
    assert ended(folder)["failed_endings"] == {}
    site_summary(sites, "east", "gone")


def test_site_that_refuses_the_resumed_run(sites: Sites) -> None:
    transport = sites.transport()
    transport.lost = lambda name, request: (
        "offline"
        if name == "east" and isinstance(unpack(request, REQUESTS, 1 << 30)[0], End)
        else ""
    )
    folder = sites.run("fedavg", "refuses", transport, **USUAL)
    sites.change("east", {"rounds = 1000": "rounds = 1"})
    sites.run("fedavg", "refuses", **USUAL)
    assert "(rounds)" in ended(folder)["failed_endings"]["east"]


def test_site_with_an_invalid_reply_at_the_end(sites: Sites) -> None:
    transport = sites.transport()
    is_end = False

    def watch_for_end(name: str, request: bytes) -> str:
        nonlocal is_end
        is_end = isinstance(unpack(request, REQUESTS, 1 << 30)[0], End) and name == "east"
        return ""

    transport.lost = watch_for_end
    transport.changed = lambda name, answer: b"\x00" * 40 if is_end else answer
    folder = sites.run("fedavg", "nonsense", transport, **USUAL)
    assert ended(folder)["failed_endings"].keys() == {"east"}


# Output for the researcher


@pytest.fixture
def researcher(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Sites:
    """Let the researcher's commands run jobs with the sites in this process."""

    def conduct(job: SubmittedJob, out: Path, progress: object = None) -> dict[str, Any]:
        order = {name: value for name, value in job.settings.items() if name != "algorithm"}
        run_folder = sites.run(job.settings["algorithm"], job.run, **order)
        shutil.copytree(run_folder, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))
        return ended(out)

    (sites.folder / "hub" / "lead").mkdir()
    monkeypatch.setattr(SubmittedJob, "conduct", conduct)
    return sites


OPTIONS = ("--rounds", 2, "--model", "linear", "--test", "official")


def test_output_of_commands_with_a_small_site(
    researcher: Sites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, out = researcher.folder / "hub", tmp_path / "out"
    code, output, err = command(
        capsys, monkeypatch, "run", "fedavg", "--federation", hub, "--out", out, *OPTIONS
    )
    assert (code, err) == (0, "")
    assert "Withheld by site policy, and in no mean: the test figures of east." in output
    assert output.count("east") == 1
    assert "mean of 2 parties" in output
    code, output, err = command(capsys, monkeypatch, "report", out)
    assert (code, err) == (0, "")
    assert "Withheld by site policy, and in no mean: the test figures of east." in sentences(out)
    code, _, err = command(capsys, monkeypatch, "measure", out)
    assert code
    assert "are at sites of their own" in err


def test_exit_code_of_a_run_with_a_failed_ending(
    researcher: Sites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, out = researcher.folder / "hub", tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(site_results, "finish", broken_at("east"))
        words = ("run", "fedavg", "--federation", hub, "--out", out, *OPTIONS)
        code, output, err = command(capsys, monkeypatch, *words)
    assert code == 1
    assert f"The run was not completed at east: {FAULT}" in output
    assert (
        err == "comity: The run was not completed at every site (east). Resume with: comity resume"
        f" {out}"
    )
    assert ended(out)["accuracy"]["mean"] is not None
    code, output, err = command(capsys, monkeypatch, "resume", out)
    assert (code, err) == (0, "")
    assert "not completed" not in output


def broken_at(name: str) -> Callable[..., Any]:
    original = site_results.finish

    def finish(run: Any, *args: Any) -> Any:
        if run.party == name:
            raise RuntimeError("broken")
        return original(run, *args)

    return finish


def test_comparison_with_a_small_site(
    researcher: Sites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, out = researcher.folder / "hub", tmp_path / "out"
    words = ("compare", "fedavg", "--federation", hub, "--out", out, *OPTIONS)
    code, output, err = command(capsys, monkeypatch, *words)
    assert (code, err) == (0, "")
    assert "east: not judged: its site's policy withholds its figures" in output
    assert "Withheld by site policy, and in no mean: the test figures of east." in output
    comparison = json.loads((out / "comparison.json").read_text())
    [answer] = [entry for entry in comparison["answers"] if entry["party"] == "east"]
    assert (answer["verdict"], answer["methods"]) == ("not judged", {})
    assert comparison["rows"][1]["judged"] == 2
    code, _, err = command(capsys, monkeypatch, "report", out)
    assert (code, err) == (0, "")
    assert "its site's policy withholds its figures" in sentences(out)
    at_east = sentences(researcher.site("east") / "runs")  # the site has its own comparison
    assert "damaged" not in at_east
    assert "Over SOLO" in at_east


def test_comparison_with_a_failed_ending(
    researcher: Sites,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All methods are run, the exit code is not zero, and the same command completes the run."""
    hub, out = researcher.folder / "hub", tmp_path / "out"
    words = ("compare", "fedavg", "--federation", hub, "--out", out, *OPTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(site_results, "finish", broken_at("north"))
        code, output, err = command(capsys, monkeypatch, *words)
    assert code == 1
    assert "The run was not completed at north" in output
    assert err.startswith(
        "comity: The run was not completed at every site (north). Resume with: the same command"
    )
    assert (out / "comparison.json").exists()
    code, output, err = command(capsys, monkeypatch, *words)
    assert (code, err) == (0, "")
    assert "not completed" not in output


def test_compare_sites_with_two_small_sites(researcher: Sites, tmp_path: Path) -> None:
    """All sites except one withhold their figures."""
    researcher.change("south", {"records = 10\n": "records = 20\n"})
    base = config.experiment({**USUAL, "metric": "macro_f1"})

    def conduct(job: SubmittedJob, folder: Path) -> dict[str, Any]:
        return job.conduct(folder)

    hub = researcher.folder / "hub"
    comparison = compare_sites(
        hub, base, ["fedavg", "scaffold"], [0, 1], tmp_path / "out", conduct, 60, 0
    )
    verdicts = {answer.party: answer.verdict for answer in comparison.answers}
    assert verdicts["east"] == verdicts["south"] == "not judged"
    assert verdicts["north"] not in ("not judged",)
    assert report(tmp_path / "out").exists()


def test_failed_ending_contains_no_path_of_the_site(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence that leaves the site contains no absolute path."""

    def no_model(result: object, party: str, out: Path) -> list[str]:
        raise ComityError(f"There is no model in {out}.")

    monkeypatch.setattr(site_results, "export", no_model)
    endings = ended(sites.run("fedavg", "path", **USUAL))["failed_endings"]
    assert (
        endings["east"] == "its model was not written: There is no model in east/runs/path/model."
    )
    assert endings.keys() == SIZES.keys()
