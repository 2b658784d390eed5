"""Runs at the sites of a federation from the command line: ordered, followed to their end, and
shown as all others are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comity.cli.options import Settings, caution, free_folder, resumable
from comity.errors import ComityError, UsageError
from comity.measure.caveats import few
from comity.names import display_name
from comity.runs.config import Experiment

if TYPE_CHECKING:
    from comity.deploy.job_submission import SubmittedJob

AtSites = Annotated[
    Path | None,
    typer.Option(
        "--federation",
        help="at the sites of this federation (comity deploy), not here",
        metavar="DIR",
    ),
]
Deadline = Annotated[
    float,
    typer.Option("--deadline", help="with --federation: seconds that a site has for an answer"),
]
Wait = Annotated[float, typer.Option("--wait", help="with --federation: seconds to wait for sites")]


def check_at_sites(settings: Settings, track: list[str] | None) -> None:
    """Refuse what is said of data and machines in a run between sites."""
    here = {
        "data",
        "partition",
        "parties",
        "engine",
        "workers",
        "device",
        "gpus",
        "partial_sums",
    } & settings.keys()
    if here or track:
        named = f"--{min(here).replace('_', '-')}" if here else "--track"
        raise UsageError(
            f"{named} is not for a run between sites: they have their own data, and each computes"
            " for itself."
        )


def order(
    chosen: Experiment,
    settings: Settings,
    federation: Path,
    out: Path | None,
    track: list[str] | None,
    deadline: float,
    wait: float,
) -> None:
    """A run at the sites of a federation."""
    from comity.deploy.job_submission import SubmittedJob

    check_at_sites(settings, track)
    folder = out or free_folder(
        f"{display_name(chosen.algorithm)}-{federation.resolve().name}-s{chosen.seed}"
    )
    ordered = SubmittedJob.new(federation, chosen, folder, deadline, wait)
    conduct(ordered, folder)


def conduct(ordered: SubmittedJob, folder: Path) -> None:
    """Follow a run between sites to its end, and say what came of it."""
    from comity.cli.running import finish

    with resumable(f"comity resume {folder}"):
        summary = _followed(ordered, folder)
        finish(folder, summary)
        check_completed([summary])


def check_completed(summaries: Iterable[Mapping[str, Any]]) -> None:
    """Raise `ComityError` if a run was not completed at every site; why is on the screen by then."""
    names = {name for summary in summaries for name in summary.get("failed_endings", ())}
    if names:
        raise ComityError(f"The run was not completed at every site ({few(sorted(names))}).")


def _followed(ordered: SubmittedJob, folder: Path) -> dict[str, Any]:
    """Follow a run between sites to its end."""
    from comity.cli import screen
    from comity.cli.tail import Followed

    ordered.report_progress = lambda text: screen.out.print(text, soft_wrap=True)
    course = Followed(ordered.folder.path)
    shown = -1

    def followed(_: object) -> None:
        nonlocal shown
        course.look()
        if course.done > shown:
            shown = course.done
            figure = course.line.get(shown)
            told = (
                f"{course.metric.title} {course.metric.text(figure)}" if figure is not None else ""
            )
            screen.out.print(
                f"round {shown}/{course.rounds}  {told}  {screen.size(sum(course.bytes.values()))}"
            )

    return ordered.conduct(folder, followed)


def compare_sites(
    federation: Path,
    base: Experiment,
    algos: list[str],
    seeds: list[int],
    out: Path | None,
    deadline: float,
    wait: float,
) -> None:
    """A comparison at the sites of a federation."""
    from comity.cli import screen
    from comity.cli.running import show_answers, show_comparison
    from comity.deploy import comparison
    from comity.runs.folder import RunFolder
    from comity.studies.compare import SOLO, run_folder

    folder = out or free_folder(f"compare-{federation.resolve().name}")
    summaries: list[dict[str, Any]] = []

    def one(ordered: SubmittedJob, there: Path) -> dict[str, Any]:
        screen.out.print(
            f"{display_name(ordered.settings['algorithm'])}, seed {ordered.settings['seed']}:",
            style="bold",
        )
        summary = _followed(ordered, there)
        summaries.append(summary)
        return summary

    with resumable(f"the same command and --out {folder}"):
        made = comparison.compare_sites(federation, base, algos, seeds, folder, one, deadline, wait)
    show_comparison(
        made.rows, RunFolder(run_folder(folder, SOLO, seeds[0])).read_experiment(), len(seeds)
    )
    show_answers(made)
    for text in made.notes:
        caution(text)
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)
    with resumable(f"the same command and --out {folder}"):
        check_completed(summaries)
