"""A scheduler that refuses party functions that draw from a global generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from comity.base.call import CallId, Message, PartyResult
from comity.engines.engine import Inboxes, Scheduler, Sites
from comity.engines.purity import LineFinder, UnkeyedDraw, drawn_from, generator_states
from comity.metrics.evaluation import Evaluation

MAX_REPEATS = 8
"""The number of parties whose function is run again to find the line of a draw."""
KEY_AT_PARTY = 'key.fold("purpose")'


class Watched:
    """Runs parties by another scheduler, and refuses party functions that draw from a global
    generator.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]:
        """The results of the other scheduler. The generators are compared once per call, not once
        per party.
        """
        before = generator_states()
        yield from self._scheduler.run(sites, call, messages, inboxes)
        if whose := drawn_from(before):
            place = _line_of_draw(sites, call, messages, inboxes)
            raise UnkeyedDraw(call.function, whose, place, KEY_AT_PARTY)

    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]:
        """The results of the other scheduler."""
        return self._scheduler.evaluate(sites, messages, final)


def _line_of_draw(
    sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
) -> str:
    """The line that draws, found by running some of the parties again."""
    for i in list(messages)[:MAX_REPEATS]:
        # Layers that draw have a stream of their own, which is set as torch's global one.
        changed = _changes(first=int(sites[i].party.task.network.draws))
        finder = LineFinder(changed)
        with suppress(Exception), finder:
            sites[i].run(call, messages[i], inboxes.get(i, {}))
        if finder.place:
            return finder.place
    return ""


def _changes(first: int) -> Callable[[], bool]:
    """A function that says whether a global generator, from number `first` on, has drawn since."""
    before = generator_states()[first:]
    return lambda: generator_states()[first:] != before
