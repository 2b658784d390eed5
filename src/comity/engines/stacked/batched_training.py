"""Many parties' local training as one: their parameters stacked, each step one batched computation
for all of them.

A step of a small model is mostly overhead and waiting for memory; of twenty small models at once it
is arithmetic. The numbers are those of training one by one, up to rounding. Parties take a step
together when their batches are of one size, else in groups or by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from inspect import ismethod
from itertools import accumulate, cycle, islice
from textwrap import shorten
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comity.base.key import BatchKey
from comity.base.record import Params, ReadOnlyDict, marks, read_only
from comity.core.algorithm import Algorithm
from comity.engines.stacked.stacked_tree import StackedTree, Unlike
from comity.training.descent import Anchor, Descent, check_unwritten
from comity.training.kernels import over_rows
from comity.training.requests import FitRequest, Fitted
from comity.training.settings import Moments, Training, orders
from comity.training.task import Batch, LearningTask

VALUE = "the loss"
GATHERED = 16_000_000  # bytes of inputs that are brought together at once
Trained = tuple[Fitted | None, str]
"""What came of a training; or None, and why it must be done by itself (no reason where that is
nothing to speak of).
"""


def train_together(requests: Sequence[FitRequest[Any]]) -> list[Trained]:
    """What training each by itself would give, up to rounding, as far as they can be one
    computation.
    """
    results: dict[int, Trained] = {}
    for group in _groups(requests):
        results |= zip(group, _train_group([requests[n] for n in group]), strict=True)
    return [results[n] for n in range(len(requests))]


def _groups(requests: Sequence[FitRequest[Any]]) -> list[list[int]]:
    """Requests that train the same tensors in the same way by the same function, by their number of
    samples.
    """
    found: dict[Any, list[int]] = {}
    for n, r in enumerate(requests):
        shapes = tuple((k, v.shape, v.dtype) for k, v in r.begin.items())
        count = r.before.count if r.before else -1
        pull = None if r.pull is None else (tuple(r.pull.to), r.pull.weight)
        rows = tuple((k, v.shape[1:], v.dtype) for k, v in r.samples.rows.items())
        way = (
            r.batched,
            r.objective,
            r.draw,
            shapes,
            r.training,
            r.samples.shape,
            rows,
            r.only,
            r.add is None,
            pull,
            count,
        )
        found.setdefault(way, []).append(n)
    return [sorted(group, key=lambda n: -len(requests[n].samples)) for group in found.values()]


def _train_group(requests: Sequence[FitRequest[Any]]) -> list[Trained]:
    loss = requests[0].objective
    if not _is_common(loss):
        name = getattr(loss, "__qualname__", type(loss).__name__)
        why = (
            f"{name} is made anew at each party, so its trainings run one by one: let the loss be a"
            " method of the algorithm."
        )
        return [(None, why)] * len(requests)
    if len(requests) < 2 or not requests[0].batched:
        return [(None, "")] * len(requests)
    try:
        return [(done, "") for done in BatchedTraining(requests).train()]
    except Unlike as why:
        return [(None, f"Trainings of {loss.__qualname__} run one by one: {why}.")] * len(requests)
    except Exception as why:  # torch refuses what depends on values or draws; an error of the loss itself is raised again
        words = shorten(str(why), 120, placeholder="...")
        said = (
            f"Trainings of {loss.__qualname__} run one by one: stacked they fail"
            f" ({type(why).__name__}: {words})."
        )
        return [(None, said)] * len(requests)


def _is_common(loss: Any) -> bool:
    """Whether a loss is one function for all parties: a method of the algorithm, or a function of a
    module.

    Anything else (a closure, a lambda, a partial, another object's method) is made anew at each
    party and may hold anything.
    """
    if ismethod(loss):
        return isinstance(loss.__self__, Algorithm) and not set(
            loss.__func__.__code__.co_freevars
        ) - {"__class__"}
    return isinstance(loss, FunctionType) and "<locals>" not in loss.__qualname__


class Segment(NamedTuple):
    """Steps first..end-1, which these parties take together with batches of one size."""

    rows: tuple[int, ...]
    first: int
    end: int
    size: int


def _order(request: FitRequest[Any]) -> Tensor:
    """The samples of all of a party's batches in a row."""
    each = list(orders(len(request.samples), request.key, request.training))
    return (
        each[0]
        if len(each) == 1
        else torch.cat(each)
        if each
        else torch.zeros(0, dtype=torch.int64)
    )


@lru_cache
def _sizes(samples: int, training: Training) -> tuple[list[int], list[int]]:
    """The sizes of all batches that so many samples make, and where each begins in their row."""
    an_epoch = [min(training.batch, samples - at) for at in range(0, samples, training.batch)][
        : training.an_epoch(samples)
    ]
    sizes = list(islice(cycle(an_epoch), training.steps_for(samples)))
    return sizes, [0, *accumulate(sizes)]


class BatchedTraining:
    """Parties in the middle of their training; row i of every stacked tensor is party i's."""

    def __init__(self, requests: Sequence[FitRequest[Any]]) -> None:
        first = requests[0]
        self.requests = requests
        self.training = first.training
        self.names = first.names
        self.owns = [read_only(r.own) for r in requests]
        self.own = StackedTree(self.owns)
        self.task = StackedTree([r.task for r in requests])
        self.theta = _stack([r.begin for r in requests])
        self.shift = _stack([r.shift or {} for r in requests])
        self.to = _stack([r.pull.to if r.pull else {} for r in requests])
        self.before = first.before.count if first.before else 0
        self.first: Params = {}
        self.second: Params = {}
        if first.before:
            self.first = _stack([r.before.first for r in requests if r.before])
            self.second = _stack([r.before.second for r in requests if r.before])
        elif self.training.optimizer == "adam" or self.training.momentum:
            self.first = {k: torch.zeros_like(self.theta[k]) for k in self.names}
            self.second = {
                k: torch.zeros_like(self.theta[k])
                for k in self.names
                if self.training.optimizer == "adam"
            }
        self.orders = [_order(r) for r in requests]
        sizes = [_sizes(len(r.samples), r.training) for r in requests]
        self.sizes = [each for each, _ in sizes]
        self.begins = [begins for _, begins in sizes]
        self.scratch: list[dict[str, Tensor]] = [{} for _ in requests]
        self.last: list[Tensor | None] = [None for _ in requests]

    def train(self) -> list[Fitted]:
        """All segments, and then what came out for each party."""
        tasks = {
            id(r.task): r.task for r in self.requests if type(r.task) is not LearningTask
        }  # a plain one holds no tensors
        given = [[own for own in self.owns if own is not None], list(tasks.values())]
        before = marks(given)
        for segment in self._segments():
            if len(segment.rows) > 1:
                self._walk(segment)
            else:
                self._walk_alone(segment)
        check_unwritten(given, before)
        return [self._done(i) for i in range(len(self.requests))]

    def _segments(self) -> Iterator[Segment]:
        """Step by step those whose batches are of one size; as long as they stay the same it is one
        segment.
        """
        if all(sizes is self.sizes[0] for sizes in self.sizes) and len(set(self.sizes[0])) == 1:
            yield Segment(tuple(range(len(self.requests))), 0, len(self.sizes[0]), self.sizes[0][0])
            return
        under_way: dict[tuple[int, ...], Segment] = {}
        for number in range(max(map(len, self.sizes)) + 1):
            there: dict[int, list[int]] = {}
            for i, sizes in enumerate(self.sizes):
                if number < len(sizes):
                    there.setdefault(sizes[number], []).append(i)
            now = {tuple(rows): size for size, rows in there.items()}
            ended = [rows for rows, segment in under_way.items() if now.get(rows) != segment.size]
            yield from [under_way.pop(rows) for rows in ended]
            for rows, size in now.items():
                begun = under_way.get(rows, Segment(rows, number, number, size))
                under_way[rows] = begun._replace(end=number + 1)

    def _descent(self, loss: Any, at: slice | Tensor | int, first_step: int) -> Descent:
        """Descent on some rows; it works on them in place, or on copies if `at` makes such."""
        theta, first, second = (
            {k: v[at] for k, v in state.items()} for state in (self.theta, self.first, self.second)
        )
        moments = Moments(first, second, self.before + first_step) if first else None
        shift = [self.shift[k][at] for k in self.names] if self.shift else None
        pull = self.requests[0].pull
        anchor = (
            Anchor.at(self.names, {k: v[at] for k, v in self.to.items()}, pull.weight)
            if pull
            else None
        )
        return Descent(loss, self.training, theta, self.names, moments, shift, anchor)

    def _walk(self, segment: Segment) -> None:
        """Take a segment's steps on its parties' rows: in place if they lie side by side, else on
        copies that are put back.
        """
        rows = segment.rows
        side_by_side = rows == tuple(range(rows[0], rows[-1] + 1))
        at: slice | Tensor = slice(rows[0], rows[-1] + 1) if side_by_side else torch.tensor(rows)
        tasks = {k: v[at] for k, v in self.task.rows.items()}
        owns = {k: v[at] for k, v in self.own.rows.items()}
        values = torch.zeros(len(rows))
        function = self.requests[0].objective

        def loss(theta: Params, batch: Batch) -> Tensor:
            drawn: StackedTree = batch.drawn

            def one(
                theta: Params,
                seen: Params,
                rows: Params,
                scratch: Params,
                task: Params,
                own: Params,
                draws: Params,
            ) -> Params:
                notes = dict(scratch)
                mine = Batch(
                    seen["x"], seen["y"], seen["i"], batch.number, notes, rows, drawn.of(draws)
                )
                value = function(self.task.of(task), ReadOnlyDict(theta), mine, self.own.of(own))
                return {**notes, VALUE: value}

            nonlocal values
            seen = {"x": batch.x, "y": batch.y, "i": batch.indices}
            kept = over_rows(one, theta, seen, batch.rows, batch.scratch, tasks, owns, drawn.rows)
            values = kept.pop(VALUE)
            batch.scratch.update(kept)
            return values.sum()

        descent = self._descent(loss, at, segment.first)
        scratch = _stack([self.scratch[i] for i in rows])
        before = marks((owns, tasks))
        for batch in self._batches(segment, scratch):
            descent.step(batch)
        check_unwritten((owns, tasks), before)
        descent.done(scratch)
        for n, i in enumerate(rows):
            self.last[i] = values[n].detach()
            self.scratch[i] = {k: v[n] for k, v in scratch.items()}
        if not side_by_side:
            self._put_back(descent, at)

    def _put_back(self, descent: Descent, at: slice | Tensor) -> None:
        moments = descent.moments
        changed = (
            descent.theta,
            moments.first if moments else {},
            moments.second if moments else {},
        )
        for state, new in zip((self.theta, self.first, self.second), changed, strict=True):
            for k, v in new.items():
                state[k][at] = v

    def _walk_alone(self, segment: Segment) -> None:
        """The same for one party: the loss itself on its row."""
        (i,) = segment.rows
        request = self.requests[i]

        def loss(theta: Params, batch: Batch) -> Tensor:
            return request.objective(request.task, ReadOnlyDict(theta), batch, self.owns[i])

        descent = self._descent(loss, i, segment.first)
        for batch in self._batches(segment, {}):
            mine = _row(batch, 0, self.scratch[i])
            mine.drawn = batch.drawn.of({k: v[0] for k, v in batch.drawn.rows.items()})
            descent.step(mine)
        self.last[i] = descent.done({}).loss

    def _batches(self, segment: Segment, scratch: dict[str, Tensor]) -> Iterator[Batch]:
        """The segment's batches, stacked: row by row the parties' own."""
        parties, size = segment.rows, segment.size
        one = self.requests[parties[0]].samples
        some = max(1, GATHERED // max(1, len(parties) * size * one.x[0].nbytes))
        for begin in range(segment.first, segment.end, some):
            many = min(some, segment.end - begin) * size
            orders = torch.stack(
                [self.orders[i][(at := self.begins[i][begin]) : at + many] for i in parties]
            )
            x = self._gathered([self.requests[i].samples.x for i in parties], orders)
            y = self._gathered([self.requests[i].samples.y for i in parties], orders)
            rows = {
                k: self._gathered([self.requests[i].samples.rows[k] for i in parties], orders)
                for k in one.rows
            }
            for number, at in enumerate(range(0, many, size), begin):
                part = slice(at, at + size)
                seen = self._augmented(x[:, part], parties, number)
                mine = {k: every[:, part] for k, every in rows.items()}
                batch = Batch(seen, y[:, part], orders[:, part], number, scratch, mine)
                batch.drawn = self._drawn(batch, parties)
                yield batch

    @staticmethod
    def _gathered(each: Sequence[Tensor], orders: Tensor) -> Tensor:
        """The parties' samples in the order of their batches, one party a row."""
        made = each[0].new_empty(*orders.shape, *each[0].shape[1:])
        for n, samples in enumerate(each):
            torch.index_select(samples, 0, orders[n], out=made[n])
        return made

    def _augmented(self, x: Tensor, rows: tuple[int, ...], number: int) -> Tensor:
        change = self.training.augment
        if change is None:
            return x
        keys = [self.requests[i].key.fold("augment", number) for i in rows]
        return torch.stack([change(mine, key) for mine, key in zip(x, keys, strict=True)])

    def _drawn(self, batch: Batch, rows: tuple[int, ...]) -> StackedTree:
        """What each party draws for its row of the batch."""
        draw = self.requests[rows[0]].draw
        if draw is None:
            return NOTHING
        made = []
        for n, i in enumerate(rows):
            key = BatchKey(self.requests[i].key.bits, batch.number)
            made.append(draw(_row(batch, n, {}), key, self.owns[i]))
        return StackedTree(made)

    def _done(self, i: int) -> Fitted:
        theta, first, second = (
            {k: v[i] for k, v in state.items()} for state in (self.theta, self.first, self.second)
        )
        steps = len(self.sizes[i])
        moments = Moments(first, second, self.before + steps) if first and steps else None
        return Fitted(theta, moments, steps, self.last[i], self.scratch[i])


NOTHING = StackedTree([None])


def _row(batch: Batch, n: int, scratch: dict[str, Tensor]) -> Batch:
    """One party's batch of a stacked one."""
    rows = {k: every[n] for k, every in batch.rows.items()}
    return Batch(batch.x[n], batch.y[n], batch.indices[n], batch.number, scratch, rows)


def _stack(trees: Sequence[Params]) -> Params:
    """Row by row each party's tensors."""
    return {k: torch.stack([tree[k].detach() for tree in trees]) for k in trees[0]}
