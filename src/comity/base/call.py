"""What goes between the server and a party: a call for a work, the letter that comes with it, and
the answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Edge = tuple[int, int]
"""(sender, recipient), by their numbers."""


STREAMS = {"warm_up": "welcome"}
"""Party functions that were renamed, and the names that their random streams are still folded from.
"""


def stream_name(function: str) -> str:
    """The name that a party function's random stream is folded from; it never changes."""
    return STREAMS.get(function, function)


class CallId(NamedTuple):
    """What is asked of parties: the work's name and owner, and what its keys are folded from.

    It also names the state that a party keeps after it: a work is a function of that state, the
    letter and the call, so that whoever is asked twice answers the same.
    """

    function: str
    depth: int
    """How many wrappers are around the work's owner."""
    round: int
    occurrence: int
    """How often this work was asked for in this round before."""


class Message(NamedTuple):
    """What a party is sent, and which of its states it is for."""

    content: Any
    after: CallId | None
    """The last call that changed what the party keeps and whose reply was accepted; None before the
    first.

    The party forgets what came of later ones: the server has never heard of it, or has given it up.
    """
    first: bool = False
    """Whether no round has counted yet: a party that starts from weights of its own puts them in
    place of those in `content`.
    """


class EvaluationRequest(NamedTuple):
    """A look at how good parties' models are."""

    round: int
    final: bool
    """Whether it is the last one: then they are judged by all metrics, and give their answers."""
    stage: str = ""
    """What is looked at, if it is not what parties have after a round: `unfinished`, `offered`,
    `joined`.
    """


class PartyResult(NamedTuple):
    """What comes back of a call from one party."""

    reply: Any
    steps: int
    """Gradient steps that it took."""
    keeps: bool = False
    """Whether it changed what the party keeps."""
    ruined: str = ""
    """The first value in that which is not finite, if there is one."""
    warning: str = ""
    """What a user should know of how it was computed."""
    unusable: tuple[int, ...] = ()
    """The senders of parcels that were left closed, as not all values in them are finite."""
    unfit: str | None = None
    """The first value in the reply that is not finite (or nothing), if a worker has looked: then
    the reply here is hollow.
    """
