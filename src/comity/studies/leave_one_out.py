"""Who helps whom: every run once more without each of its parties, and what that changes for the
others.
"""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path

from comity.algorithms import compose
from comity.core.wrapper import chain
from comity.data import Federation
from comity.errors import UsageError, unknown
from comity.measure.gain import paired
from comity.runs.build import federation_of, prepare
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import Progress
from comity.studies.compare import (
    LEFT_OUT,
    check_folders,
    check_settings,
    experiment_of,
    folder_name,
    own_settings,
    run_folder,
    title,
)
from comity.studies.parallel import Cost, Planned, run_all, settled, shared


@dataclass(frozen=True)
class Effect:
    """What one party's taking part gave another, with its 95% interval over the other's test
    samples.
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


def effects(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[str], Progress],
    only: Sequence[str] | None = None,
    federation: Federation | None = None,
    caution: Callable[[str], None] = lambda text: None,
    jobs: int = 1,
) -> list[Effect]:
    """Make the runs that are not there yet, whole ones where `compare` keeps them, and write down
    what each party gave.

    So many of them as `jobs` go on at once.
    """
    methods = exchanging(base, algorithms)
    data = shared(federation)
    base = settled(base, jobs)
    runs: list[Planned] = []
    pairs: list[tuple[str, int, str, Path, Path]] = []
    for seed in seeds:
        left = planned(base, methods, seed, data(base.but(seed=seed)), only)
        for method in methods:
            whole = experiment_of(base, method, seed)
            job = prepare(whole, data(whole))
            for text in job.warnings():
                caution(text)
            cost = Cost.of(job)  # and about that of each run with one party less
            runs.append(
                Planned(title(whole, len(seeds) > 1), whole, run_folder(out, method, seed), cost)
            )
            for party, one in left[method].items():
                smaller = (
                    out / LEFT_OUT / folder_name(method) / party_folder(party) / f"seed-{seed}"
                )
                runs.append(Planned(title(one, len(seeds) > 1, party), one, smaller, cost))
                pairs.append((method, seed, party, run_folder(out, method, seed), smaller))
    with closing(run_all(runs, data, progress, jobs=jobs)) as done:
        list(done)
    rows = [row for pair in pairs for row in effects_of(*pair)]
    _write(out, seeds, rows)
    return rows


def count(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    only: Sequence[str] | None,
    federation: Federation | None,
) -> int:
    """How many runs there are in all: each method's with everybody, and those without somebody."""
    methods = exchanging(base, algorithms)
    left = planned(
        base, methods, seeds[0], federation or federation_of(base.but(seed=seeds[0])), only
    )
    return len(seeds) * (len(methods) + sum(map(len, left.values())))


def exchanging(base: Experiment, algorithms: Sequence[str]) -> list[str]:
    """Those of the methods in which parties have anything from each other."""
    methods = list(dict.fromkeys(algorithms))
    check_folders(methods)
    check_settings(base, methods)
    found = [
        m
        for m in methods
        if chain(compose(m, own_settings(base, m)))[-1].traits.shares != "nothing"
    ]
    if not found:
        raise UsageError(
            "Leaving a party out tells nothing where nothing is exchanged: name a method beside"
            " solo."
        )
    return found


def planned(
    base: Experiment,
    methods: Sequence[str],
    seed: int,
    federation: Federation,
    only: Sequence[str] | None,
) -> dict[str, dict[str, Experiment]]:
    """By method and by party that is left out: the experiments to come, all checked."""
    plan: dict[str, dict[str, Experiment]] = {}
    for method in methods:
        whole = experiment_of(base, method, seed)
        info = prepare(whole, federation).info
        info.needs_classes("leave-one-out", "tells what a party gives others in accuracy")
        plan[method] = {}
        for party in _chosen(info.names, info.newcomers, only):
            plan[method][party] = whole.but(without=[*(whole.without or ()), party])
            try:
                prepare(plan[method][party], federation)
            except UsageError as why:
                raise UsageError(f"{method} cannot run without {party}: {why}") from why
    return plan


def _chosen(there: Sequence[str], late: Sequence[str], only: Sequence[str] | None) -> list[str]:
    """Whom to leave out: everybody who is there from the start, or those that were named."""
    if len(there) < 2:
        raise UsageError("Leaving a party out needs at least two that are there from the start.")
    for name in only or ():
        if name in late:
            raise UsageError(
                f"{name} joins when the others have finished, so they learn nothing from it: leave"
                " out another party."
            )
        if name not in there:
            raise unknown("party called", name, there)
    return list(dict.fromkeys(there if only is None else only))


def party_folder(name: str) -> str:
    """A folder's name for a party: its own if any file system can tell it from others, or else with
    a mark that can be told.
    """
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower())[:40]
    return name if name == plain else f"{plain}-{blake2b(name.encode(), digest_size=4).hexdigest()}"


def effects_of(method: str, seed: int, left_out: str, whole: Path, smaller: Path) -> list[Effect]:
    """The effects of one party on each of the others, from the run with it and the run without it."""
    with_it = RunFolder(whole).read_outcomes()
    rows = []
    for party, right in RunFolder(smaller).read_outcomes().items():
        if party not in with_it:
            continue  # it was not heard at the end
        gain = paired(party, with_it[party], right)
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
    """What a party gave the others in one method, over all seeds."""

    left_out: str
    mean: float
    helped: int
    hurt: int
    judged: int
    """How many others there are to be helped or hurt, over all seeds."""
    helps: tuple[str, float] | None
    """Whom it helps most, and how much: of those whose interval lies above zero, in some seed."""
    hurts: tuple[str, float] | None


def parts(rows: Iterable[Effect]) -> dict[str, list[Part]]:
    """By method: what each left-out party gave the others, whoever gave most first."""
    grouped: dict[str, dict[str, list[Effect]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        grouped[row.method][row.left_out].append(row)
    return {
        method: sorted(
            (_part(name, mine) for name, mine in left.items()), key=lambda part: -part.mean
        )
        for method, left in grouped.items()
    }


def _part(left_out: str, rows: list[Effect]) -> Part:
    others: dict[str, list[Effect]] = defaultdict(list)
    for row in rows:
        others[row.party].append(row)
    means = {name: statistics.fmean(row.effect for row in mine) for name, mine in others.items()}
    up = {row.party for row in rows if row.low > 0 and means[row.party] > 0}
    down = {row.party for row in rows if row.high < 0 and means[row.party] < 0}
    return Part(
        left_out,
        statistics.fmean(row.effect for row in rows),
        sum(row.low > 0 for row in rows),
        sum(row.high < 0 for row in rows),
        len(rows),
        max(((name, means[name]) for name in up), key=lambda one: one[1], default=None),
        min(((name, means[name]) for name in down), key=lambda one: one[1], default=None),
    )
