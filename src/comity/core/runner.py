"""What a server needs of an engine: it runs party functions, and its workers may add up replies
where only their mean is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from comity.base.call import CallId, Edge, Message, PartyResult
from comity.base.record import Sealed
from comity.core.aggregate import AveragedReplies, PartialSum
from comity.errors import ComityError

R = TypeVar("R")
RunsParties = Callable[
    [CallId, Mapping[int, Message], Mapping[Edge, Sealed]], Iterator[tuple[int, PartyResult]]
]
"""Runs a party function: from a call, messages and sealed messages to results, in any order."""
SUMMED = (
    "Workers added up what their parties replied (partial sums): the ledger counts what each party"
    " gave, of which one sum a worker went on to the server."
)


class Overhead(NamedTuple):
    """Bytes that crossed for a sum of replies, beside messages and replies."""

    party: int
    from_party: bool
    """Whether the party sent them. If not, it received them."""
    bytes: int


class PartyRunner(Protocol):
    """An engine. It runs party functions; results come in any order, and some may be missing."""

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]: ...


@runtime_checkable
class SumsReplies(Protocol):
    """An engine whose workers add up what their parties reply, or whose sites do so by secure
    aggregation.

    Each worker returns the results of its parties, with the replies' tensors on the meta device,
    and the weighted sum of those replies that are finite and have one of the `weights`; None if
    there are none.
    """

    def sum_replies(
        self, call: CallId, messages: Mapping[int, Message], weights: Mapping[int, float]
    ) -> Iterator[tuple[dict[int, PartyResult], PartialSum | None]]: ...

    @property
    def sum_warning(self) -> str:
        """A warning for the user about how replies are added up."""
        ...

    def take_overhead(self) -> list[Overhead]:
        """Return and remove the bytes since the last call that crossed beside messages and
        replies.
        """
        ...


def in_order(ids: Iterable[int], results: Iterable[tuple[int, R]]) -> Iterator[tuple[int, R]]:
    """Results in the order of `ids`. Early ones wait for those before them, and no reference to a
    result is kept once it was yielded.
    """
    due = list(reversed(list(ids)))
    early: dict[int, R] = {}
    for i, result in results:
        early[i] = result
        del result
        while due and due[-1] in early:
            yield due[-1], early.pop(due.pop())
    for i in sorted(early):
        yield i, early.pop(i)


class PartialSums:
    """One exchange in which workers add up replies."""

    def __init__(
        self,
        summer: SumsReplies,
        weights: Mapping[int, float],
        will_lose_reply: Callable[[CallId, int], bool],
    ) -> None:
        self._summer = summer
        self._weights = weights
        self._will_lose_reply = will_lose_reply
        self._parts: list[PartialSum] = []

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        """Run a party function. Workers get no weight for a reply that is planned to be lost."""
        weights = {i: self._weights[i] for i in messages if not self._will_lose_reply(call, i)}
        for results, part in self._summer.sum_replies(call, messages, weights):
            self._parts += [part] if part else []
            yield from results.items()

    def add_to(self, mean: AveragedReplies[Any], parties: Sequence[int]) -> None:
        """Average the sums in the order of their first parties, independent of which worker was
        ready first. `parties` are those whose replies count.
        """
        for part in sorted(self._parts, key=lambda part: part.heard[0]):
            mean.add_sum(part)
        if sorted(mean.parties) != parties:
            raise ComityError(
                "The workers added up other replies than those that count: this is a fault of the"
                " engine."
            )
