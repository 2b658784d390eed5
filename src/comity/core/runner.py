"""What a server needs of an engine: it runs party functions, and may add up replies where they are
only averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from comity.base.call import CallId, Edge, Message, PartyResult
from comity.base.record import Sealed
from comity.core.aggregate import AveragedReplies, Mean, PartialSum, ReplyTree, SumNode
from comity.errors import ComityError

R = TypeVar("R")
RunsParties = Callable[
    [CallId, Mapping[int, Message], Mapping[Edge, Sealed]], Iterator[tuple[int, PartyResult]]
]
"""Runs a party function: from a call, messages and sealed messages to results, in any order."""


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


Observer = Callable[[int, Any], None]
"""Sees each party's reply before it is added to others."""


@runtime_checkable
class AddsReplies(Protocol):
    """An engine that adds up the replies of a call itself, so that single ones need not reach the
    server.
    """

    def add_replies(
        self,
        call: CallId,
        messages: Mapping[int, Message],
        weights: Mapping[int, float],
        observe: Observer | None = None,
    ) -> Iterator[tuple[int, PartyResult] | SumNode] | None:
        """Run a party function. Yields the results, whose replies have no content, and the weighted
        sums of the replies, as nodes of the tree over the positions of the messages.

        In the sums are the replies of parties that have a weight, if their values and the party's
        state are finite. Returns None where sums would be no fewer than replies: then nothing was
        run.
        """
        ...


@runtime_checkable
class SumsReplies(Protocol):
    """An engine whose sites add up what they reply, by secure aggregation.

    The results have replies whose tensors are on the meta device. The sum is None if no reply
    counts.
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


class MeanOfReplies(Generic[R]):
    """One exchange whose replies are averaged, in the tree over its messages."""

    def __init__(
        self,
        runner: PartyRunner,
        weights: Mapping[int, float],
        will_lose_reply: Callable[[CallId, int], bool],
    ) -> None:
        self._runner = runner
        self._weights = weights
        self._will_lose_reply = will_lose_reply
        self._tree = ReplyTree[R](0)
        self._positions: dict[int, int] = {}
        self._next = 0
        """The first position that was neither added nor skipped here."""
        self._engine_adds = False
        self._weights_of_replies: dict[int, float] = {}
        """The weights of the replies that count, in party order."""

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        """Run a party function. Engines get no weight for a reply that is planned to be lost."""
        self._tree = ReplyTree(len(messages))
        self._positions = {i: position for position, i in enumerate(messages)}
        results = None
        if isinstance(self._runner, AddsReplies):
            weights = {i: self._weights[i] for i in messages if not self._will_lose_reply(call, i)}
            results = self._runner.add_replies(call, messages, weights)
        if results is None:
            yield from self._runner.run(call, messages, sealed_messages)
            return
        self._engine_adds = True
        for item in results:
            if isinstance(item, SumNode):
                self._tree.add_node(item)
            else:
                yield item

    def add(self, i: int, reply: R) -> None:
        """Add a reply that counts. Replies come in party order."""
        self._weights_of_replies[i] = self._weights[i]
        if self._engine_adds:
            return
        position = self._positions[i]
        for earlier in range(self._next, position):
            self._tree.skip(earlier)
        self._tree.add(position, reply, self._weights[i])
        self._next = position + 1

    def value(self) -> Mean[R]:
        """The mean of the replies. At least one must have been added."""
        return self._tree.mean(self._weights_of_replies)


class PartialSums:
    """One exchange in which sites add up replies, by secure aggregation."""

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
        """Run a party function. Sites get no weight for a reply that is planned to be lost."""
        weights = {i: self._weights[i] for i in messages if not self._will_lose_reply(call, i)}
        for results, part in self._summer.sum_replies(call, messages, weights):
            self._parts += [part] if part else []
            yield from results.items()

    def add_to(self, mean: AveragedReplies[Any], parties: Sequence[int]) -> None:
        """Average the sums in the order of their first parties. `parties` are those whose replies
        count.
        """
        for part in sorted(self._parts, key=lambda part: part.heard[0]):
            mean.add_sum(part)
        if sorted(mean.parties) != parties:
            raise ComityError(
                "The sites added up other replies than those that count: this is a fault of the"
                " engine."
            )
