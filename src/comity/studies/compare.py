"""Several methods side by side, and training alone beside them: all on one split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comity.algorithms import accepts, compose
from comity.core.ledger import SERVER
from comity.core.metrics import METRICS
from comity.core.wrapper import chain
from comity.data import Federation
from comity.errors import Refusal
from comity.experiments.build import Progress, federation_of, judged_by, prepare
from comity.experiments.checkpoint import write_atomically
from comity.experiments.config import Experiment
from comity.experiments.folder import RunFolder
from comity.experiments.run import check_same, elsewhere, reopen, resume_in, start
from comity.measure import Gain, gains
from comity.names import called
from comity.studies.answers import Answer, Parties, answers, how_to_read, same_parties
from comity.studies.standing import Standing, standing
from comity.track import Trackers

SOLO = "solo"
LEFT_OUT = "leave-one-out"
"""The folder of a comparison's runs without one of the parties (see `leave_one_out`)."""


def folder_name(algorithm: str) -> str:
    """An algorithm's folder is called as people call it."""
    return called(algorithm)


def run_once(
    experiment: Experiment, federation: Federation, folder: Path, progress: Progress, track: Trackers | None = None
) -> dict[str, Any]:
    """The summary of a run: a finished one in that folder is taken as it is, an unfinished one is continued."""
    job = prepare(experiment, federation)
    if not RunFolder(folder).begun:
        return start(job, folder, progress, track).summary
    check_same(folder, job.experiment)
    if (summary := RunFolder(folder).read_summary()) is not None:
        RunFolder(folder).check()
    else:
        given = federation if experiment.data == "arrays" else None  # which no folder can bring back
        again = reopen(folder, given, trust=True)  # its code has just run, in `prepare`
        summary = resume_in(again, folder, progress, track).summary
    return summary | {"remarks": [*summary.get("remarks", ()), *elsewhere(folder, experiment)]}


@dataclass(frozen=True)
class Comparison:
    """What came of several methods on the same data."""

    rows: list[Standing]
    answers: list[Answer]
    """What it says to each party."""
    reading: str
    """How its intervals are to be read."""
    notes: list[str]
    """What else there is to say of it, a sentence each."""

    def plain(self, metric: str, seeds: Sequence[int]) -> dict[str, Any]:
        """As in comparison.json."""
        told = [asdict(answer) for answer in self.answers]
        rows = [asdict(row) for row in self.rows]
        own = {"answers": told, "reading": self.reading, "notes": self.notes}
        return {"seeds": list(seeds), "metric": metric, "rows": rows, **own}


def compare(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[Experiment], Progress],
    caution: Callable[[str], None],
    track: Trackers | None = None,
) -> Comparison:
    """Run every method, and SOLO, on the same split for each seed; `caution` hears what a user should know."""
    methods = list(dict.fromkeys([SOLO, *algorithms]))
    check_folders(methods)
    first = federation_of(base.but(seed=seeds[0]))
    base = judged_by(base, first)
    experiments = {method: {seed: experiment_of(base, method, seed) for seed in seeds} for method in methods}
    check_settings(base, methods)
    summaries: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    said: set[str] = set()

    def say(texts: Iterable[str]) -> None:
        """Each once: what concerns the data is not said by each method again."""
        for text in texts:
            if text not in said:
                caution(text)
            said.add(text)

    parties: dict[int, Parties] = {}
    for seed in seeds:
        federation = first if seed == seeds[0] else federation_of(base.but(seed=seed))
        parties[seed] = Parties.of(federation)
        for method in methods:
            say(prepare(experiments[method][seed], federation).cautions())  # all are checked before the first one starts
        for method in methods:
            experiment = experiments[method][seed]
            folder = run_folder(out, method, seed)
            summaries[method].append(run_once(experiment, federation, folder, progress(experiment), track))
            say(f"{called(method)}: {remark}" for remark in summaries[method][-1].get("remarks", ()))
    gained = {method: {seed: _gains(method, seed, out, base.metric) for seed in seeds} for method in methods}
    rows = [standing(called(m), summaries[m], [g for each in gained[m].values() for g in each], base.metric) for m in methods]
    there = summaries[SOLO][0]["accuracy"]["per_party"]
    notes = same_here({method: [run_folder(out, method, seed) for seed in seeds] for method in methods})
    say(notes)
    made = Comparison(rows, *_answers(base, gained, {seed: each.only(there) for seed, each in parties.items()}), notes)
    write_atomically(out / "comparison.json", json.dumps(made.plain(base.metric, seeds), indent=2) + "\n")
    return made


def same_here(folders: Mapping[str, Sequence[Path]]) -> list[str]:
    """A sentence for each group of methods whose parties have the same figures in every round, under every seed.

    `folders` are each method's runs. What methods note of themselves may differ.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for method, runs in folders.items():
        rows = (RunFolder(run).read_metrics() for run in runs)
        figures = tuple(tuple(str(tuple(row)) for row in each if row.party != SERVER and row.split != "train") for each in rows)
        alike.setdefault(figures, []).append(called(method))
    seeds = max(map(len, folders.values()))
    when = "in every round" + (f", under each of {seeds} seeds" if seeds > 1 else "")
    return [
        f"{', '.join(names[:-1])} and {names[-1]} are the same here: all parties have equal figures {when}."
        for names in alike.values()
        if len(names) > 1
    ]


def _gains(method: str, seed: int, out: Path, metric: str) -> list[Gain]:
    """Every party's gain over SOLO; SOLO's own would say nothing."""
    return [] if method == SOLO else gains(run_folder(out, method, seed), run_folder(out, SOLO, seed), metric)


def _answers(
    base: Experiment, gained: Mapping[str, Mapping[int, list[Gain]]], parties: Mapping[int, Parties]
) -> tuple[list[Answer], str]:
    """What the methods that a party could take part in say to each; seeds count only if parties are the same under all."""
    shares = {method: chain(compose(method, own_settings(base, method)))[-1].shares for method in gained}
    seeds = list(parties) if same_parties(each.shares for each in parties.values()) else list(parties)[:1]
    open_to_all = {called(m): [gained[m][seed] for seed in seeds] for m in gained if shares[m] not in ("nothing", "data")}
    metric = METRICS[base.metric]
    told = answers(open_to_all, [parties[seed] for seed in seeds], metric)
    return told, how_to_read(len(open_to_all), seeds, metric, less=len(parties) - len(seeds))


def check_folders(methods: Sequence[str]) -> None:
    """Refuse methods whose runs would lie in one folder, or where the runs without a party lie; and what is no method."""
    if file := next((method for method in methods if method.endswith((".toml", ".yaml", ".yml", ".json"))), None):
        raise Refusal(f"{file} is no method: methods are compared by their names, and settings are given as options.")
    folders = [folder_name(method) for method in methods]
    if twice := next((f for f in folders if folders.count(f) > 1), None):
        raise Refusal(f"Two of the methods would share the folder {twice}: rename one of the files.")
    if LEFT_OUT in folders:
        raise Refusal(f"{LEFT_OUT} is the folder of runs without a party: give that method's file another name.")


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
            raise Refusal(f"None of the methods has an option called {name!r}.")
