"""How a method stands in a comparison: its figures over all seeds, beside training alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from comity.measure.caveats import caveats
from comity.measure.gain import Gain
from comity.metrics.metrics import ACCURACY, EXPLAINED, METRICS, Metric
from comity.studies.party_verdicts import Estimate, estimates, judged, on_average
from comity.units import duration, size


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison. Lists run over seeds; where no run is finished they are empty,
    and other figures are None.
    """

    algorithm: str
    metric: str
    """What methods are ranked and judged by."""
    figure: list[float | None]
    """By that metric, the mean over parties after the last round; None where a model has diverged.
    """
    worst_figure: list[float | None]
    """The worst party's."""
    accuracy: list[float]
    """The mean over parties after the last round; runs in which no party told a figure are left
    out.
    """
    worst: list[float]
    """The worst party's accuracy."""
    gain: Estimate | None
    """What the parties have more than by training alone (SOLO), on average; None where nobody was
    compared with it.
    """
    gain_of_judged: Estimate | None
    """The same without the parties whose test samples are too few to judge each of them by; None if
    no other is left.
    """
    gains: dict[str, Estimate]
    """The same of each of the others; under several seeds, of every seed's, if they are not the
    same parties.
    """
    parties: int
    """How many take part."""
    bytes: dict[str, float]
    """What crossed in a run, by kind; `total` is all of it but evaluation."""
    seconds: float | None
    joined: float | None
    """Accuracy of newcomers after their warm-up, mean over them and over seeds."""
    joined_gain: float | None
    """What they gained by joining, against training alone."""
    caveats: list[str]
    """What a reader of these figures must know."""

    @property
    def gained(self) -> int:
        """How many parties clearly have more than by training alone."""
        return sum(gain.helped for gain in self.gains.values())

    @property
    def hurt(self) -> int:
        """How many clearly have less."""
        return sum(gain.hurt for gain in self.gains.values())

    @property
    def judged(self) -> int:
        """How many were compared with training alone."""
        return len(self.gains)

    def cells(self, several: bool) -> dict[str, str]:
        """The method's line in a table, by column; with `several` seeds, figures have their spread."""
        metric = METRICS[self.metric]
        figure = "none" if not self.accuracy else "diverged"
        if self.mean is not None:
            figure = f"{self.mean:.1%}" + (f" ± {100 * self.spread:.1f}" if several else "")
        beside = {}
        if metric not in (ACCURACY, EXPLAINED) and self.accuracy:
            beside = {ACCURACY.title: f"{statistics.fmean(self.accuracy):.1%}"}
        late = (
            {}
            if self.joined is None
            else {"newcomers": f"{self.joined:.1%} ({100 * (self.joined_gain or 0):+.1f})"}
        )
        return {
            "method": self.algorithm + (" *" if self.caveats else ""),
            metric.title: figure,
            "over SOLO": self.gain.short if self.gain else "",
            "gained": f"{self.gained}/{self.judged}" if self.judged else "",
            "hurt": f"{self.hurt}/{self.judged}" if self.judged else "",
            "worst": "" if self.worst_mean is None else f"{self.worst_mean:.1%}",
            **beside,
            **late,
            "sent": size(self.bytes["total"]),
            "time": duration(self.seconds or 0.0),
        }

    def plain(self) -> dict[str, Any]:
        """As in comparison.json."""
        return asdict(self) | {name: getattr(self, name) for name in ("gained", "hurt", "judged")}

    @property
    def mean(self) -> float | None:
        """The metric's mean over seeds; None for a method without a finished run, or with one that
        has diverged.
        """
        return _whole_mean(self.figure)

    @property
    def worst_mean(self) -> float | None:
        """The same of the worst party."""
        return _whole_mean(self.worst_figure)

    @property
    def goodness(self) -> float:
        """What methods are ranked by, more being better; who has no mean comes last."""
        return -math.inf if self.mean is None else METRICS[self.metric].sign * self.mean

    @property
    def spread(self) -> float:
        """Standard deviation of the metric's mean over seeds."""
        return statistics.pstdev([figure for figure in self.figure if figure is not None])


def _whole_mean(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.fmean(known) if known and len(known) == len(figures) else None


def method_summary(
    algorithm: str,
    summaries: Sequence[Mapping[str, Any]],
    gains: Mapping[int, Sequence[Gain]],
    few: Mapping[int, Collection[str]],
    same: bool,
    methods: int,
    metric: str = ACCURACY.name,
) -> MethodSummary:
    """A method's standing by a metric, from the summaries of its finished runs and its parties'
    gains over SOLO, by seed.

    It is one of so many `methods` to pick the best of. Whose test samples are too `few`, by seed,
    is judged on average only; parties are the `same` under all seeds or not (see
    `answers.estimates`).
    """
    by = METRICS[metric]
    clear = judged(gains, few, same)
    newcomers = [new for summary in summaries for new in summary["newcomers"].values()]
    kinds = (
        summaries[0]["bytes"] if summaries else ()
    )  # runs of other versions may have other kinds
    shared = [kind for kind in kinds if all(kind in summary["bytes"] for summary in summaries)]
    plain_metric = EXPLAINED.name if metric == EXPLAINED.name else ACCURACY.name
    plain = [block for summary in summaries if _has_figure(block := summary[plain_metric] or {})]
    return MethodSummary(
        algorithm,
        metric,
        figure=[(summary.get(metric) or {}).get("mean") for summary in summaries],
        worst_figure=[_worst(summary.get(metric) or {}, METRICS[metric]) for summary in summaries],
        accuracy=[block["mean"] for block in plain],
        worst=[min(v for v in block["per_party"].values() if v is not None) for block in plain],
        gain=on_average(gains, methods, by),
        gain_of_judged=on_average(clear, methods, by),
        gains=estimates(clear, same, methods, by),
        parties=summaries[0]["parties"] if summaries else 0,
        bytes={
            kind: statistics.mean(summary["bytes"][kind] for summary in summaries)
            for kind in shared
        },
        seconds=_mean([summary["seconds"]["total"] for summary in summaries]),
        joined=_mean([new["joined"] for new in newcomers]),
        joined_gain=_mean([new["gain"] for new in newcomers]),
        caveats=[
            f"{algorithm}, seed {summary['seed']}: {text}"
            for summary in summaries
            for text in caveats(summary)
        ],
    )


def _has_figure(block: Mapping[str, Any]) -> bool:
    return any(figure is not None for figure in block.get("per_party", {}).values())


def _worst(block: Mapping[str, Any], metric: Metric) -> float | None:
    """The figure of the worst party, if there is a mean that it is worse than."""
    if block.get("mean") is None:
        return None
    known: list[float] = [figure for figure in block["per_party"].values() if figure is not None]
    return min(known, key=lambda figure: metric.sign * figure)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def columns(rows: Iterable[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Heads and lines of a table, from lines by column; what a line does not have is empty."""
    lines = list(rows)
    heads = list(dict.fromkeys(head for line in lines for head in line))
    return heads, [[line.get(head, "") for head in heads] for line in lines]
