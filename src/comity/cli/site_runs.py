"""Runs at the sites of a federation: submitted, followed to their end, and shown as usual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.options import Settings, free_folder, print_warning, resumable
from comity.errors import ComityError, UsageError
from comity.names import SOLO, display_name
from comity.runs.config import Experiment
from comity.text import join_names, shell_line

if TYPE_CHECKING:
    from comity.deploy.job_submission import SubmittedJob

AtSites = Annotated[
    Path | None,
    typer.Option(
        "--federation",
        help="run at the sites of this federation (comity deploy), not on this machine",
        metavar="DIR",
    ),
]
Deadline = Annotated[
    float,
    typer.Option("--deadline", help="with --federation: seconds that a site has for a reply"),
]
Wait = Annotated[float, typer.Option("--wait", help="with --federation: seconds to wait for sites")]
LOCAL_SETTINGS = {
    "data",
    "partition",
    "parties",
    "engine",
    "workers",
    "device",
    "gpus",
    "partial_sums",
}
"""Settings that a run at sites does not take, since each site has its own data and machine."""


def check_at_sites(settings: Settings, track: list[str] | None) -> None:
    """Raise `UsageError` for settings of data and machines, and for trackers."""
    local = LOCAL_SETTINGS & settings.keys()
    if local or track:
        flag = f"--{min(local).replace('_', '-')}" if local else "--track"
        raise UsageError(
            f"{flag} is not available in a run at sites: each site has its own data and machine."
        )


def submit_run(
    experiment: Experiment,
    settings: Settings,
    federation: Path,
    out: Path | None,
    track: list[str] | None,
    deadline: float,
    wait: float,
) -> None:
    """Submit a run to the sites of a federation, and follow it to its end."""
    from comity.deploy.job_submission import SubmittedJob

    check_at_sites(settings, track)
    folder = out or free_folder(
        f"{display_name(experiment.algorithm)}-{federation.resolve().name}-s{experiment.seed}"
    )
    job = SubmittedJob.new(federation, experiment, folder, deadline, wait)
    follow_run(job, folder)


def follow_run(job: SubmittedJob, folder: Path) -> None:
    """Follow a submitted run to its end, and print its result."""
    from comity.cli.run_commands import show_result

    with _resumable_at_sites(shell_line("comity", "resume", folder)):
        summary = _follow(job, folder)
        show_result(folder, summary)
        check_completed([summary])


def resume_run(job: SubmittedJob, folder: Path) -> None:
    """Resume a submitted run, or say that it has ended, and print its result."""
    from comity.cli import screen

    if job.has_ended:
        screen.out.print(
            f"The run in {folder} has ended; nothing is left to resume.", soft_wrap=True
        )
    follow_run(job, folder)


@contextmanager
def _resumable_at_sites(how: str) -> Iterator[None]:
    """As `resumable`, but after a refusal of sites say that they have to change something first."""
    from comity.deploy.server import SitesRefused

    refusal = None
    with resumable(how, always=True):
        try:
            yield
        except SitesRefused as why:
            refusal = why
    if refusal:
        raise ComityError(f"{refusal} When the sites have changed that: {how}") from refusal


def check_completed(summaries: Iterable[Mapping[str, Any]]) -> None:
    """Raise `ComityError` if a run was not completed at every site.

    The reasons were printed while the run was followed.
    """
    names = {name for summary in summaries for name in summary.get("failed_endings", ())}
    if names:
        raise ComityError(f"The run was not completed at every site ({join_names(sorted(names))}).")


def _follow(job: SubmittedJob, folder: Path) -> dict[str, Any]:
    """Print a line for each round of a submitted run, and return its summary."""
    from comity.cli import screen
    from comity.cli.run_monitor import RunMonitor

    job.report_progress = lambda text: screen.out.print(text, soft_wrap=True)
    monitor = RunMonitor(job.folder.path)
    printed_round = -1

    def print_round(_: object) -> None:
        nonlocal printed_round
        monitor.update()
        if monitor.last_round > printed_round:
            printed_round = monitor.last_round
            metric = monitor.metric
            value = monitor.curve.get(printed_round)
            figure = f"{metric.title} {metric.text(value)}" if value is not None else ""
            traffic = screen.size(sum(monitor.bytes.values()))
            screen.out.print(f"round {printed_round}/{monitor.rounds}  {figure}  {traffic}")

    return job.conduct(folder, print_round)


def compare_sites(
    federation: Path,
    base: Experiment,
    algos: list[str],
    seeds: list[int],
    out: Path | None,
    deadline: float,
    wait: float,
    plain: str,
) -> None:
    """Run a comparison at the sites of a federation, and print its result."""
    from comity.cli import screen
    from comity.cli.run_commands import show_answers, show_comparison
    from comity.deploy import comparison
    from comity.runs.folder import RunFolder
    from comity.studies.compare import run_folder
    from comity.studies.estimate import OVER_SOLO

    folder = out or free_folder(f"compare-{federation.resolve().name}")
    summaries: list[dict[str, Any]] = []

    def follow(job: SubmittedJob, run: Path) -> dict[str, Any]:
        method = display_name(job.settings["algorithm"])
        screen.out.print(f"{method}, seed {job.settings['seed']}:", style="bold")
        summary = _follow(job, run)
        summaries.append(summary)
        return summary

    with _resumable_at_sites(f"the same command and {shell_line('--out', folder)}"):
        findings = comparison.compare_sites(
            federation, base, algos, seeds, folder, follow, deadline, wait, plain
        )
    first_run = RunFolder(run_folder(folder, SOLO, seeds[0]))
    show_comparison(findings, first_run.read_experiment())
    show_answers(findings)
    if findings.baseline == OVER_SOLO:
        screen.print_legend(
            "Gains are over SOLO, the same network trained alone. On a table, a site's own"
            " regression may be better: --plain linear,boosting lets each site train its own."
        )
    for warning in findings.warnings:
        print_warning(warning.text)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    with resumable(f"the same command and {shell_line('--out', folder)}", always=True):
        check_completed(summaries)
