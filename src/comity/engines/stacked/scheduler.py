"""Runs party functions in batches: each runs up to its next training, and these trainings are
computed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from comity.base.call import CallId, Message, PartyResult
from comity.base.finite import FiniteRows
from comity.base.record import tree_map
from comity.engines.engine import Inboxes, Sites
from comity.engines.evaluation import evaluate_one_by_one
from comity.engines.running_call import RunningCall
from comity.engines.site import Site
from comity.engines.stacked.batched_training import train_batched
from comity.engines.versions import PartyState
from comity.metrics.evaluation import Evaluation, evaluate_batched
from comity.training.requests import FitRequest, Fitted
from comity.training.task import Network

BLOCK_BYTES = 6_000_000  # of weights per batch, so that they stay in the cache between steps
BLOCK_PARTIES = 64


def gains_by_stacking(network: Network) -> bool:
    """Whether batched training pays off for a network. Convolutions gain nothing, and dropout draws
    per party.
    """
    return network.dense and not network.draws


class Batched:
    """Computes many parties' trainings as one where possible."""

    def run(
        self, sites: Sites, call: CallId, messages: Mapping[int, Message], inboxes: Inboxes
    ) -> Iterator[tuple[int, PartyResult]]:
        """Run parties whose networks gain nothing one by one, then the others in blocks."""
        blocks = [i for i in messages if gains_by_stacking(sites[i].party.task.network)]
        for i in sorted(messages.keys() - set(blocks)) if blocks else messages:
            yield i, sites[i].run(call, messages[i], inboxes.get(i, {}))
        for block in _blocks(sites, blocks):
            yield from _run_block(
                {i: sites[i].begin(call, messages[i], inboxes.get(i, {})) for i in block}, sites
            )

    def evaluate(
        self, sites: Sites, messages: Mapping[int, Message], final: bool
    ) -> Iterator[tuple[int, Evaluation]]:
        """Evaluate parties with the same model in one pass. The final evaluation is one by one, as
        on all engines.
        """
        if final:
            yield from evaluate_one_by_one(sites, messages, final)
            return
        ids = list(messages)
        for begin in range(0, len(ids), BLOCK_PARTIES):
            models = {i: sites[i].deployed(messages[i]) for i in ids[begin : begin + BLOCK_PARTIES]}
            groups: dict[tuple[int, ...], list[int]] = {}
            for i, (task, theta) in models.items():
                groups.setdefault((id(task), *map(id, theta.values())), []).append(i)
            for group in groups.values():
                data = [sites[i].party.data for i in group]
                metric = sites[group[0]].party.metric
                yield from zip(
                    group, evaluate_batched(*models[group[0]], data, metric), strict=True
                )


def _blocks(sites: Sites, ids: Sequence[int]) -> Iterator[list[int]]:
    """Parties of similar size, as many per block as fit into the cache."""
    ordered = sorted(ids, key=lambda i: -len(sites[i].party.data.train))
    while ordered:
        weight = sites[ordered[0]].party.task.bytes()
        largest = max(1, min(BLOCK_PARTIES, BLOCK_BYTES // max(1, weight)))
        blocks = -(-len(ordered) // largest)  # as few as possible, of one size
        size = -(-len(ordered) // blocks)
        yield ordered[:size]
        ordered = ordered[size:]


def _run_block(calls: dict[int, RunningCall], sites: Sites) -> Iterator[tuple[int, PartyResult]]:
    """Continue started party functions from training to training until all have returned."""
    rows = FiniteRows()
    while calls:
        for i in [i for i, running in calls.items() if not running.request]:
            yield i, _end(sites[i], calls.pop(i), rows)
        results, reasons = _train([running.request for running in calls.values()])
        for running, result, why in zip(calls.values(), results, reasons, strict=True):
            running.warning = running.warning or why
            if result:
                running.resume_with(result)
            else:
                running.train()


def _train(requests: Sequence[Any]) -> tuple[list[Fitted | None], list[str]]:
    """The result of each request, and a reason for each that must be computed alone (its result is
    None).
    """
    results: list[Fitted | None] = [None] * len(requests)
    reasons = [""] * len(requests)
    fits = [n for n, request in enumerate(requests) if isinstance(request, FitRequest)]
    for n, (result, why) in zip(fits, train_batched([requests[n] for n in fits]), strict=True):
        results[n], reasons[n] = result, why
    return results, reasons


def _end(site: Site, running: RunningCall, rows: FiniteRows) -> PartyResult:
    result = site.end(running, rows)
    if result.keeps:
        site.versions.replace(_in_own_memory(site.state))
    return result


def _in_own_memory(state: PartyState) -> PartyState:
    """A state whose tensors are copies: a row of a stacked tensor would keep the whole block
    alive.
    """

    def copy_view(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, Tensor) and leaf._base is not None else leaf

    if not state.mine and not state.moments:
        return state
    copy: PartyState = tree_map(copy_view, state)
    return copy
