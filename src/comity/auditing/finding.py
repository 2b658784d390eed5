"""What an attack found: its success beside what guessing gives, how sure that is, and whether it
can do anything at all here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from comity.auditing.chance import RATES, Estimate, Scored, area, caught, shown_epsilon
from comity.base.key import Key


@dataclass(frozen=True)
class Pictures:
    """Samples above and what an attack made of them below, the best first and then those in the
    middle.
    """

    party: str
    originals: Tensor
    guesses: Tensor


SHOWN = 6


def best_and_median(off: Tensor) -> Tensor:
    """Which reconstructions are shown, by how far they are off: the best, and those around the
    median.
    """
    order = off.argsort()
    middle = len(order) // 2
    return torch.cat(
        [order[:SHOWN], order[max(SHOWN, middle - SHOWN // 2) : max(SHOWN, middle + SHOWN // 2)]]
    )


@dataclass(frozen=True)
class Finding:
    """An attack that was tried."""

    attack: str
    how: str
    """Who attacks, with what, in a sentence."""
    measure: str
    """What success is measured by: AUC, or a share of the samples."""
    success: float
    low: float
    high: float
    prior: float
    """What guessing gives."""
    epsilon: float | None = None
    """The least epsilon of a record that explains it, at 95% with all other attacks together; None
    if that was not measured.
    """
    figures: dict[str, Any] = field(default_factory=dict)
    """What else there is to know of it."""
    sure: str = ""
    """Where it is right beyond chance of few samples, if over all it is not."""
    notes: tuple[str, ...] = ()
    pictures: Pictures | None = None

    @property
    def power(self) -> bool:
        """Whether it does better than guessing, beyond chance, over all or of few samples."""
        return self.low > self.prior or bool(self.sure)

    @property
    def says(self) -> str:
        """The outcome in a sentence."""
        told = (
            f"{self.text(self.success)} ({self.text(self.low)} to {self.text(self.high)}), guessing"
            f" {self.text(self.prior)}"
        )
        if self.low > self.prior:
            return f"{self.attack}: {self.measure} {told}."
        if self.sure:
            return (
                f"{self.attack}: over all no better than guessing ({self.measure} {told}), but"
                f" {self.sure}."
            )
        return (
            f"{self.attack} has no power here: {self.measure} {told}. That it fails does not show"
            " that nothing can be learned from what was sent."
        )

    def text(self, value: float) -> str:
        """A figure as people read it."""
        return f"{value:.3f}" if self.measure == "AUC" else f"{value:.1%}"

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        told = {name: value for name, value in asdict(self).items() if name != "pictures"}
        return told | {"power": self.power, "says": self.says, "notes": list(self.notes)}


@dataclass(frozen=True)
class Untried:
    """An attack that could not be tried on what was sent, and why."""

    attack: str
    why: str

    @property
    def says(self) -> str:
        """It in a sentence."""
        return f"{self.attack} was not tried: {self.why}."


Outcome = Finding | Untried


def membership(
    attack: str, how: str, parties: Sequence[Scored], drawn: bool, delta: float, key: Key
) -> Outcome:
    """What scores of candidates say: the AUC, true positives where false ones are few, and the
    epsilon that they show.

    `drawn` says whether who is a member was drawn at random: without that other differences look
    like membership.
    """
    some = [one for one in parties if one.member.any() and not one.member.all()]
    if not some:
        return Untried(
            attack, "no party has samples of which some were trained on and others were not"
        )
    if any(not one.scores.isfinite().all() for one in some):
        return Untried(attack, "a model has diverged, so that its scores are no numbers")
    found = area(some, key.fold("area"))
    members, others = (
        sum(int((one.member == part).sum()) for one in some) for part in (True, False)
    )
    figures: dict[str, Any] = {"members": members, "others": others}
    notes = []
    sure = ""
    for rate in RATES:
        few = caught(some, rate)
        figures[f"tpr_at_{rate:g}"] = None if few is None else list(few.members)
        if few is not None and few.beyond:
            found_of = f"{few.members.value:.2%} ({few.members.low:.2%} to {few.members.high:.2%})"
            sure = (
                f"where {few.others.value:.2%} of others are taken for trained on, {found_of} of"
                " those that were are found"
            )
        if few is None:
            notes.append(f"{rate:.1%} of false positives cannot be measured: that takes {1 / rate:.0f} samples that were not "
                         f"trained on, and there are {others:,}.")  # fmt: skip
    epsilon = None
    if drawn:
        epsilon = shown_epsilon(some, delta, key.fold("epsilon"))
    else:
        notes.append(
            "Which samples were trained on was not drawn at random, so other differences between"
            " these and the test samples can look like membership, and no epsilon is shown."
        )
    return Finding(
        attack,
        how,
        "AUC",
        *found,
        prior=0.5,
        epsilon=epsilon,
        figures=figures,
        sure=sure,
        notes=tuple(notes),
    )


def pieced(
    attack: str, how: str, measure: str, found: Estimate, prior: float, **more: Any
) -> Finding:
    """What a reconstruction found."""
    return Finding(attack, how, measure, *found, prior=prior, **more)
