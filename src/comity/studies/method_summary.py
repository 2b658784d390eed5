"""The summary of a method in a comparison: its figures over all seeds, and its gains over SOLO or
the parties' own models.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from comity.algorithms import find, names, options
from comity.measure.gain import Gain
from comity.metrics.metrics import ACCURACY, EXPLAINED, METRICS, Metric
from comity.names import OWN_MODELS
from comity.privacy.account import epsilon_for_json, format_epsilon, read_epsilon
from comity.runs.run_warnings import warning_texts
from comity.runs.step_warnings import step_warnings
from comity.runs.summary import no_round_counted
from comity.spec import parse, split
from comity.studies.estimate import OVER_SOLO, Baseline, Estimate
from comity.studies.party_verdicts import average_gain, estimates, without_few
from comity.text import join_names
from comity.units import deviation, duration, size

EPSILON, ROUNDS, STEPS, SERVER_STEPS = "epsilon", "rounds", "steps", "server steps"
"""Columns of the table of methods."""


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison. Lists have one entry per seed.

    Without a finished run, lists are empty and other figures are None.
    """

    algorithm: str
    metric: str
    """The metric that methods are ranked by."""
    figure: list[float | None]
    """The metric's mean over parties after the last round; None where a model has diverged."""
    worst_figure: list[float | None]
    """The worst party's value of the metric."""
    accuracy: list[float]
    """The mean accuracy over parties after the last round; without runs that have no figures."""
    worst: list[float]
    """The worst party's accuracy."""
    gain: Estimate | None
    """The mean gain of the parties over the baseline; None without a comparison to it."""
    gain_of_judged: Estimate | None
    """The mean gain without parties that have too few test samples; None if no other remains."""
    gains: dict[str, Estimate]
    """The gains of the parties with enough test samples. If parties differ between seeds, there is
    one gain per party and seed.
    """
    parties: int
    """The number of parties."""
    bytes: dict[str, float]
    """Bytes of a run by kind; `total` is their sum without evaluation."""
    seconds: float | None
    joined: float | None
    """Accuracy of newcomers after their warm-up, mean over them and over seeds."""
    joined_gain: float | None
    """The newcomers' gain by joining, over training alone."""
    caveats: list[str]
    """Caveats of these figures, a sentence each."""
    epsilon: float | str | None = field(default=None, kw_only=True)
    """The largest ε of a party over all seeds, if the method adds noise; "infinite" if something
    leaves without noise; None if nothing leaves, or if runs of earlier versions do not tell.
    """
    has_noise: bool = field(default=False, kw_only=True)
    """Whether the method adds noise for privacy."""
    rounds: float | None = field(default=None, kw_only=True)
    """The number of rounds, mean over seeds."""
    steps: float | None = field(default=None, kw_only=True)
    """The gradient evaluations of a party in the whole run, mean over parties and seeds."""
    server_steps: float | None = field(default=None, kw_only=True)
    """The gradient evaluations of the server in the whole run, mean over seeds."""
    baseline: Baseline = field(default=OVER_SOLO, kw_only=True)
    """What gains are over."""
    gain_without: dict[str, Estimate] = field(default_factory=dict, kw_only=True)
    """By the name of the party that moves the mean gain most: the mean gain without it. Empty if
    parties differ between seeds, or if they are fewer than three.
    """
    untrained: bool = field(default=False, kw_only=True)
    """Whether no round of a run counted: the method has no figures, since it has not trained."""

    @property
    def gained(self) -> int:
        """The number of parties whose interval of the gain lies above zero."""
        return sum(gain.helped for gain in self.gains.values())

    @property
    def hurt(self) -> int:
        """The number of parties whose interval of the gain lies below zero."""
        return sum(gain.hurt for gain in self.gains.values())

    @property
    def judged(self) -> int:
        """The number of parties with a gain."""
        return len(self.gains)

    def cells(self, several: bool, optional: Collection[str] = ()) -> dict[str, str]:
        """Return the method's row of a table, by column.

        With `several` seeds, figures have spreads. `optional` are the further columns of the table
        (see `optional_columns`).
        """
        metric = METRICS[self.metric]
        figure = "none" if not self.accuracy else "diverged"
        if self.untrained:
            figure = "no round"
        if self.mean is not None:
            figure = f"{self.mean:.1%}" + (f" ± {100 * self.spread:.1f}" if several else "")
        accuracy = {}
        if metric not in (ACCURACY, EXPLAINED) and self.accuracy:
            accuracy = {ACCURACY.title: f"{statistics.fmean(self.accuracy):.1%}"}
        newcomers = (
            {}
            if self.joined is None
            else {"newcomers": f"{self.joined:.1%} ({100 * (self.joined_gain or 0):+.1f})"}
        )
        return {
            "method": self.algorithm + (" *" if self.caveats else ""),
            metric.title: figure,
            f"over {self.baseline}": self.gain.short if self.gain else "",
            "gained": f"{self.gained}/{self.judged}" if self.judged else "",
            "hurt": f"{self.hurt}/{self.judged}" if self.judged else "",
            "worst": "" if self.worst_mean is None else f"{self.worst_mean:.1%}",
            **accuracy,
            **newcomers,
            **({EPSILON: self._epsilon_cell()} if EPSILON in optional else {}),
            **({ROUNDS: _count(self.rounds)} if ROUNDS in optional else {}),
            STEPS: _count(self.steps),
            **(
                {SERVER_STEPS: _count(self.server_steps or None)}
                if SERVER_STEPS in optional
                else {}
            ),
            "sent": size(self.bytes["total"]),
            "time": duration(self.seconds or 0.0),
        }

    def _epsilon_cell(self) -> str:
        return "" if self.epsilon is None else format_epsilon(self.epsilon)

    def plain(self) -> dict[str, Any]:
        """Return the entry of comparison.json."""
        return asdict(self) | {name: getattr(self, name) for name in ("gained", "hurt", "judged")}

    @property
    def mean(self) -> float | None:
        """The metric's mean over seeds; None without a finished run, or where a run diverged."""
        return _mean_if_complete(self.figure)

    @property
    def worst_mean(self) -> float | None:
        """The mean over seeds of the worst party's value."""
        return _mean_if_complete(self.worst_figure)

    @property
    def goodness(self) -> float:
        """The value that methods are ranked by; -inf for a method without a mean."""
        return -math.inf if self.mean is None else METRICS[self.metric].sign * self.mean

    @property
    def spread(self) -> float:
        """Sample standard deviation of the metric's mean over seeds."""
        return deviation([figure for figure in self.figure if figure is not None])


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def optional_columns(rows: Sequence[MethodSummary]) -> list[str]:
    """Return the columns that only some tables have: ε if a method adds noise, the number of rounds
    if methods differ in it, and the steps of the server if one takes any.
    """
    has = {
        EPSILON: any(row.has_noise for row in rows),
        ROUNDS: len({row.rounds for row in rows if row.rounds is not None}) > 1,
        SERVER_STEPS: any(row.server_steps for row in rows),
    }
    return [name for name, present in has.items() if present]


def _mean_if_complete(figures: Sequence[float | None]) -> float | None:
    present = [figure for figure in figures if figure is not None]
    return statistics.fmean(present) if present and len(present) == len(figures) else None


def method_summary(
    algorithm: str,
    summaries: Sequence[Mapping[str, Any]],
    gains: Mapping[int, Sequence[Gain]],
    too_few: Mapping[int, Collection[str]],
    same: bool,
    methods: int,
    metric: str = ACCURACY.name,
    baseline: Baseline = OVER_SOLO,
) -> MethodSummary:
    """Summarise a method in a comparison.

    Args:
        algorithm: The name of the method.
        summaries: The summaries of its finished runs.
        gains: The parties' gains over the baseline, by seed.
        too_few: The parties with too few test samples, by seed. They count in the mean gain only.
        same: Whether parties are the same under all seeds (see `party_verdicts.estimates`).
        methods: The number of methods to choose the best of (Bonferroni).
        metric: The name of the metric.
        baseline: What gains are over.
    """
    by = METRICS[metric]
    reliable = without_few(gains, too_few, same)
    newcomers = [new for summary in summaries for new in summary["newcomers"].values()]
    # Runs of other versions may have other kinds of bytes.
    kinds = summaries[0]["bytes"] if summaries else ()
    shared = [kind for kind in kinds if all(kind in summary["bytes"] for summary in summaries)]
    plain_metric = EXPLAINED.name if metric == EXPLAINED.name else ACCURACY.name
    plain = [block for summary in summaries if _has_figure(block := summary[plain_metric] or {})]
    of_parties = estimates(reliable, same, methods, by)
    return MethodSummary(
        algorithm,
        metric,
        figure=[figure_of(summary, metric) for summary in summaries],
        worst_figure=[_worst(summary.get(metric) or {}, METRICS[metric]) for summary in summaries],
        accuracy=[block["mean"] for block in plain],
        worst=[min(v for v in block["per_party"].values() if v is not None) for block in plain],
        gain=average_gain(gains, methods, by),
        gain_of_judged=average_gain(reliable, methods, by),
        gains=of_parties,
        parties=summaries[0]["parties"] if summaries else 0,
        bytes={
            kind: statistics.mean(summary["bytes"][kind] for summary in summaries)
            for kind in shared
        },
        seconds=_mean([summary["seconds"]["total"] for summary in summaries]),
        joined=_mean([new["joined"] for new in newcomers]),
        joined_gain=_mean([new["gain"] for new in newcomers]),
        caveats=[
            *_caveats(algorithm, summaries),
            *caveats_of_constants(algorithm, of_parties, _composition(summaries)),
        ],
        epsilon=_largest_epsilon(summaries),
        has_noise=any((summary.get("privacy") or {}).get("unit") for summary in summaries),
        rounds=_mean([summary["rounds"] for summary in summaries]),
        steps=_mean([steps_of_party(summary) for summary in summaries]),
        server_steps=_mean([summary.get("server_steps", 0) for summary in summaries]),
        baseline=baseline,
        gain_without=_gain_without(gains, methods, by) if same else {},
        untrained=any(map(no_round_counted, summaries)),
    )


def _gain_without(
    gains: Mapping[int, Sequence[Gain]], methods: int, metric: Metric
) -> dict[str, Estimate]:
    """Return the mean gain without the party that moves it most, by the name of this party."""
    by_party: dict[str, list[float]] = {}
    for of_seed in gains.values():
        for gain in of_seed:
            by_party.setdefault(gain.party, []).append(gain.gain)
    if len(by_party) < FEWEST_TO_LEAVE_OUT:
        return {}
    means = {party: statistics.fmean(values) for party, values in by_party.items()}
    middle = statistics.fmean(means.values())
    party = max(means, key=lambda name: abs(means[name] - middle))
    others = {
        seed: [gain for gain in of_seed if gain.party != party] for seed, of_seed in gains.items()
    }
    estimate = average_gain(others, methods, metric)
    return {party: estimate} if estimate else {}


FEWEST_TO_LEAVE_OUT = 3
"""With fewer parties, a mean without one of them is no mean."""


def _caveats(algorithm: str, summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the warnings of finished runs, each once, with the runs that it is about.

    A comparison has its own warnings about steps, so those of single runs are left out.
    """
    runs_with: dict[str, list[Mapping[str, Any]]] = {}
    for summary in summaries:
        for text in warning_texts(summary, "after"):
            if text not in step_warnings(summary):
                runs_with.setdefault(text, []).append(summary)
    return [f"{algorithm}, {_name_runs(runs)}: {text}" for text, runs in runs_with.items()]


def caveats_of_constants(
    algorithm: str, gains: Mapping[str, Estimate], composition: str
) -> list[str]:
    """Return a caveat if all parties are clearly hurt by a method whose losses have weights.

    The defaults are those of papers. With another network or step size they may be far too large.

    Args:
        algorithm: The name of the method for display.
        gains: The parties' gains.
        composition: The method as its runs name it. A name for display does not tell a user's file
            from one of the methods here. A user's file is left out: a report does not run it.
    """
    hurt = [gain for gain in gains.values() if gain.hurt]
    if len(hurt) < FEWEST_TO_LEAVE_OUT or len(hurt) < len(gains) or algorithm in OWN_MODELS:
        return []
    specs = [parse(part) for part in split(composition, "+")]
    # An installed plugin of the runs may be missing where the report is written.
    method_names = set(names())
    weights = {
        f"{spec.name}'s {name}": f"{spec.name}({name}=...)"
        for spec in specs
        if spec.name in method_names
        for name, option in options(find(spec.name)).items()
        if "weight of" in option.doc
    }
    if not weights:
        return []
    return [
        f"{algorithm}: all {len(gains)} parties are clearly hurt. The weights of its"
        f" losses ({join_names(list(weights))}) were chosen for the networks and step sizes of its"
        f" paper: try smaller ones, as in '{next(iter(weights.values()))}'."
    ]


def _composition(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the method as its runs name it; empty without a finished run."""
    return str(summaries[0].get("algorithm", "")) if summaries else ""


def _name_runs(runs: Sequence[Mapping[str, Any]]) -> str:
    """Name runs by their seeds, or by the numbers of repeats of cross-validation."""
    key = "repeat" if "repeat" in runs[0] else "seed"
    plural = "s" if len(runs) > 1 else ""
    return f"{key}{plural} {join_names([str(run[key]) for run in runs])}"


def figure_of(summary: Mapping[str, Any], metric: str) -> float | None:
    """Return a run's mean of a metric over parties; None if a model diverged, or no round
    counted.
    """
    figure: float | None = (summary.get(metric) or {}).get("mean")
    return None if no_round_counted(summary) else figure


def steps_of_party(summary: Mapping[str, Any]) -> float:
    """Return the gradient evaluations of a party, mean over parties; of a site, its own."""
    return float(summary["steps"] / (summary["parties"] if "server_steps" in summary else 1))


def _largest_epsilon(summaries: Sequence[Mapping[str, Any]]) -> float | str | None:
    """The largest ε over runs in which anything left a party."""
    blocks = [summary.get("privacy") for summary in summaries]
    values = [
        read_epsilon(block["epsilon"])
        for block in blocks
        if block and (block["unit"] or block["unprotected"])
    ]
    return epsilon_for_json(max(values)) if values else None


def _has_figure(block: Mapping[str, Any]) -> bool:
    return any(figure is not None for figure in block.get("per_party", {}).values())


def _worst(block: Mapping[str, Any], metric: Metric) -> float | None:
    """Return the worst party's value; None if the metric has no mean."""
    if block.get("mean") is None:
        return None
    figures: list[float] = [figure for figure in block["per_party"].values() if figure is not None]
    return min(figures, key=lambda figure: metric.sign * figure)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def columns(rows: Iterable[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table, from rows by column; missing cells are empty."""
    lines = list(rows)
    heads = list(dict.fromkeys(head for line in lines for head in line))
    return heads, [[line.get(head, "") for head in heads] for line in lines]
