"""What `comity.compare` and `comity.tune` give to whoever called them from Python, and how a
comparison's folder is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from comity.checksums import without_crc
from comity.data import Federation
from comity.errors import ComityError, UsageError, unknown
from comity.frames import frame
from comity.models import CustomModel
from comity.runs.folder import RunFolder
from comity.runs.result import Result
from comity.runs.run import reopen
from comity.runs.run_metric import metric_of
from comity.studies.compare import COMPARISON, Findings, run_folder
from comity.studies.method_summary import MethodSummary
from comity.studies.overall_verdict import OverallVerdict
from comity.studies.party_verdicts import PartyVerdict
from comity.studies.tune import Trial, Trials

if TYPE_CHECKING:
    import pandas


def opened(
    folder: Path, federation: Federation | None, model: CustomModel | None, trust: bool
) -> Result:
    """The result of a finished run's folder, if nothing in it is damaged; data and code are opened
    when models are asked for.
    """
    run = RunFolder(folder)
    run.check_begun()
    summary = run.read_summary()
    if summary is None:
        raise UsageError(
            f"The run in {folder} is not finished: go on with 'comity resume {folder}', or"
            " resume=True in Python."
        )
    run.check()
    metric_of(run, run.read_experiment(), trust)  # a user's own is known by its name from now on
    return Result(folder, lambda: reopen(folder, federation, model, trust=trust), summary)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Several methods, and SOLO, on the same data: how they rank, what that says to each party, and
    all runs.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> made = comity.compare(["fedavg", "fedprox"], fed, rounds=1, model="linear", progress=False)
        >>> [row.algorithm for row in made.rows]
        ['solo', 'fedavg', 'fedprox']
        >>> [answer.party for answer in made.answers]
        ['p0', 'p1']
        >>> made.results["fedavg"][0].summary["rounds"]
        1
        >>> list(made.to_pandas().columns[:4])
        ['method', 'metric', 'mean', 'spread']
    """

    folder: Path
    found: Findings
    results: Mapping[str, Mapping[int, Result]]
    """Every run's result, by method and seed."""
    _keep: Any = None
    """A temporary folder lives as long as the comparison."""

    @property
    def metric(self) -> str:
        """The name of what methods were judged by."""
        return self.found.metric

    @property
    def seeds(self) -> tuple[int, ...]:
        """One run of each method for each of these."""
        return self.found.seeds

    @property
    def rows(self) -> list[MethodSummary]:
        """How each method stands, SOLO first."""
        return self.found.rows

    @property
    def overall(self) -> OverallVerdict | None:
        """What the comparison says of everybody together, if there is a method that collaborates."""
        return self.found.overall

    @property
    def answers(self) -> list[PartyVerdict]:
        """What the comparison says to each party: does collaborating help?"""
        return self.found.answers

    @property
    def reading(self) -> str:
        """How the answers' intervals are to be read."""
        return self.found.reading

    @property
    def best(self) -> MethodSummary:
        """The method that stands first."""
        return max(self.rows, key=lambda row: row.goodness)

    @property
    def temporary(self) -> bool:
        """Whether its folder goes with it."""
        return self._keep is not None

    def __repr__(self) -> str:
        ranked = sorted(self.rows, key=lambda row: -row.goodness)
        told = [
            f"{row.algorithm} {'diverged' if row.mean is None else f'{row.mean:.1%}'}"
            for row in ranked
        ]
        return f"<comparison by {self.metric}: {', '.join(told)}>"

    def _repr_html_(self) -> str:
        from comity.notebook.views import of_comparison

        return of_comparison(self)

    def to_pandas(
        self, what: Literal["methods", "answers", "metrics"] = "methods"
    ) -> pandas.DataFrame:
        """A frame of the methods' standings, of the answers by party and method, or of all runs'
        metrics.csv.
        """
        if what == "methods":
            return frame([self._standing(row) for row in self.rows])
        if what == "answers":
            told = (
                (one, method, got) for one in self.answers for method, got in one.methods.items()
            )
            return frame(
                [
                    {"party": one.party, "verdict": one.verdict, "method": m, **asdict(got)}
                    for one, m, got in told
                ]
            )
        if what == "metrics":
            runs = (
                (method, seed, run)
                for method, seeds in self.results.items()
                for seed, run in seeds.items()
            )
            return frame(
                [
                    {"method": m, "seed": seed, **row._asdict()}
                    for m, seed, run in runs
                    for row in run.metrics
                ]
            )
        raise unknown("table called", str(what), ("methods", "answers", "metrics"))

    @staticmethod
    def _standing(row: MethodSummary) -> dict[str, Any]:
        more = {name: getattr(row, name) for name in ("gained", "hurt", "judged", "seconds")}
        figures = {
            "mean": row.mean,
            "spread": row.spread if row.mean is not None else None,
            "worst": row.worst_mean,
        }
        gain = dict.fromkeys(("gain", "low", "high")) if row.gain is None else asdict(row.gain)
        told = {"caveats": "; ".join(row.caveats)}
        return (
            {"method": row.algorithm, "metric": row.metric}
            | figures
            | gain
            | more
            | row.bytes
            | told
        )

    def report(self, out: str | Path | None = None, *, trust: bool = False) -> Path:
        """Write the comparison's page, as `comity.report` does."""
        from comity.reading import report

        return report(self, out=out, trust=trust)


def comparison_of(
    folder: Path,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    trust: bool = False,
    keep: Any = None,
) -> Comparison:
    """The comparison in a folder, if neither what it says nor any of its runs is damaged."""
    path = folder / COMPARISON
    try:
        told = without_crc(json.loads(path.read_text(encoding="utf-8")))
        found = TypeAdapter(Findings).validate_python(told)
    except OSError as why:
        raise UsageError(f"{path} cannot be read ({why.strerror}).") from why
    except (ValidationError, ValueError, TypeError, AttributeError, RecursionError) as why:
        raise ComityError(
            f"{path} is damaged, or of another version of Comity: compare again with the same"
            " --out."
        ) from why
    results = {
        row.algorithm: {
            seed: opened(run_folder(folder, row.algorithm, seed), federation, model, trust)
            for seed in found.seeds
        }
        for row in found.rows
    }
    for row in found.rows:
        if row.figure != [
            (run.summary.get(found.metric) or {}).get("mean")
            for run in results[row.algorithm].values()
        ]:
            raise ComityError(
                f"{path} is not of these runs, one of which went on since: compare again with"
                " another --out."
            )
    return Comparison(folder, found, results, keep)


@dataclass(frozen=True, repr=False)
class Tuning:
    """One method over a grid of settings, judged on validation samples.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> made = comity.tune("fedavg", fed, grid={"lr": [0.001, 0.1]}, rounds=1, model="linear", progress=False)
        >>> made.best.settings
        {'lr': 0.1}
        >>> list(made.to_pandas().columns)
        ['lr', 'validation', 'test']
    """

    folder: Path
    algorithm: str
    found: Trials
    _keep: Any = None
    """A temporary folder lives as long as the trials."""

    @property
    def metric(self) -> str:
        """The name of what trials are judged by."""
        return self.found.metric

    @property
    def trials(self) -> list[Trial]:
        """Every point of the grid, the best first."""
        return self.found.trials

    @property
    def verdict(self) -> str:
        """Which is chosen, how far the next is, and whether that could be chance."""
        return self.found.verdict

    @property
    def best(self) -> Trial:
        """The settings that are best on validation samples."""
        return self.trials[0]

    def __repr__(self) -> str:
        return (
            f"<{len(self.trials)} trials of {self.algorithm}: best by validation {self.metric}"
            f" {self.best.name}>"
        )

    def _repr_html_(self) -> str:
        from comity.notebook.views import of_tuning

        return of_tuning(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A row a trial, the best first."""
        return frame(
            [
                {**trial.settings, "validation": trial.validation, "test": trial.test}
                for trial in self.trials
            ]
        )
