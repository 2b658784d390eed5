"""Diagnostics of a method: figures that it logs while it runs, and how a report shows them.

A method lists its diagnostics in its traits, so that the report needs no code for single methods:

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

The figures come from `server.note("discriminator/accuracy", ...)`, or from parameters of the
parties' models. A diagnostic without figures has no chart. Titles and meanings begin with a small
letter and have no full stop, because the report puts them into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from comity.errors import UsageError

RESERVED_COLUMNS = ("method", "party", "peer", "round", "chance", "reference")
"""Columns that the data of every chart have."""


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """What all kinds of diagnostics have. The subclasses say where the figures come from and how
    they are drawn.
    """

    name: str
    """The name of the chart, of its data and of its file, in one word."""
    title: str
    """The title above the chart."""
    meaning: str
    """What the figures mean, in half a sentence. It is the chart's alternative text."""
    value: str
    """The name of the figures' column in the data, in one word."""
    axis: str = ""
    """The title of the figures' axis. Default: `value`."""

    def __post_init__(self) -> None:
        if not self.value.isidentifier() or self.value in RESERVED_COLUMNS:
            raise UsageError(
                f"The value of the diagnostic {self.name!r} must be one word, and none of"
                f" {', '.join(RESERVED_COLUMNS)}, not {self.value!r}."
            )

    @property
    def axis_title(self) -> str:
        """The title of the figures' axis."""
        return self.axis or self.value


@dataclass(frozen=True, kw_only=True)
class CurveByRound(Diagnostic):
    """One line per method over the rounds: the mean over seeds, and over parties if each party has
    a figure of its own.
    """

    metric: str
    """The name that the method logs the figures under, for instance `discriminator/accuracy`."""
    percent: bool = False
    """Whether the figures are fractions, which are shown as percentages on an axis from 0."""
    reference: float | Literal["chance"] | None = None
    """A value to compare with, drawn as a dashed line. "chance" is the largest party's share of the
    training samples.
    """


@dataclass(frozen=True, kw_only=True)
class PartyMatrix(Diagnostic):
    """The last figure of each pair of parties. Party i logs `overlap/south` for its peer south."""

    prefix: str
    """The beginning of the metric's name, for instance `overlap/`. The rest is the peer's name."""


@dataclass(frozen=True, kw_only=True)
class ParameterNorms(Diagnostic):
    """One bar per party: the Euclidean norm of a parameter in the model that the party deploys
    after the last round.
    """

    parameter: str
    """The parameter's name, for instance `dbe.offset`. Parties whose models do not have it are left
    out.
    """
