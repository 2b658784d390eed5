"""Several runs side by side: all methods on one split (`compare`), one method over a grid (`tune`)."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comity.algorithms import accepts
from comity.data import Federation
from comity.errors import ComityError, Refusal
from comity.experiments.build import Progress, federation_of, prepare
from comity.experiments.checkpoint import write_atomically
from comity.experiments.config import Experiment
from comity.experiments.loop import check_same, reopen, resume_in, start
from comity.measure import gains
from comity.spec import parse, split, value
from comity.track import Trackers

SOLO = "solo"
LEFT_OUT = "leave-one-out"
"""The folder of a comparison's runs without one of the parties (see `leaving`)."""


def folder_name(algorithm: str) -> str:
    """An algorithm's folder: its name with its options, a user's file by its stem."""
    specs = [parse(part) for part in split(algorithm, "+")]
    return "+".join(str(replace(s, name=Path(s.name).stem if s.name.endswith(".py") else s.name)) for s in specs)


def finished(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended."""
    try:
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        for part in ("accuracy", "bytes", "seconds"):
            summary[part].keys()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as why:
        raise ComityError(f"{folder / 'summary.json'} cannot be read: it is damaged.") from why
    return summary


def run_once(
    experiment: Experiment, federation: Federation, folder: Path, progress: Progress, track: Trackers | None = None
) -> dict[str, Any]:
    """The summary of a run: a finished one in that folder is taken as it is, an unfinished one is continued."""
    job = prepare(experiment, federation)
    if not (folder / "config.toml").exists():
        return start(job, folder, progress, track).summary
    check_same(folder, job.experiment)
    if summary := finished(folder):
        return summary
    given = federation if experiment.data == "arrays" else None  # which no folder can bring back
    return resume_in(reopen(folder, given), folder, progress, track).summary


@dataclass(frozen=True)
class Row:
    """One method in a comparison; lists run over seeds."""

    algorithm: str
    accuracy: list[float]
    worst: list[float]
    gained: int
    hurt: int
    judged: int
    """How many parties, over all seeds, were compared with SOLO."""
    bytes: dict[str, float]
    seconds: float
    joined: float | None
    """Accuracy of newcomers after their warm-up, mean over them and over seeds."""
    joined_gain: float | None
    """What they gained by joining, against training alone."""

    def spread(self) -> float:
        """Standard deviation of the mean accuracy over seeds."""
        return statistics.pstdev(self.accuracy)


def compare(
    base: Experiment,
    algorithms: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[Experiment], Progress],
    caution: Callable[[str], None],
    track: Trackers | None = None,
) -> list[Row]:
    """Run every method, and SOLO, on the same split for each seed; `caution` hears what a user should know beforehand."""
    methods = list(dict.fromkeys([SOLO, *algorithms]))
    check_folders(methods)
    summaries: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    experiments = {m: {s: experiment_of(base, m, s) for s in seeds} for m in methods}
    check_settings(base, methods)
    said: set[str] = set()
    for seed in seeds:
        federation = federation_of(base.but(seed=seed))
        for method in methods:
            job = prepare(experiments[method][seed], federation)  # all are checked before the first one starts
            for text in job.cautions():
                if text not in said:  # what concerns the data is said once, not by each method
                    caution(text)
                said.add(text)
        for method in methods:
            experiment = experiments[method][seed]
            folder = run_folder(out, method, seed)
            summaries[method].append(run_once(experiment, federation, folder, progress(experiment), track))
    rows = [_row(method, summaries[method], seeds, out) for method in methods]
    table = [{"algorithm": row.algorithm, **{k: v for k, v in vars(row).items() if k != "algorithm"}} for row in rows]
    write_atomically(out / "comparison.json", json.dumps({"seeds": list(seeds), "rows": table}, indent=2) + "\n")
    return rows


def check_folders(methods: Sequence[str]) -> None:
    """Refuse methods whose runs would lie in one folder, or where the runs without a party lie."""
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


def _row(method: str, summaries: list[dict[str, Any]], seeds: Sequence[int], out: Path) -> Row:
    compared = [
        gain for seed in seeds for gain in gains(run_folder(out, method, seed), run_folder(out, SOLO, seed)) if method != SOLO
    ]
    late = [new for s in summaries for new in s["newcomers"].values()]
    return Row(
        method,
        [s["accuracy"]["mean"] for s in summaries],
        [s["accuracy"]["per_party"][s["accuracy"]["worst_party"]] for s in summaries],
        sum(g.helped for g in compared),
        sum(g.hurt for g in compared),
        len(compared),
        {kind: statistics.mean(s["bytes"][kind] for s in summaries) for kind in summaries[0]["bytes"]},
        statistics.mean(s["seconds"]["total"] for s in summaries),
        statistics.mean(new["joined"] for new in late) if late else None,
        statistics.mean(new["gain"] for new in late) if late else None,
    )


@dataclass(frozen=True)
class Trial:
    """One point of a grid, with its accuracies averaged over seeds."""

    settings: dict[str, Any]
    validation: float
    test: float


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """`mu=0.1,1` and the like."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise Refusal(f"{text!r} is not of the form name=value,value,...")
        grid[name.strip()] = [value(v) for v in values.split(",")]
    if not grid:
        raise Refusal("tune needs at least one --grid name=value,value,...")
    return grid


def tune(
    base: Experiment,
    grid: dict[str, list[Any]],
    seeds: Sequence[int],
    out: Path,
    progress: Callable[[Experiment], Progress],
    track: Trackers | None = None,
) -> list[Trial]:
    """Every point of the grid with the same budget, best by validation accuracy first."""
    if not base.validation:
        raise Refusal("tune chooses on validation data, so --validation must be greater than 0.")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    fields = {n for n in grid if n in Experiment.model_fields}
    if "seed" in fields:
        raise Refusal("A seed is not tuned: give several with --seeds.")
    trials: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        made = []
        for point in points:
            changes = {n: v for n, v in point.items() if n in fields}
            own = base.set | {n: v for n, v in point.items() if n not in fields}
            experiment = base.but(seed=seed, set=own, **changes)
            made.append((experiment, federation_of(experiment)))
            prepare(*made[-1])
        for point, (experiment, federation) in zip(points, made, strict=True):
            name = ",".join(f"{n}={v}" for n, v in point.items())
            folder = out / name / f"seed-{seed}"
            summary = run_once(experiment, federation, folder, progress(experiment), track)
            best = summary["accuracy"]["best_round"]
            trials.setdefault(name, []).append((_validation_at(folder, best["round"]), best["weighted"]))
    rows = [
        Trial(point, statistics.mean(v for v, _ in got), statistics.mean(t for _, t in got))
        for point, got in zip(points, trials.values(), strict=True)
    ]
    return sorted(rows, key=lambda row: -row.validation)


def _validation_at(folder: Path, t: int) -> float:
    from comity.experiments.folder import read_metrics

    rows = [n.value for n in read_metrics(folder) if (n.round, n.split, n.metric) == (t, "validation", "accuracy")]
    return statistics.mean(rows)
