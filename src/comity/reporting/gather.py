"""All runs in a folder, by method and by the data they were run on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from comity.errors import UsageError
from comity.metrics.metrics import ACCURACY, Metric
from comity.names import display_name
from comity.reporting.readable import Run
from comity.runs.config import WHERE, Experiment
from comity.runs.folder import MARKS, RunFolder
from comity.spec import parse
from comity.studies.party_verdicts import same_parties

SOLO = "solo"
CENTRALIZED = "centralized"
ASIDE = {"leave-one-out", "exported", "checkpoints", "record_messages", "tensorboard"}
"""Folders whose runs, if any, are no methods of their own."""


@dataclass
class Method:
    """One method's runs, a seed each."""

    name: str
    runs: list[Run]

    @property
    def alone(self) -> bool:
        """Whether it is training alone, whatever it is called here."""
        return self._is(SOLO)

    @property
    def pools(self) -> bool:
        """Whether it pools the data, which is what the others must do without."""
        return self._is(CENTRALIZED)

    def _is(self, algorithm: str) -> bool:
        known = next((run.experiment.algorithm for run in self.runs if run.experiment), self.name)
        return parse(known).name == algorithm if "+" not in known else False

    @property
    def finished(self) -> list[Run]:
        """Those that came to their end."""
        return [run for run in self.runs if run.summary]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """Their summaries."""
        return [run.summary for run in self.runs if run.summary]


@dataclass(eq=False)
class Group:
    """Methods that were run on the same data."""

    name: str
    methods: list[Method]
    page: list[Group] = field(default_factory=list, repr=False)
    """All groups of the page, this one among them."""

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for method in self.methods for run in method.runs]

    @property
    def solo(self) -> Method | None:
        """Training alone, if it was run."""
        return next((m for m in self.methods if m.alone), None)

    @property
    def others(self) -> list[Method]:
        """All but training alone."""
        return [m for m in self.methods if not m.alone]

    @cached_property
    def same_parties(self) -> bool:
        """Whether a party has the same samples under every seed; if not, its name is all it has in
        common with itself.
        """
        return same_parties({run.seed: run.split for run in self.runs if run.split}.values())

    def comparable(self, method: Method) -> list[Run]:
        """A method's finished runs that may be averaged party by party."""
        return method.finished if self.same_parties else method.finished[:1]

    def alone(self, run: Run) -> Run | None:
        """The finished SOLO run on the same split."""
        return (
            next((r for r in self.solo.finished if r.seed == run.seed), None) if self.solo else None
        )

    @property
    def experiment(self) -> Experiment | None:
        """Some run's configuration: they share all but the method."""
        return next((run.experiment for run in self.runs if run.experiment), None)

    @property
    def judged_by(self) -> set[str]:
        """The names of the metrics that the runs chose."""
        return {run.judged_by.name for run in self.runs if run.judged_by}

    @property
    def metric(self) -> Metric:
        """What the runs are shown by: the one metric that they chose or, if they differ, accuracy,
        which all have.
        """
        chosen = {run.judged_by for run in self.runs if run.judged_by}
        return chosen.pop() if len(chosen) == 1 else ACCURACY

    @cached_property
    def between_sites(self) -> bool:
        """Whether runs were between sites."""
        return any(run.between_sites for run in self.runs)

    @cached_property
    def site(self) -> str:
        """The site whose own folder this is, which knows of nobody else; empty if it is none."""
        known = {party for run in self.runs for party in run.split}
        return known.pop() if self.between_sites and len(known) == 1 else ""

    @property
    def names(self) -> list[str]:
        """The methods' names."""
        return [m.name for m in self.methods]

    @property
    def title(self) -> str:
        """The setting in a line."""
        e = self.experiment
        if e is None:
            return self.name or "unknown data"
        where = f"{e.data}, {e.partition}, {e.parties} parties"
        if self.between_sites:
            many = max(len(run.amounts) for run in self.runs)
            where = f"at {self.site}, between sites" if self.site else f"between {many} sites"
        return f"{where}, {e.model}, {e.rounds} rounds"


def gather(folder: Path, trust: bool = False) -> list[Group]:
    """The runs in a folder, grouped by what they were run on; methods in the order of their first
    run's start.

    With `trust` they may run files that their settings name, whoever made them.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder.")
    found: dict[str, dict[str, list[Run]]] = {}
    for path in sorted(_run_folders(folder), key=_started):
        group, run = _placed(folder, path)
        run.trust = trust
        found.setdefault(group, {}).setdefault(run.method, []).append(run)
    if not found:
        raise UsageError(
            f"{folder} holds no runs: nothing in it has a {', a '.join(MARKS[:-1])} or a"
            f" {MARKS[-1]}."
        )
    groups: list[Group] = []
    for name, methods in sorted(found.items(), key=lambda item: _natural(item[0])):
        made = [
            Method(runs[0].method, sorted(runs, key=lambda r: r.seed))
            for some in methods.values()
            for runs in _seeds(some)
        ]
        groups.append(Group(name, sorted(made, key=lambda m: not m.alone), groups))
        for run in groups[-1].runs:
            run.metric = groups[-1].metric
    return groups


def complaints(group: Group, folder: Path) -> list[str]:
    """What is wrong with the files of a group's runs, a sentence each: what was read by now, and
    what was changed.
    """
    for run in group.runs:
        run.check_files()
    return [
        f"{run.folder.relative_to(folder) if run.folder != folder else run.folder.name}: {problem}."
        for run in group.runs
        for problem in run.problems
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """The order in which people count: mnist-2 before mnist-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _seeds(runs: list[Run]) -> list[list[Run]]:
    """Runs of one name, as one method's if they differ in the seed alone; if not, each goes by its
    folder's name too.
    """
    settings = [
        run.experiment.model_dump(exclude={"seed", *WHERE}) for run in runs if run.experiment
    ]
    if len({run.seed for run in runs}) == len(runs) and all(one == settings[0] for one in settings):
        return [runs]
    for run in runs:
        run.method += f" ({run.folder.name})"
    return [[run] for run in runs]


def _run_folders(folder: Path) -> Iterator[Path]:
    if RunFolder(folder).remains:
        yield folder
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner.name not in ASIDE and not inner.is_symlink():
            yield from _run_folders(inner)


def _started(path: Path) -> float:
    try:
        return RunFolder(path).config.stat().st_mtime
    except OSError:
        return 0.0


def _placed(root: Path, path: Path) -> tuple[str, Run]:
    """A run's group and name: by its folders where they follow `compare` or `reproduce`, otherwise
    by its configuration.
    """
    inside = path.relative_to(root).parts
    if len(inside) > 1 and re.fullmatch(r"seed-\d+", inside[-1]):
        return "/".join(inside[:-2]), Run(path, inside[-2])
    run = Run(path, path.name)
    if run.experiment:
        run.method = display_name(run.experiment.algorithm)
        e = run.experiment
        own = (
            []
            if path == root
            else [f"{e.data}, {e.partition}, {e.parties} parties, {e.model}, {e.rounds} rounds"]
        )
        return "/".join([*inside[:-1], *own]), run
    return "/".join(inside[:-1]), run
