"""The results of `comity.compare` and `comity.tune` in Python, and reading the folders of finished
runs and comparisons.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from comity.checksums import UNREADABLE, read_json
from comity.data import Federation
from comity.errors import ComityError, UsageError, unknown
from comity.frames import frame
from comity.html import view
from comity.models import CustomModel
from comity.runs.folder import RunFolder
from comity.runs.result import Result
from comity.runs.run import reopen
from comity.runs.run_metric import metric_of
from comity.runs.run_warnings import When, upgrade_warnings
from comity.studies.against import AgainstEach
from comity.studies.compare import COMPARISON, Findings, run_folder
from comity.studies.cross_validation import by_repeat
from comity.studies.estimate import Estimate
from comity.studies.method_summary import MethodSummary, figure_of
from comity.studies.overall_verdict import OverallVerdict
from comity.studies.party_verdicts import PartyVerdict
from comity.studies.tune import Trial, Trials
from comity.text import shell_line

if TYPE_CHECKING:
    import pandas

OLD_LISTS: dict[str, When] = {"notes": "after"}
"""The list of texts that earlier versions wrote to comparison.json instead of the warnings."""


def open_run(
    folder: Path, federation: Federation | None, model: CustomModel | None, trust: bool
) -> Result:
    """Return the result in the folder of a finished run.

    Data and code are loaded only when models are accessed. Raises UsageError if the run is not
    finished, and CorruptedFile if a file is damaged.
    """
    run = RunFolder(folder)
    run.check_begun()
    summary = run.read_summary()
    if summary is None:
        raise UsageError(
            f"The run in {folder} is not finished: go on with"
            f" '{shell_line('comity', 'resume', folder)}', or resume=True in Python."
        )
    run.check()
    metric_of(run, run.read_experiment(), trust)  # registers a custom metric by its name
    return Result(folder, lambda: reopen(folder, federation, model, trust=trust), summary)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The comparison of several methods, and SOLO, on the same data.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> comparison = comity.compare(
        ...     ["fedavg", "fedprox"], fed, rounds=1, model="linear", progress=False
        ... )
        >>> [row.algorithm for row in comparison.rows]
        ['solo', 'fedavg', 'fedprox']
        >>> [answer.party for answer in comparison.answers]
        ['p0', 'p1']
        >>> comparison.results["fedavg"][0].summary["rounds"]
        1
        >>> list(comparison.to_pandas().columns[:4])
        ['method', 'metric', 'mean', 'spread']
    """

    folder: Path
    findings: Findings
    results: Mapping[str, Mapping[int, Result]]
    """The results of the runs, by method and seed."""
    _keep: Any = None
    """A temporary folder, which lives as long as the comparison."""

    @property
    def metric(self) -> str:
        """The name of the metric that methods are compared by."""
        return self.findings.metric

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds; each method has one run per seed."""
        return self.findings.seeds

    @property
    def rows(self) -> list[MethodSummary]:
        """The summaries of the methods, SOLO first."""
        return self.findings.rows

    @property
    def overall(self) -> OverallVerdict | None:
        """The verdict for all parties together; None without a method that collaborates."""
        return self.findings.overall

    @property
    def answers(self) -> list[PartyVerdict]:
        """The verdict for each party: whether collaborating helps it."""
        return self.findings.answers

    @property
    def reading(self) -> str:
        """How to read the intervals of the verdicts."""
        return self.findings.reading

    @property
    def against(self) -> AgainstEach | None:
        """The reference method against each of the others; None without a reference."""
        return self.findings.against

    @property
    def best(self) -> MethodSummary:
        """The method with the best mean of the metric."""
        return max(self.rows, key=lambda row: row.goodness)

    @property
    def temporary(self) -> bool:
        """Whether the folder is deleted together with this object."""
        return self._keep is not None

    def __repr__(self) -> str:
        ranked = sorted(self.rows, key=lambda row: -row.goodness)
        figures = [
            f"{row.algorithm} {'diverged' if row.mean is None else f'{row.mean:.1%}'}"
            for row in ranked
        ]
        return f"<comparison by {self.metric}: {', '.join(figures)}>"

    def _repr_html_(self) -> str:
        return view(self)

    def to_pandas(
        self, what: Literal["methods", "answers", "metrics"] = "methods"
    ) -> pandas.DataFrame:
        """Return a data frame.

        "methods" has one row per method, "answers" one per party and method, and "metrics" the rows
        of metrics.csv of all runs. Gains have their interval (`low`, `high`) and their standard
        error. In "answers", `verdict` is about that method alone, and
        `party_verdict` about the choice between all methods.
        """
        if what == "methods":
            return frame([self._method_row(row) for row in self.rows])
        if what == "answers":
            return frame(
                [
                    {
                        "party": answer.party,
                        "party_verdict": answer.verdict,
                        "method": method,
                        "verdict": gain.verdict,
                        **_gain_columns(gain),
                    }
                    for answer in self.answers
                    for method, gain in answer.methods.items()
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
    def _method_row(row: MethodSummary) -> dict[str, Any]:
        counts = ("gained", "hurt", "judged", "rounds", "steps", "server_steps", "seconds")
        more = {name: getattr(row, name) for name in counts}
        figures = {
            "mean": row.mean,
            "spread": row.spread if row.mean is not None else None,
            "worst": row.worst_mean,
        }
        gain = _gain_columns(row.gain)
        row_caveats = {"caveats": "; ".join(row.caveats)}
        return (
            {"method": row.algorithm, "metric": row.metric}
            | figures
            | gain
            | more
            | row.bytes
            | row_caveats
        )

    def report(self, out: str | Path | None = None, *, trust: bool = False) -> Path:
        """Write the report page of the comparison, as `comity.report` does, and return its path."""
        from comity.reading import report

        return report(self, out=out, trust=trust)


def _gain_columns(gain: Estimate | None) -> dict[str, float | None]:
    """The columns of a gain in a data frame; empty ones without a gain."""
    if gain is None:
        return dict.fromkeys(("gain", "low", "high", "standard_error"))
    error = gain.variances.error if gain.variances else None
    return {"gain": gain.gain, "low": gain.low, "high": gain.high, "standard_error": error}


def open_comparison(
    folder: Path,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    trust: bool = False,
    keep: Any = None,
) -> Comparison:
    """Return the comparison in a folder.

    Raises ComityError if comparison.json or a run is damaged, or if they do not belong together.
    """
    path = folder / COMPARISON
    try:
        plain = read_json(path)
        findings = TypeAdapter(Findings).validate_python(upgrade_warnings(plain, OLD_LISTS))
    except OSError as why:
        raise UsageError(f"{path} cannot be read ({why.strerror}).") from why
    except UNREADABLE as why:  # pydantic's ValidationError is a ValueError
        raise ComityError(
            f"{path} is damaged, or of another version of Comity: compare again with the same"
            " --out."
        ) from why
    results = {
        row.algorithm: {
            seed: open_run(run_folder(folder, row.algorithm, seed), federation, model, trust)
            for seed in findings.seeds
        }
        for row in findings.rows
    }
    for row in findings.rows:
        if not _is_of_runs(row, findings, [r.summary for r in results[row.algorithm].values()]):
            raise ComityError(
                f"{path} does not belong to these runs, one of which has continued since: compare"
                " again with another --out."
            )
    return Comparison(folder, findings, results, keep)


def _is_of_runs(
    row: MethodSummary, findings: Findings, summaries: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether a method's row is of runs with these summaries. Under cross-validation its
    figures are pooled, so that only the numbers of rounds are compared.
    """
    if findings.folds > 1:
        repeats = by_repeat((summary["seed"] for summary in summaries), findings.folds)
        rounds = {summary["seed"]: summary["rounds"] for summary in summaries}
        most = [max(rounds[seed] for seed in seeds) for seeds in repeats.values()]
        return row.rounds is not None and row.rounds == float(statistics.mean(most))
    return row.figure == [figure_of(summary, findings.metric) for summary in summaries]


@dataclass(frozen=True, repr=False)
class Tuning:
    """The trials of one method over a grid of settings, ranked on validation samples.

    Examples:
        >>> import comity
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> tuning = comity.tune(
        ...     "fedavg", fed, grid={"lr": [0.001, 0.1]}, rounds=1, model="linear", progress=False
        ... )
        >>> tuning.best.settings
        {'lr': 0.1}
        >>> list(tuning.to_pandas().columns)
        ['lr', 'validation', 'test', 'steps']
    """

    folder: Path
    algorithm: str
    result: Trials
    _keep: Any = None
    """A temporary folder, which lives as long as this object."""

    @property
    def metric(self) -> str:
        """The name of the metric that trials are ranked by."""
        return self.result.metric

    @property
    def trials(self) -> list[Trial]:
        """The trials of all points of the grid, the best first."""
        return self.result.trials

    @property
    def verdict(self) -> str:
        """A sentence: the best trial, its distance to the next, and whether that may be chance."""
        return self.result.verdict

    @property
    def best(self) -> Trial:
        """The trial that is best on validation samples."""
        return self.trials[0]

    def __repr__(self) -> str:
        return (
            f"<{len(self.trials)} trials of {self.algorithm}: best by validation {self.metric}"
            f" {self.best.name}>"
        )

    def _repr_html_(self) -> str:
        return view(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per trial, the best first."""
        return frame(
            [
                {
                    **trial.settings,
                    "validation": trial.validation,
                    "test": trial.test,
                    "steps": trial.mean_steps,
                }
                for trial in self.trials
            ]
        )
