"""The result of an attack: its success with an interval, beside what guessing gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from comity.auditing.chance import (
    RATES,
    IntervalEstimate,
    Scored,
    area,
    epsilon_from_guesses,
    positive_rates,
)
from comity.base.key import Key


@dataclass(frozen=True)
class Pictures:
    """Samples and their reconstructions: the best ones, then those around the median."""

    party: str
    originals: Tensor
    guesses: Tensor


COUNT = 6
"""How many of the best reconstructions are in a picture, and how many around the median."""


def best_and_median(errors: Tensor) -> Tensor:
    """The indices of the reconstructions for a picture: the best, and those around the median."""
    order = errors.argsort()
    middle = len(order) // 2
    around = slice(max(COUNT, middle - COUNT // 2), max(COUNT, middle + COUNT // 2))
    return torch.cat([order[:COUNT], order[around]])


@dataclass(frozen=True)
class Finding:
    """The result of an attack that was tried."""

    attack: str
    how: str
    """Who attacks, and with what, in a sentence."""
    measure: str
    """The measure of success: AUC, or a share of the samples."""
    success: float
    low: float
    high: float
    prior: float
    """What guessing gives."""
    epsilon: float | None = None
    """The smallest epsilon of a record that explains it, at 95% for all attacks of a run together;
    None if that was not measured.
    """
    figures: dict[str, Any] = field(default_factory=dict)
    """Further numbers, by name."""
    sure: str = ""
    """For which few samples it is right beyond chance, if it is not over all samples."""
    notes: tuple[str, ...] = ()
    """What limits the result, a sentence each."""
    pictures: Pictures | None = None

    @property
    def power(self) -> bool:
        """Whether it is better than guessing, beyond chance, over all samples or for a few."""
        return self.low > self.prior or bool(self.sure)

    @property
    def interval(self) -> str:
        """The success with its interval, as a text."""
        return f"{self.text(self.success)} ({self.text(self.low)} to {self.text(self.high)})"

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        result = f"{self.measure} {self.interval}, guessing {self.text(self.prior)}"
        if self.low > self.prior:
            return f"{self.attack}: {result}."
        if self.sure:
            return f"{self.attack}: over all no better than guessing ({result}), but {self.sure}."
        return (
            f"{self.attack} has no power here: {result}. That it fails does not show that nothing"
            " can be learned from what was sent."
        )

    def text(self, value: float) -> str:
        """A value of the measure as a text."""
        return f"{value:.3f}" if self.measure == "AUC" else f"{value:.1%}"

    def plain(self) -> dict[str, Any]:
        """The result as audit.json has it."""
        values = {name: value for name, value in asdict(self).items() if name != "pictures"}
        return values | {"power": self.power, "says": self.sentence, "notes": list(self.notes)}


@dataclass(frozen=True)
class Untried:
    """An attack that could not be tried on what was sent, and why."""

    attack: str
    why: str

    @property
    def sentence(self) -> str:
        """The reason in a sentence."""
        return f"{self.attack} was not tried: {self.why}."


Outcome = Finding | Untried
Verdict = Literal["right", "wrong", "no power"]


@dataclass(frozen=True)
class Check:
    """A comparison of what a run declares with what it did."""

    name: str
    measured: str
    """What was measured, with its interval if it has one."""
    expected: str
    """What the run declares, in the same terms."""
    verdict: Verdict
    """Whether both agree; "no power" if a grave fault would not be noticed."""
    why: str
    """What was compared, and what follows, in sentences."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The numbers, by name."""

    @property
    def sentence(self) -> str:
        """The result in a sentence or two."""
        text = f"{self.name}: {self.measured}, expected {self.expected}: {self.verdict}."
        return f"{text} {self.why}"

    def plain(self) -> dict[str, Any]:
        """The result as audit.json has it."""
        return asdict(self) | {"says": self.sentence}


def membership(
    attack: str, how: str, parties: Sequence[Scored], random_split: bool, delta: float, key: Key
) -> Outcome:
    """The result of a membership attack: the AUC, true positives at low false positive rates, and
    the epsilon that they show.

    Arguments:
        attack: the attack's name
        how: who attacks, and with what, in a sentence
        parties: the scores of each party's candidates
        random_split: whether members were drawn at random; otherwise other differences look like
            membership, and no epsilon is computed
        delta: the delta of the epsilon
        key: the key of the bootstrap
    """
    usable = [party for party in parties if party.member.any() and not party.member.all()]
    if not usable:
        return Untried(
            attack, "no party has samples of which some were trained on and others were not"
        )
    if any(not party.scores.isfinite().all() for party in usable):
        return Untried(attack, "a model has diverged, so that its scores are no numbers")
    estimate = area(usable, key.fold("area"))
    members, others = (
        sum(int((party.member == part).sum()) for party in usable) for part in (True, False)
    )
    figures: dict[str, Any] = {"members": members, "others": others}
    notes = []
    sure = ""
    for rate in RATES:
        rates = positive_rates(usable, rate)
        figures[f"tpr_at_{rate:g}"] = None if rates is None else list(rates.members)
        if rates is None:
            notes.append(
                f"{rate:.1%} of false positives cannot be measured: that takes {1 / rate:.0f}"
                f" samples that were not trained on, and there are {others:,}."
            )
        elif rates.significant:
            true = rates.members
            sure = (
                f"where {rates.others.value:.2%} of others are taken for trained on,"
                f" {true.value:.2%} ({true.low:.2%} to {true.high:.2%}) of those that were are"
                " found"
            )
    epsilon = None
    if random_split:
        epsilon = epsilon_from_guesses(usable, delta, key.fold("epsilon"))
    else:
        notes.append(
            "Which samples were trained on was not drawn at random, so other differences between"
            " these and the test samples can look like membership, and no epsilon is shown."
        )
    return Finding(
        attack,
        how,
        "AUC",
        *estimate,
        prior=0.5,
        epsilon=epsilon,
        figures=figures,
        sure=sure,
        notes=tuple(notes),
    )


def reconstruction(
    attack: str, how: str, measure: str, estimate: IntervalEstimate, prior: float, **more: Any
) -> Finding:
    """The result of a reconstruction attack."""
    return Finding(attack, how, measure, *estimate, prior=prior, **more)
