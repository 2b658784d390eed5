"""Adds up parties' replies where they arise, so that only sums reach the server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from comity.base.call import PartyResult
from comity.base.finite import not_finite
from comity.base.record import meta_like
from comity.core.aggregate import SumsByPosition
from comity.core.runner import Observer

PARTIES_PER_RANGE = 16
"""From how many parties a worker on each gets parties that follow each other."""


def add_up(
    results: Iterable[tuple[int, PartyResult]],
    positions: Mapping[int, int],
    weights: Mapping[int, float],
    sums: SumsByPosition,
    observe: Observer | None = None,
) -> Iterator[tuple[int, PartyResult]]:
    """Add the replies of results to `sums` and yield the results, with replies without content.

    A reply counts if it has a weight, and if its values and the party's state are finite. Others
    keep their place in the tree.
    """
    for i, result in results:
        if observe:
            observe(i, result.reply)
        unfit = not_finite(result.reply) if result.unfit is None else result.unfit
        if i in weights and not unfit and not result.ruined:
            like = sums.add(positions[i], result.reply, weights[i])
        else:
            sums.skip(positions[i])
            like = meta_like(result.reply)
        without_content = PartyResult(like, *result[1:-1], unfit)
        del result  # its memory is free for the next party
        yield i, without_content


def is_worth_adding(assigned: Sequence[Collection[int]], count: int) -> bool:
    """Whether workers with these positions have fewer sums than positions: whether most of their
    positions follow each other.
    """
    worker_at = {position: w for w, positions in enumerate(assigned) for position in positions}
    order = [worker_at[position] for position in range(count)]
    stretches = 1 + sum(a != b for a, b in pairwise(order))
    # A stretch of positions consists of at most two subtrees of each size.
    return stretches == len(assigned) or 2 * stretches * count.bit_length() <= count


def are_many(count: int, workers: int) -> bool:
    """Whether so many parties are divided into ranges: then each worker has about equal loads."""
    return count >= workers * PARTIES_PER_RANGE


def assign_ranges(
    loads: Mapping[int, int], workers: int, worker_of: Mapping[int, int]
) -> list[list[int]]:
    """Parties by worker, as `assign_parties`, but parties without a worker are divided into ranges
    that follow each other. Ranges begin at multiples of a power of two where that leaves the loads
    about equal, so that a worker has few subtrees.
    """
    assigned: list[list[int]] = [[] for _ in range(workers)]
    totals = [0] * workers
    for i in loads.keys() & worker_of.keys():
        assigned[worker_of[i]].append(i)
        totals[worker_of[i]] += loads[i]
    share = sum(loads.values()) / workers
    steps_per_range = len(loads) // workers // PARTIES_PER_RANGE
    step = 1 << max(0, steps_per_range.bit_length() - 1)
    half_a_step = step * share * workers / len(loads) / 2
    w = 0
    for position, i in enumerate(sorted(loads)):
        if i in worker_of:
            continue
        if position % step == 0:
            while w < workers - 1 and totals[w] + half_a_step > share:
                w += 1
        assigned[w].append(i)
        totals[w] += loads[i]
    return [sorted(ids) for ids in assigned]
