"""Reads all runs in a folder and groups them by the data they were run on and by method."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from comity.data.protocols import folds_of
from comity.errors import UsageError
from comity.metrics.metrics import ACCURACY, Metric
from comity.names import OWN_MODEL, OWN_MODELS, SOLO, display_data, display_model, display_name
from comity.reporting.readable import Run
from comity.runs.config import WHERE, Experiment
from comity.runs.folder import TRACES, RunFolder
from comity.safe_files import check_no_links
from comity.spec import parse
from comity.studies.advise.advise import RACE_FOLDER
from comity.studies.estimate import OVER_OWN_MODEL, OVER_SOLO, Baseline
from comity.studies.party_verdicts import same_parties

CENTRALIZED = "centralized"
SKIPPED_FOLDERS = {
    "leave-one-out",
    "exported",
    "checkpoints",
    "tensorboard",
    "wandb",
    RACE_FOLDER,
}
"""Folders whose runs, if any, are not methods of the report."""


@dataclass
class Method:
    """The runs of one method, one for each seed."""

    name: str
    runs: list[Run]

    @property
    def alone(self) -> bool:
        """Whether parties train alone: SOLO, under whatever name, or models of their own."""
        return self._is(SOLO) or self.of_scikit_learn

    @property
    def of_scikit_learn(self) -> bool:
        """Whether these are plain models, or each party's own model, which may be one."""
        return any(map(self._is, OWN_MODELS))

    @property
    def own_model(self) -> bool:
        """Whether these are each party's own models."""
        return self._is(OWN_MODEL)

    @property
    def pools(self) -> bool:
        """Whether the method pools the data, which collaborative methods cannot do."""
        return self._is(CENTRALIZED)

    def _is(self, algorithm: str) -> bool:
        spec = next((run.experiment.algorithm for run in self.runs if run.experiment), self.name)
        return "+" not in spec and parse(spec).name == algorithm

    @property
    def finished(self) -> list[Run]:
        """The finished runs with a readable summary."""
        return [run for run in self.runs if run.summary]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """The summaries of the finished runs."""
        return [run.summary for run in self.runs if run.summary]


@dataclass(eq=False)
class RunGroup:
    """Methods that were run on the same data."""

    name: str
    methods: list[Method]
    page: list[RunGroup] = field(default_factory=list, repr=False)
    """All groups of the page, including this one."""

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for method in self.methods for run in method.runs]

    @property
    def baseline(self) -> Method | None:
        """What gains are over: each party's own model, or SOLO if there are none."""
        own = next((m for m in self.methods if m.own_model), None)
        return own or next((m for m in self.methods if m.alone), None)

    @property
    def over(self) -> Baseline:
        """The name of the baseline."""
        return OVER_OWN_MODEL if self.baseline and self.baseline.own_model else OVER_SOLO

    @property
    def others(self) -> list[Method]:
        """All methods except those in which parties train alone."""
        return [m for m in self.methods if not m.alone]

    @cached_property
    def same_parties(self) -> bool:
        """Whether each party has the same samples under every seed.

        If not, parties of the same name under different seeds are different parties.
        """
        return same_parties({run.seed: run.split for run in self.runs if run.split}.values())

    def comparable(self, method: Method) -> list[Run]:
        """Return the finished runs of a method that can be averaged party by party."""
        return method.finished if self.same_parties else method.finished[:1]

    def baseline_run(self, run: Run) -> Run | None:
        """Return the baseline's finished run with the seed of this run, and so with the same
        split.
        """
        if self.baseline is None:
            return None
        return next((r for r in self.baseline.finished if r.seed == run.seed), None)

    @property
    def experiment(self) -> Experiment | None:
        """The configuration of some run. The runs share all settings except the method's."""
        return next((run.experiment for run in self.runs if run.experiment), None)

    @cached_property
    def folds(self) -> int:
        """The number of folds of cross-validation; 1 without it."""
        return folds_of(self.experiment.test) if self.experiment else 1

    @property
    def kind_of_runs(self) -> str:
        """What distinguishes the runs of a method: seeds, or folds of cross-validation."""
        return "folds" if self.folds > 1 else "seeds"

    @property
    def chosen_metrics(self) -> set[str]:
        """The names of the metrics that the runs chose."""
        return {run.chosen_metric.name for run in self.runs if run.chosen_metric}

    @property
    def metric(self) -> Metric:
        """The metric of the page: the one that all runs chose, or accuracy if they differ."""
        metrics = {run.chosen_metric for run in self.runs if run.chosen_metric}
        return metrics.pop() if len(metrics) == 1 else ACCURACY

    @cached_property
    def between_sites(self) -> bool:
        """Whether the parties were at separate sites."""
        return any(run.between_sites for run in self.runs)

    @cached_property
    def site(self) -> str:
        """The name of the site, if this is a site's own folder; otherwise empty.

        Such a folder knows no other party.
        """
        parties = {party for run in self.runs for party in run.split}
        return parties.pop() if self.between_sites and len(parties) == 1 else ""

    @property
    def names(self) -> list[str]:
        """The names of the methods."""
        return [m.name for m in self.methods]

    @property
    def title(self) -> str:
        """The setting in one line."""
        e = self.experiment
        if e is None:
            return self.name or "unknown data"
        place = f"{display_data(e.data, e.partition)}, {e.parties} parties"
        if self.site:
            place = f"at {self.site}, between sites"
        elif self.between_sites:
            place = f"between {max(len(run.amounts) for run in self.runs)} sites"
        return f"{place}, {display_model(e.model)}, {e.rounds} rounds"


def gather(folder: Path, trust: bool = False) -> list[RunGroup]:
    """Return the runs in a folder, grouped by their data.

    Methods are in the order in which their first runs started, after SOLO and own models. With
    `trust`, runs of other people may execute the Python files that their settings name.

    Raises:
        UsageError: if the folder does not exist or has no runs
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.")
    runs_by_group: dict[str, dict[str, list[Run]]] = {}
    for path in sorted(_run_folders(folder), key=_start_time):
        group_name, run = _locate(folder, path)
        run.trust = trust
        runs_by_group.setdefault(group_name, {}).setdefault(run.method, []).append(run)
    if not runs_by_group:
        raise UsageError(
            f"{folder} holds no runs: nothing in it has a {', a '.join(TRACES[:-1])} or a"
            f" {TRACES[-1]}."
        )
    groups: list[RunGroup] = []
    for name, runs_by_method in sorted(runs_by_group.items(), key=lambda item: _natural(item[0])):
        methods = [
            Method(runs[0].method, sorted(runs, key=lambda r: r.seed))
            for namesakes in runs_by_method.values()
            for runs in _split_by_settings(namesakes)
        ]
        groups.append(RunGroup(name, sorted(methods, key=lambda m: not m.alone), groups))
        for run in groups[-1].runs:
            run.metric = groups[-1].metric
    return groups


def file_problems(group: RunGroup, folder: Path) -> list[str]:
    """Return a sentence for each file of the group's runs that is missing, damaged or changed.

    Damage inside a file is known only if the file has been read before this call.
    """
    for run in group.runs:
        run.check_files()
    return [
        f"{run.folder.relative_to(folder) if run.folder != folder else run.folder.name}: {problem}."
        for run in group.runs
        for problem in run.problems
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts mnist-2 before mnist-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _split_by_settings(runs: list[Run]) -> list[list[Run]]:
    """Return runs of one name as the runs of one method, if they differ only in the seed.

    Otherwise each run is a method, and its name includes the name of its folder.
    """
    settings = [
        run.experiment.model_dump(exclude={"seed", *WHERE}) for run in runs if run.experiment
    ]
    distinct_seeds = len({run.seed for run in runs}) == len(runs)
    if distinct_seeds and all(values == settings[0] for values in settings):
        return [runs]
    for run in runs:
        run.method += f" ({run.folder.name})"
    return [[run] for run in runs]


def _run_folders(folder: Path) -> Iterator[Path]:
    if RunFolder(folder).remains:
        check_no_links(folder)
        yield folder
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner.name not in SKIPPED_FOLDERS and not inner.is_symlink():
            yield from _run_folders(inner)


def _start_time(path: Path) -> float:
    try:
        return RunFolder(path).config.stat().st_mtime
    except OSError:
        return 0.0


def _locate(root: Path, path: Path) -> tuple[str, Run]:
    """Return the group and the run of a folder.

    In folders as `compare` and `reproduce` make them, the folder names say both. In other folders
    the configuration does.
    """
    inside = path.relative_to(root).parts
    if len(inside) > 1 and re.fullmatch(r"seed-\d+", inside[-1]):
        return "/".join(inside[:-2]), Run(path, inside[-2])
    run = Run(path, path.name)
    group = list(inside[:-1])
    if run.experiment:
        e = run.experiment
        run.method = display_name(e.algorithm)
        if path != root:
            group.append(
                f"{e.data}, {e.partition}, {e.parties} parties, {e.model}, {e.rounds} rounds"
            )
    return "/".join(group), run
