"""Parties' works side by side: each runs up to its next training, then all of those are done
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from comity.base.call import CallId, Message, PartyResult
from comity.base.record import tree_map
from comity.engines.engine import Inboxes, Sites
from comity.engines.running_call import RunningCall
from comity.engines.site import Site
from comity.engines.stacked.batched_training import train_together
from comity.engines.versions import PartyState
from comity.metrics.evaluation import Evaluation, evaluate_batched
from comity.training.requests import FitRequest, Fitted
from comity.training.task import Network

BLOCK_BYTES = (
    6_000_000  # of weights trained together: they should stay in the cache from step to step
)
BLOCK_PARTIES = 64


def gains_by_stacking(network: Network) -> bool:
    """Whether parties with such networks are trained together: convolutions gain nothing, dropout
    draws party by party.
    """
    return network.dense and not network.draws


class Batched:
    """Many parties' trainings as one computation, as far as they can be."""

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]:
        """Those whose networks gain nothing one by one, then the others in blocks."""
        blocks = [i for i in messages if gains_by_stacking(sites[i].party.task.network)]
        for i in sorted(messages.keys() - set(blocks)) if blocks else messages:
            yield i, sites[i].run(call, messages[i], inboxes.get(i, {}))
        for block in _blocks(sites, blocks):
            yield from _work_block(
                {i: sites[i].begin(call, messages[i], inboxes.get(i, {})) for i in block}, sites
            )

    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]:
        """Of those who have one and the same model in one pass; at the end each by itself, as on
        all engines.
        """
        if final:
            for i, message in messages.items():
                yield i, sites[i].evaluate(message, final)
            return
        everyone = list(messages)
        for at in range(0, len(everyone), BLOCK_PARTIES):
            models = {i: sites[i].deployed(messages[i]) for i in everyone[at : at + BLOCK_PARTIES]}
            groups: dict[tuple[int, ...], list[int]] = {}
            for i, (task, theta) in models.items():
                groups.setdefault((id(task), *map(id, theta.values())), []).append(i)
            for ids in groups.values():
                data = [sites[i].party.data for i in ids]
                metric = sites[ids[0]].party.metric
                yield from zip(ids, evaluate_batched(*models[ids[0]], data, metric), strict=True)


def _blocks(sites: Sites, ids: Sequence[int]) -> Iterator[list[int]]:
    """Parties of about one size, as many as the cache has room for."""
    ordered = sorted(ids, key=lambda i: -len(sites[i].party.data.train))
    while ordered:
        weight = sites[ordered[0]].party.task.bytes()
        most = max(1, min(BLOCK_PARTIES, BLOCK_BYTES // max(1, weight)))
        blocks = -(-len(ordered) // most)  # as few as possible, of one size
        many = -(-len(ordered) // blocks)
        yield ordered[:many]
        ordered = ordered[many:]


def _work_block(works: dict[int, RunningCall], sites: Sites) -> Iterator[tuple[int, PartyResult]]:
    """Have works that have begun go on from training to training, until each has ended."""
    while works:
        for i in [i for i, running in works.items() if not running.request]:
            yield i, _end(sites[i], works.pop(i))
        trained, reasons = _train([running.request for running in works.values()])
        for running, done, why in zip(works.values(), trained, reasons, strict=True):
            running.warning = running.warning or why
            if done:
                running.answer(done)
            else:
                running.train()


def _train(requests: Sequence[Any]) -> tuple[list[Fitted | None], list[str]]:
    """What came of each request; None, and the reason, for those that must be answered one by one."""
    trained: list[Fitted | None] = [None] * len(requests)
    reasons = [""] * len(requests)
    fits = [n for n, request in enumerate(requests) if isinstance(request, FitRequest)]
    for n, (done, why) in zip(fits, train_together([requests[n] for n in fits]), strict=True):
        trained[n], reasons[n] = done, why
    return trained, reasons


def _end(site: Site, running: RunningCall) -> PartyResult:
    answer = site.end(running)
    if answer.keeps:
        site.versions.replace(_in_own_memory(site.state))
    return answer


def _in_own_memory(state: PartyState) -> PartyState:
    """What a party keeps, in memory of its own: a row would keep the whole block alive."""

    def own(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, Tensor) and leaf._base is not None else leaf

    if not state.mine and not state.moments:
        return state
    kept: PartyState = tree_map(own, state)
    return kept
