"""How a method stands in a comparison: its figures over all seeds, beside training alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comity.measure.doubts import doubts
from comity.measure.gain import Gain


@dataclass(frozen=True)
class Standing:
    """One method in a comparison. Lists run over seeds; where no run is finished they are empty, and other figures are None."""

    algorithm: str
    accuracy: list[float]
    """The mean over parties after the last round."""
    worst: list[float]
    """The worst party's."""
    gained: int
    """How many parties, over all seeds, clearly have more than by training alone (SOLO)."""
    hurt: int
    """How many clearly have less."""
    judged: int
    """How many were compared with SOLO."""
    bytes: dict[str, float]
    """What crossed in a run, by kind."""
    seconds: float | None
    joined: float | None
    """Accuracy of newcomers after their warm-up, mean over them and over seeds."""
    joined_gain: float | None
    """What they gained by joining, against training alone."""
    doubts: list[str]
    """What a reader of these figures must know."""

    @property
    def mean(self) -> float:
        """Mean accuracy over seeds; a method without a finished run comes last."""
        return statistics.fmean(self.accuracy) if self.accuracy else float("-inf")

    @property
    def spread(self) -> float:
        """Standard deviation of the mean accuracy over seeds."""
        return statistics.pstdev(self.accuracy)


def standing(algorithm: str, summaries: Sequence[Mapping[str, Any]], gains: Sequence[Gain]) -> Standing:
    """A method's standing, from the summaries of its finished runs and its parties' gains over SOLO."""
    newcomers = [new for summary in summaries for new in summary["newcomers"].values()]
    kinds = summaries[0]["bytes"] if summaries else ()  # runs of other versions may have other kinds
    shared = [kind for kind in kinds if all(kind in summary["bytes"] for summary in summaries)]
    return Standing(
        algorithm,
        accuracy=[summary["accuracy"]["mean"] for summary in summaries],
        worst=[min(v for v in summary["accuracy"]["per_party"].values() if v is not None) for summary in summaries],
        gained=sum(gain.helped for gain in gains),
        hurt=sum(gain.hurt for gain in gains),
        judged=len(gains),
        bytes={kind: statistics.mean(summary["bytes"][kind] for summary in summaries) for kind in shared},
        seconds=_mean([summary["seconds"]["total"] for summary in summaries]),
        joined=_mean([new["joined"] for new in newcomers]),
        joined_gain=_mean([new["gain"] for new in newcomers]),
        doubts=[f"{algorithm}, seed {summary['seed']}: {text}" for summary in summaries for text in doubts(summary)],
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None
