"""The noise in recorded messages: is it as large as the account declares?

A party with DP-SGD adds noise in every step, and the optimizer carries it into the weights that the
party sends. For SGD the standard deviation of that follows from the declared noise alone: the noise
of one step has a known effect on the weights after the last step, also with momentum, weight decay
and a proximal term, and the effects of all steps add up as variances. So the change of the weights
from a message to its reply, over this standard deviation, is about 1 in root mean square.

Training changes the weights, too, which makes the ratio larger. Gradients that pull weights back
make it slightly smaller: in runs without a fault it was 0.96 at least. A ratio below `LEAST` is a
fault. A ratio of 1 does not show that the noise is there if training alone changes the weights as
much. Therefore the first training of each party is repeated without noise. If a tenth of the noise
would not be noticed beside its changes, the check has no power, and only this is reported.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from scipy.stats import chi2
from torch import Tensor

from comity.auditing.canaries import BROKEN, LEVEL
from comity.auditing.finding import Check, Untried
from comity.auditing.local_training import LocalTraining, local_trainings
from comity.auditing.observed import Update, updates
from comity.auditing.view import View
from comity.privacy.account import PrivacyCharge
from comity.training.descent import train_outside
from comity.training.requests import FitRequest
from comity.training.settings import Training

CHECK = "noise in messages"
LEAST = 0.9
"""Noise below this share of the declared one is a fault."""


class Changes(NamedTuple):
    """The changes of weights in one reply, in units of the noise that is declared for them."""

    squares: float
    numbers: int
    without_noise: float
    """The sum of squares of what the party's first training changes without noise."""


def check_noise(view: View) -> Check | Untried | None:
    """Compare the changes of weights in messages with the declared noise; None if the run claims
    nothing for a record.
    """
    if view.claimed is None or view.unit != "record":
        return None
    charges: dict[tuple[int, str, str], list[PrivacyCharge]] = defaultdict(list)
    for row in view.folder.read_privacy():
        if row.unit == "record" and row.against == "server":
            charges[row.round, row.call, row.party].append(row)
    comparisons: dict[int, Comparison | str] = {}
    replies: list[Changes] = []
    why = "no party sends back the weights that it gets"
    for update in updates(view):
        i = update.party
        if i not in comparisons:
            comparisons[i] = _comparison(view, update)
        comparison = comparisons[i]
        if isinstance(comparison, str):
            why = comparison
            continue
        rows = charges[update.call.round, update.call.function, view.party(i).name]
        result = comparison.measure(update, rows)
        if isinstance(result, str):
            why = result
        else:
            replies.append(result)
    return _judge(replies) if replies else Untried(CHECK, why)


def _judge(replies: Sequence[Changes]) -> Check:
    """The result of all replies."""
    squares = math.fsum(reply.squares for reply in replies)
    count = sum(reply.numbers for reply in replies)
    ratio = math.sqrt(squares / count)
    low, high = (
        math.sqrt(squares / float(chi2.ppf(part, count))) for part in (1 - LEVEL / 2, LEVEL / 2)
    )
    alone = math.sqrt(math.fsum(reply.without_noise for reply in replies) / count)
    broken = math.hypot(alone, BROKEN)
    figures = {
        "ratio": ratio,
        "low": low,
        "high": high,
        "least": LEAST,
        "without_noise": alone,
        "with_a_tenth": broken,
        "numbers": count,
        "replies": len(replies),
    }
    ratio_text = f"{ratio:.3f} ({low:.3f} to {high:.3f})"
    expected = "1 or more times the declared noise"
    how = (
        f"That is the root mean square of {count:,} changes of weights in {len(replies):,} replies,"
        " in units of the standard deviation that the declared noise gives them."
    )
    if high < LEAST:
        text = f"{how} There is less noise than the account declares."
        return Check(CHECK, ratio_text, expected, "wrong", text, figures)
    if broken >= LEAST:
        text = (
            f"{how} Training without noise gives {alone:.3f}: whether the noise is there cannot be"
            " told beside it."
        )
        return Check(CHECK, ratio_text, expected, "no power", text, figures)
    text = f"{how} With a tenth of the noise it would be {broken:.3f}."
    return Check(CHECK, ratio_text, expected, "right", text, figures)


@dataclass(frozen=True)
class Comparison:
    """A party's training whose result it sends, and in which the noise can be derived."""

    training: LocalTraining
    names: frozenset[str]
    """The trained weights in the reply."""

    @property
    def request(self) -> FitRequest[Any]:
        """The request of the training."""
        return self.training.request

    @cached_property
    def size(self) -> int:
        """The number of the party's records."""
        assert self.request.private
        return len(self.request.private.samples)

    @cached_property
    def steps(self) -> int:
        """The number of steps of the training."""
        return self.request.training.steps_for(self.size)

    def measure(self, update: Update, rows: Sequence[PrivacyCharge]) -> Changes | str:
        """The changes in a reply, compared with the rows of the account for its call; the reason if
        they cannot be compared.
        """
        if self.request.add is not None and update.call != self.training.call:
            return "control variates of later rounds have the noise of earlier ones"
        releases = {(row.mechanism, row.noise, row.rate) for row in rows}
        if len(releases) != 1 or all(row.steps != self.steps for row in rows):
            return "the account of a call has other releases than its training"
        ((_, noise, rate),) = releases
        spread = noise / (rate * self.size) * self.effect_of_all_steps
        # With a proximal term weights are pulled to those in the message, so that weight decay is a
        # part of the training. Otherwise what it takes away is known.
        how = self.request.training
        share = 1.0 if self.request.pull else share_after_decay(how, self.steps)
        squares = math.fsum(
            _squares(update.after[name].double() - share * update.before[name].double())
            for name in self.names
        )
        count = sum(update.after[name].numel() for name in self.names)
        return Changes(squares / spread**2, count, self.squares_without_noise / spread**2)

    @cached_property
    def effect_of_all_steps(self) -> float:
        """The standard deviation of a weight after the last step, for noise of standard deviation 1
        in each gradient.
        """
        pull = self.request.pull.weight if self.request.pull else 0.0
        return math.hypot(*effects_of_step(self.request.training, self.steps, pull))

    @cached_property
    def squares_without_noise(self) -> float:
        """The sum of squares of what the same training changes without noise."""
        request = self.request
        assert request.private
        quiet = replace(request, private=replace(request.private, noise=0.0, trainings=[]))
        theta = train_outside(quiet).theta
        return math.fsum(
            _squares(theta[name].double() - request.begin[name].double()) for name in self.names
        )


def _squares(values: Tensor) -> float:
    return float(values.square().sum())


def _comparison(view: View, update: Update) -> Comparison | str:
    """What to compare a party's replies with; the reason if the noise in them cannot be derived."""
    sending = [
        training
        for training in local_trainings(view, update.party)
        if training.sent_as.get(update.field)
    ]
    if len(sending) != 1:
        return "the weights that a party sends are not the result of one training"
    (training,) = sending
    request, how = training.request, training.request.training
    names = training.sent_as[update.field]
    if how.optimizer != "sgd":
        return (
            f"with {how.optimizer} the noise in the weights depends on the gradients, so that it"
            " cannot be derived from the declared noise"
        )
    if how.keep and how.momentum:
        return "momentum is kept from round to round, and has the noise of earlier rounds"
    if update.call == training.call and not all(
        request.begin[name].equal(update.before[name]) for name in names
    ):
        return "a party does not train from the weights that it gets"
    if request.pull and not all(
        request.pull.to[name].equal(request.begin[name]) for name in names & request.pull.to.keys()
    ):
        return "the proximal term of the training pulls to other weights than those that it gets"
    return Comparison(training, names)


def effects_of_step(how: Training, steps: int, pull: float = 0.0) -> list[float]:
    """By how much a unit of noise in one gradient changes a weight after 1, 2, ... `steps` further
    updates of SGD, the one with the noise included.

    Momentum repeats the noise, weight decay and a proximal term (`pull`) shrink its effect.
    """
    weight = velocity = 0.0
    effects = []
    for step in range(steps):
        gradient = float(step == 0) + (how.decay + pull) * weight
        velocity = how.momentum * velocity + gradient
        weight -= how.lr * velocity
        effects.append(weight)
    return effects


def share_after_decay(how: Training, steps: int) -> float:
    """The share of a weight that is left after `steps` updates with weight decay alone."""
    weight, velocity = 1.0, 0.0
    for _ in range(steps):
        velocity = how.momentum * velocity + how.decay * weight
        weight -= how.lr * velocity
    return weight
