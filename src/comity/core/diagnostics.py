"""What a method tells of itself: the figures that it notes while it runs, and how a report shows
them.

A method lists its diagnostics in a class attribute, so that the report knows no method by name:

    diagnostics = (
        CurveByRound(
            name="discriminator",
            title="how often the discriminator is right",
            meaning="how often the discriminator names the party of a representation",
            value="accuracy",
            metric="discriminator/accuracy",
            reference="chance",
        ),
    )

The figures themselves come from `server.note("discriminator/accuracy", ...)`, or from parameters
that parties keep. What was never noted is not drawn. Titles and meanings begin with a small letter
and have no full stop: the report puts them into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from comity.errors import UsageError

TAKEN = ("method", "party", "peer", "round", "chance", "reference")
"""Columns that the data of a chart have already."""


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """What all kinds of diagnostics have; one of the kinds below says where its figures come from
    and how they are drawn.
    """

    name: str
    """A word for the chart, the data behind it, and the file that it is written to."""
    title: str
    """What stands above the chart."""
    meaning: str
    """What the figures say, in half a sentence: readers who do not see the chart hear it."""
    value: str
    """One word for a figure: the name of its column in the data."""
    axis: str = ""
    """What stands at the axis of the figures; the word for a figure unless told."""

    def __post_init__(self) -> None:
        if not self.value.isidentifier() or self.value in TAKEN:
            raise UsageError(
                f"The value of the diagnostic {self.name!r} must be one word, and none of"
                f" {', '.join(TAKEN)}."
            )

    @property
    def axis_title(self) -> str:
        """What stands at the axis."""
        return self.axis or self.value


@dataclass(frozen=True, kw_only=True)
class CurveByRound(Diagnostic):
    """A line a method, round by round: the mean over seeds of what was noted, each the mean over
    parties if each has its own.
    """

    metric: str
    """What was noted, as in `discriminator/accuracy`."""
    percent: bool = False
    """Whether the figures are fractions, to be shown as percentages from 0 on."""
    reference: float | Literal["chance"] | None = None
    """A figure to compare with, drawn as a dashed line; chance is the largest party's share of the
    training samples.
    """


@dataclass(frozen=True, kw_only=True)
class PartyMatrix(Diagnostic):
    """A figure for each pair of parties, as it was noted last: party i notes `overlap/south` for
    its peer south.
    """

    prefix: str
    """How the metric's name begins, as in `overlap/`; the rest is the peer's name."""


@dataclass(frozen=True, kw_only=True)
class ParameterNorms(Diagnostic):
    """A bar a party: the Euclidean norm of a parameter in the model that the party deploys after
    the last round.
    """

    parameter: str
    """The parameter's name, as in `dbe.offset`; parties whose models have no such parameter are
    left out.
    """
