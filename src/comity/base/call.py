"""The values that the server and a party exchange: call id, message and result."""

from __future__ import annotations

from typing import Any, NamedTuple

Edge = tuple[int, int]
"""(sender, recipient), by party number."""


STREAMS = {"warm_up": "welcome"}
"""Renamed party functions, and the earlier names that their random streams are still folded
from.
"""


def stream_name(function: str) -> str:
    """The name that a party function's random stream is folded from. It never changes."""
    return STREAMS.get(function, function)


class CallId(NamedTuple):
    """Identifies one call of a party function. Random keys are folded from it.

    It also names the party state that the call produces. A party function depends only on that
    state, the message and the call, so a party that is called twice replies the same.
    """

    function: str
    depth: int
    """The number of wrappers around the method that defines the party function."""
    round: int
    occurrence: int
    """How many times this party function was called in this round before."""


class Message(NamedTuple):
    """A message to a party, with the party state that it applies to."""

    content: Any
    after: CallId | None
    """The last call that changed the party's state and whose reply the server accepted; None before
    the first.

    The party discards states from later calls: the server never received those replies, or
    discarded them.
    """
    first: bool = False
    """Whether no round has counted yet. With `init=own` a party then replaces the weights in
    `content` by its own initial weights.
    """


class EvaluationRequest(NamedTuple):
    """A request that parties evaluate their models."""

    round: int
    final: bool
    """Whether this is the last evaluation, which computes all metrics and returns the parties'
    predictions.
    """
    stage: str = ""
    """What is evaluated, if not the models after a round: `unfinished`, `offered` or `joined`."""


class PartyResult(NamedTuple):
    """What one party returns from a call."""

    reply: Any
    steps: int
    """The gradient steps that the party took."""
    keeps: bool = False
    """Whether the call changed the party's state."""
    ruined: str = ""
    """The name of the first value in the new state that is not finite, or empty."""
    warning: str = ""
    """A warning for the user about how the result was computed."""
    unusable: tuple[int, ...] = ()
    """The senders of sealed messages that were ignored because a value in them is not finite."""
    unfit: str | None = None
    """The name of the first value in the reply that is not finite, or empty; None if no engine or
    worker has checked. A worker that adds up replies replaces their tensors by meta tensors.
    """
