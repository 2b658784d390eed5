"""Leave-one-out: repeat a run without each party, and measure the effect on the others."""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path

from comity.core.wrapper import chain
from comity.data import Federation
from comity.errors import UsageError, unknown
from comity.measure.gain import paired_gain
from comity.runs.build import federation_of, prepare
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Progress
from comity.safe_files import path_inside, write_atomically
from comity.studies.compare import (
    LEFT_OUT,
    check_folders,
    check_settings,
    composed,
    experiment_of,
    folder_name,
    run_folder,
    title,
)
from comity.studies.parallel import (
    Cost,
    PlannedRun,
    cached_federations,
    run_all,
    with_one_worker,
)


@dataclass(frozen=True)
class Effect:
    """The effect of one party (`left_out`) on the accuracy of another (`party`).

    The 95% interval is over the test samples of the other party.
    """

    method: str
    seed: int
    left_out: str
    party: str
    accuracy_with: float
    accuracy_without: float
    effect: float
    low: float
    high: float


def measure_effects(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[str], Progress],
    only: Sequence[str] | None = None,
    federation: Federation | None = None,
    warn: Callable[[str], None] = lambda text: None,
    jobs: int = 1,
    rounds: Mapping[str, int] | None = None,
) -> list[Effect]:
    """Run all methods with all parties and without each party, and write the effects to `out`.

    Args:
        base: The settings that all runs share.
        algorithms: The methods; those without any exchange are ignored.
        seeds: The seeds.
        out: The folder. The runs with all parties are where `compare` puts them. Finished runs are
            used, others are continued.
        progress: Returns the observer of a run, given the run's title.
        only: The parties to leave out (default: all).
        federation: The data, in place of those that the settings name.
        warn: Is called with each warning for the user.
        jobs: How many runs go on at once.
        rounds: The numbers of rounds of methods that differ from the others in it.
    """
    methods = exchanging_methods(base, algorithms)
    data = cached_federations(federation)
    base = with_one_worker(base, jobs)
    runs: list[PlannedRun] = []
    pairs: list[tuple[str, int, str, Path, Path]] = []
    for seed in seeds:
        smaller_runs = plan_runs(base, methods, seed, data(base.but(seed=seed)), only, rounds)
        for method in methods:
            whole = experiment_of(base, method, seed, rounds)
            job = prepare(whole, data(whole))
            for text in job.warnings():
                warn(text)
            cost = Cost.of(job)  # about the same as that of a run with one party less
            runs.append(
                PlannedRun(title(whole, len(seeds) > 1), whole, run_folder(out, method, seed), cost)
            )
            for party, experiment in smaller_runs[method].items():
                smaller = path_inside(
                    out, LEFT_OUT, folder_name(method), party_folder(party), f"seed-{seed}"
                )
                run_title = title(experiment, len(seeds) > 1, party)
                runs.append(PlannedRun(run_title, experiment, smaller, cost))
                pairs.append((method, seed, party, run_folder(out, method, seed), smaller))
    with closing(run_all(runs, data, progress, jobs=jobs)) as summaries:
        list(summaries)
    rows = [row for pair in pairs for row in effects_of(*pair)]
    _write(out, seeds, rows)
    return rows


def count_runs(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    only: Sequence[str] | None,
    federation: Federation | None,
) -> int:
    """Return the number of runs of `measure_effects`."""
    methods = exchanging_methods(base, algorithms)
    smaller_runs = plan_runs(
        base, methods, seeds[0], federation_of(base.but(seed=seeds[0]), federation), only
    )
    return len(seeds) * (len(methods) + sum(map(len, smaller_runs.values())))


def exchanging_methods(base: Experiment, algorithms: Sequence[str]) -> list[str]:
    """Return the methods in which parties exchange anything.

    Raises UsageError if there are none.
    """
    methods = list(dict.fromkeys(algorithms))
    check_folders(methods)
    check_settings(base, methods)
    exchanging = [m for m in methods if chain(composed(base, m))[-1].traits.shares != "nothing"]
    if not exchanging:
        raise UsageError(
            "Leaving a party out tells nothing where nothing is exchanged: name a method beside"
            " solo."
        )
    return exchanging


def plan_runs(
    base: Experiment,
    methods: Sequence[str],
    seed: int,
    federation: Federation,
    only: Sequence[str] | None,
    rounds: Mapping[str, int] | None = None,
) -> dict[str, dict[str, Experiment]]:
    """Return the experiments by method and by left-out party, all checked."""
    plan: dict[str, dict[str, Experiment]] = {}
    for method in methods:
        whole = experiment_of(base, method, seed, rounds)
        info = prepare(whole, federation).info
        info.needs_classes("leave-one-out", "tells what a party gives others in accuracy")
        plan[method] = {}
        for party in _parties_to_leave_out(info.names, info.newcomers, only):
            plan[method][party] = whole.but(without=[*(whole.without or ()), party])
            try:
                prepare(plan[method][party], federation)
            except UsageError as why:
                raise UsageError(f"{method} cannot run without {party}: {why}") from why
    return plan


def _parties_to_leave_out(
    names: Sequence[str], newcomers: Sequence[str], only: Sequence[str] | None
) -> list[str]:
    """Return the parties to leave out: those of `only`, or all except newcomers."""
    if len(names) < 2:
        raise UsageError("Leaving a party out needs at least two that are there from the start.")
    for name in only or ():
        if name in newcomers:
            raise UsageError(
                f"{name} joins when the others have finished, so they learn nothing from it: leave"
                " out another party."
            )
        if name not in names:
            raise unknown("party called", name, names)
    return list(dict.fromkeys(names if only is None else only))


def party_folder(name: str) -> str:
    """Return the folder name of a party: its name if every file system can have it.

    Other names are shortened to plain characters, with a digest that distinguishes them.
    """
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower())[:40]
    return name if name == plain else f"{plain}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def effects_of(method: str, seed: int, left_out: str, whole: Path, smaller: Path) -> list[Effect]:
    """Return the effects of one party on the others, from a run with it and a run without it."""
    with_it = RunFolder(whole).read_outcomes()
    rows = []
    for party, right in RunFolder(smaller).read_outcomes().items():
        if party not in with_it:
            continue  # it did not report at the end
        gain = paired_gain(party, with_it[party], right)
        rows.append(
            Effect(
                method,
                seed,
                left_out,
                party,
                accuracy_with=statistics.fmean(with_it[party]),
                accuracy_without=statistics.fmean(right),
                effect=gain.gain,
                low=gain.low,
                high=gain.high,
            )
        )
    return rows


def _write(out: Path, seeds: Sequence[int], rows: Sequence[Effect]) -> None:
    plain = [asdict(row) for row in rows]
    text = io.StringIO()
    table = csv.DictWriter(text, [f.name for f in fields(Effect)], lineterminator="\n")
    table.writeheader()
    table.writerows(plain)
    write_atomically(out / f"{LEFT_OUT}.csv", text.getvalue())
    write_atomically(
        out / f"{LEFT_OUT}.json", json.dumps({"seeds": list(seeds), "rows": plain}, indent=2) + "\n"
    )


@dataclass(frozen=True)
class Part:
    """The effects of one party on the others by one method, over all seeds."""

    left_out: str
    mean: float
    helped: int
    hurt: int
    effects: int
    """The number of effects: other parties times seeds."""
    helps: tuple[str, float] | None
    """The party that it helps most, and how much, among those with an interval above zero under
    some seed.
    """
    hurts: tuple[str, float] | None


def parts(rows: Iterable[Effect]) -> dict[str, list[Part]]:
    """Return the effects of each left-out party by method, the largest mean effect first."""
    grouped: dict[str, dict[str, list[Effect]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        grouped[row.method][row.left_out].append(row)
    return {
        method: sorted(
            (_part(name, of_party) for name, of_party in by_party.items()),
            key=lambda part: -part.mean,
        )
        for method, by_party in grouped.items()
    }


def _part(left_out: str, rows: list[Effect]) -> Part:
    others: dict[str, list[Effect]] = defaultdict(list)
    for row in rows:
        others[row.party].append(row)
    means = {
        name: statistics.fmean(row.effect for row in of_party) for name, of_party in others.items()
    }
    up = {row.party for row in rows if row.low > 0 and means[row.party] > 0}
    down = {row.party for row in rows if row.high < 0 and means[row.party] < 0}
    return Part(
        left_out,
        statistics.fmean(row.effect for row in rows),
        sum(row.low > 0 for row in rows),
        sum(row.high < 0 for row in rows),
        len(rows),
        max(((name, means[name]) for name in up), key=lambda pair: pair[1], default=None),
        min(((name, means[name]) for name in down), key=lambda pair: pair[1], default=None),
    )
