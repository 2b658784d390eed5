"""Several methods side by side, and training alone beside them: all on one split."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comity.algorithms import accepts, compose, find, names
from comity.checksums import with_crc
from comity.core.wrapper import Wrapper, chain
from comity.data import Federation
from comity.errors import UsageError
from comity.measure import Gain, gains
from comity.metrics.metrics import METRICS
from comity.models import OwnModel
from comity.names import display_name
from comity.runs.build import prepare
from comity.runs.checkpoint import write_atomically
from comity.runs.config import Experiment
from comity.runs.folder import RunFolder
from comity.runs.recording import one_process
from comity.runs.server_run import Progress, judged_by
from comity.studies.method_summary import MethodSummary, method_summary
from comity.studies.overall_verdict import OverallVerdict, foremost, overall
from comity.studies.parallel import Cost, Planned, run_all, settled, shared
from comity.studies.party_verdicts import (
    Parties,
    PartyVerdict,
    answers,
    held_by,
    how_to_read,
    same_parties,
)
from comity.track import Trackers
from comity.wire.ledger import SERVER

SOLO = "solo"
COMPARISON = "comparison.json"
LEFT_OUT = "leave-one-out"
"""The folder of a comparison's runs without one of the parties (see `leave_one_out`)."""


def folder_name(algorithm: str) -> str:
    """An algorithm's folder is called as people call it."""
    return display_name(algorithm)


@dataclass(frozen=True)
class Findings:
    """What came of several methods on the same data."""

    metric: str
    """The name of what methods were judged by."""
    seeds: tuple[int, ...]
    rows: list[MethodSummary]
    overall: OverallVerdict | None
    """What it says of everybody together."""
    answers: list[PartyVerdict]
    """What it says to each party."""
    reading: str
    """How its intervals are to be read."""
    notes: list[str]
    """What else there is to say of it, a sentence each."""

    def plain(self) -> dict[str, Any]:
        """As in comparison.json."""
        return asdict(self) | {"rows": [row.plain() for row in self.rows]}


def compare(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[str], Progress],
    caution: Callable[[str], None],
    track: Trackers | None = None,
    given: Federation | None = None,
    model: OwnModel | None = None,
    jobs: int = 1,
    record_messages: bool = False,
) -> Findings:
    """Run every method, and SOLO, on the same split for each seed; `caution` hears what a user
    should know.

    `progress` gives who watches a run of that title; so many runs as `jobs` go on at once. With
    `record_messages` all keep their messages.

    Each seed deals the data anew, unless a federation is `given`. `model` is a network of the
    user's own, in place of a name.
    """
    methods = list(dict.fromkeys([SOLO, *algorithms]))
    check_folders(methods)
    data = shared(given)
    base = settled(one_process(base) if record_messages else base, jobs)
    base = judged_by(base, data(base.but(seed=seeds[0])).classes)
    experiments = [experiment_of(base, method, seed) for seed in seeds for method in methods]
    check_settings(base, methods)
    said: set[str] = set()

    def say(texts: Iterable[str]) -> None:
        """Each once: what concerns the data is not said by each method again."""
        for text in texts:
            if text not in said:
                caution(text)
            said.add(text)

    parties: dict[int, Parties] = {}
    runs: list[Planned] = []
    for one in experiments:
        job = prepare(one, data(one), model)  # all are checked before the first one starts
        say(job.warnings())
        parties[one.seed] = parties.get(one.seed) or Parties.of(data(one))
        runs.append(
            Planned(
                title(one, len(seeds) > 1),
                one,
                run_folder(out, one.algorithm, one.seed),
                Cost.of(job),
                record_messages,
            )
        )
    summaries: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    with closing(run_all(runs, data, progress, track, model, jobs)) as done:
        for method, summary in zip(itertools.cycle(methods), done, strict=False):
            summaries[method].append(summary)
            say(f"{display_name(method)}: {warning}" for warning in summary.get("remarks", ()))
    there = summaries[SOLO][0]["accuracy"]["per_party"]
    notes = same_here(
        {method: [run_folder(out, method, seed) for seed in seeds] for method in methods}
    )
    say(notes)
    made = findings(
        base, summaries, out, {seed: each.only(there) for seed, each in parties.items()}, notes
    )
    write_atomically(out / COMPARISON, json.dumps(with_crc(made.plain()), indent=2) + "\n")
    return made


def every_method(
    base: Experiment, federation: Federation, model: OwnModel | None = None
) -> tuple[list[str], list[str]]:
    """All methods that can be run as asked, and all wrappers around FedAvg; and a sentence for each
    that cannot.
    """
    able, why = [], []
    for name in names():
        method = f"fedavg+{name}" if issubclass(find(name), Wrapper) else name
        try:
            prepare(experiment_of(base, method, base.seed), federation, model)
        except UsageError as reason:
            why.append(f"{method} is left out: {reason}")
        else:
            able.append(method)
    return able, why


def same_here(folders: Mapping[str, Sequence[Path]]) -> list[str]:
    """A sentence for each group of methods whose parties have the same figures in every round,
    under every seed.

    `folders` are each method's runs. What methods note of themselves may differ.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for method, runs in folders.items():
        rows = (RunFolder(run).read_metrics() for run in runs)
        figures = tuple(
            tuple(str(tuple(row)) for row in each if row.party != SERVER and row.split != "train")
            for each in rows
        )
        alike.setdefault(figures, []).append(display_name(method))
    seeds = max(map(len, folders.values()))
    when = "in every round" + (f", under each of {seeds} seeds" if seeds > 1 else "")
    return [
        f"{', '.join(names[:-1])} and {names[-1]} are the same here: all parties have equal figures"
        f" {when}."
        for names in alike.values()
        if len(names) > 1
    ]


def findings(
    base: Experiment,
    summaries: Mapping[str, Sequence[dict[str, Any]]],
    out: Path,
    parties: Mapping[int, Parties],
    notes: list[str],
) -> Findings:
    """Every method beside SOLO, party by party, and what that says to each of them.

    The best of the methods that a party could take part in is named, so all intervals allow for as
    many.
    """
    metric = METRICS[base.metric]
    shares = {
        method: chain(compose(method, own_settings(base, method)))[-1].traits.shares
        for method in summaries
    }
    open_to_all = [method for method in summaries if shares[method] not in ("nothing", "data")]
    picked = max(1, len(open_to_all))
    same = same_parties(each.shares for each in parties.values())
    few = {summary["seed"]: summary.get("too_few", ()) for summary in summaries[SOLO]}
    gained = {m: _gains(m, parties, out, metric.name) for m in summaries}
    rows = {
        m: method_summary(display_name(m), summaries[m], gained[m], few, same, picked, metric.name)
        for m in summaries
    }
    named = next(iter(parties.values())).class_names
    joint = [rows[m] for m in open_to_all]
    first = best[0].algorithm if (best := foremost(joint)) else ""
    told = answers(
        {row.algorithm: row.gains for row in joint}, held_by(parties, same), metric, named, first
    )
    whole = overall(joint, told, len(parties))
    reading = how_to_read(len(open_to_all), list(parties), metric, same)
    return Findings(metric.name, tuple(parties), list(rows.values()), whole, told, reading, notes)


def _gains(method: str, seeds: Iterable[int], out: Path, metric: str) -> dict[int, list[Gain]]:
    """Every party's gain over SOLO, by seed; SOLO's own would say nothing."""
    both = {
        seed: (run_folder(out, method, seed), run_folder(out, SOLO, seed))
        for seed in seeds
        if method != SOLO
    }
    return {seed: gains(*folders, metric) for seed, folders in both.items()}


def check_folders(methods: Sequence[str]) -> None:
    """Refuse methods whose runs would lie in one folder, or where the runs without a party lie; and
    what is no method.
    """
    if file := next(
        (method for method in methods if method.endswith((".toml", ".yaml", ".yml", ".json"))), None
    ):
        raise UsageError(
            f"{file} is no method: methods are compared by their names, and settings are given as"
            " options."
        )
    folders = [folder_name(method) for method in methods]
    if twice := next((f for f in folders if folders.count(f) > 1), None):
        raise UsageError(
            f"Two of the methods would share the folder {twice}: rename one of the files."
        )
    if LEFT_OUT in folders:
        raise UsageError(
            f"{LEFT_OUT} is the folder of runs without a party: give that method's file another"
            " name."
        )


def title(experiment: Experiment, several: bool, without: str = "") -> str:
    """What one of a study's runs is called while it goes on; with `several` seeds, by its own."""
    parts = [
        display_name(experiment.algorithm),
        f"without {without}" if without else "",
        f"seed {experiment.seed}" if several else "",
    ]
    return " ".join(filter(None, parts))


def run_folder(out: Path, method: str, seed: int) -> Path:
    """Where a comparison keeps a run."""
    return out / folder_name(method) / f"seed-{seed}"


def experiment_of(base: Experiment, method: str, seed: int) -> Experiment:
    """One method's run in a comparison."""
    return base.but(algorithm=method, seed=seed, set=own_settings(base, method))


def own_settings(base: Experiment, method: str) -> dict[str, Any]:
    """Those of the common settings that a method has: `--set mu=1` goes to whoever has a mu."""
    return {name: given for name, given in base.set.items() if accepts(method, name)}


def check_settings(base: Experiment, methods: Iterable[str]) -> None:
    """Refuse a setting that no method has."""
    for name in base.set:
        if not any(name in own_settings(base, method) for method in methods):
            raise UsageError(f"None of the methods has an option called {name!r}.")
