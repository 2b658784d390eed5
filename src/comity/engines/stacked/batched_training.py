"""Batched local training of many parties: their parameters are stacked, and each step is one
computation for all of them.

A step of a small model is mostly overhead and memory access; a step of twenty small models is
arithmetic. The results are those of sequential training, up to rounding. Parties take a step
together if their batches have the same size, otherwise in groups or alone.
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
from comity.base.record import Params, ReadOnlyDict, read_only, tensor_versions
from comity.core.algorithm import Algorithm
from comity.engines.stacked.stacked_tree import NotStackable, StackedTree
from comity.training.descent import Anchor, Descent, check_unwritten
from comity.training.kernels import over_rows
from comity.training.requests import FitRequest, Fitted
from comity.training.settings import Moments, Training, orders
from comity.training.task import Batch, LearningTask

VALUE = "the loss"
GATHERED_BYTES = 16_000_000  # of inputs that are gathered per call
TrainingResult = tuple[Fitted | None, str]
"""The result of a training; or None, and why it must be computed alone (empty if that needs no
warning).
"""


def train_batched(requests: Sequence[FitRequest[Any]]) -> list[TrainingResult]:
    """The results of these trainings, up to rounding, computed together as far as possible."""
    results: dict[int, TrainingResult] = {}
    for group in _groups(requests):
        results |= zip(group, _train_group([requests[n] for n in group]), strict=True)
    return [results[n] for n in range(len(requests))]


def _groups(requests: Sequence[FitRequest[Any]]) -> list[list[int]]:
    """Requests that train tensors of the same shapes with the same settings and loss, ordered by
    number of samples.
    """
    groups: dict[Any, list[int]] = {}
    for n, r in enumerate(requests):
        shapes = tuple((k, v.shape, v.dtype) for k, v in r.begin.items())
        count = r.before.count if r.before else -1
        pull = None if r.pull is None else (tuple(r.pull.to), r.pull.weight)
        rows = tuple((k, v.shape[1:], v.dtype) for k, v in r.samples.rows.items())
        kind = (
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
        groups.setdefault(kind, []).append(n)
    return [sorted(group, key=lambda n: -len(requests[n].samples)) for group in groups.values()]


def _train_group(requests: Sequence[FitRequest[Any]]) -> list[TrainingResult]:
    loss = requests[0].objective
    if not _is_common(loss):
        name = getattr(loss, "__qualname__", type(loss).__name__)
        why = (
            f"{name} is a new object at each party, so its trainings run one by one: define the"
            " loss as a method of the algorithm."
        )
        return [(None, why)] * len(requests)
    if len(requests) < 2 or not requests[0].batched:
        return [(None, "")] * len(requests)
    try:
        return [(fitted, "") for fitted in BatchedTraining(requests).train()]
    except NotStackable as why:
        return [(None, f"Trainings of {loss.__qualname__} run one by one: {why}.")] * len(requests)
    except Exception as why:
        # vmap refuses losses that depend on values or draw random numbers. An error of the loss
        # itself is raised again when it runs alone.
        words = shorten(str(why), 120, placeholder="...")
        reason = (
            f"Trainings of {loss.__qualname__} run one by one: stacked they fail"
            f" ({type(why).__name__}: {words})."
        )
        return [(None, reason)] * len(requests)


def _is_common(loss: Any) -> bool:
    """Whether a loss is the same function for all parties: a method of the algorithm, or a function
    of a module.

    Anything else (a closure, a lambda, a partial, another object's method) is a new object at each
    party and may hold any data.
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
    """The sample indices of all of a party's batches, concatenated."""
    epochs = list(orders(len(request.samples), request.key, request.training))
    if not epochs:
        return torch.zeros(0, dtype=torch.int64)
    return epochs[0] if len(epochs) == 1 else torch.cat(epochs)


@lru_cache
def _sizes(samples: int, training: Training) -> tuple[list[int], list[int]]:
    """The sizes of all batches for that many samples, and where each begins in the concatenated
    order.
    """
    all_sizes = [min(training.batch, samples - at) for at in range(0, samples, training.batch)]
    epoch = all_sizes[: training.batches_per_epoch(samples)]
    sizes = list(islice(cycle(epoch), training.steps_for(samples)))
    return sizes, [0, *accumulate(sizes)]


class BatchedTraining:
    """Parties in the middle of their training. Row i of every stacked tensor belongs to party i."""

    def __init__(self, requests: Sequence[FitRequest[Any]]) -> None:
        first = requests[0]
        self.requests = requests
        self.training = first.training
        self.names = first.names
        self.party_aux = [read_only(r.aux) for r in requests]
        self.aux = StackedTree(self.party_aux)
        self.task = StackedTree([r.task for r in requests])
        self.theta = _stack([r.begin for r in requests])
        self.shift = _stack([r.shift for r in requests])
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
        counts = [len(r.samples) for r in requests]
        sizes = {count: _sizes(count, self.training) for count in set(counts)}
        self.sizes = [sizes[count][0] for count in counts]
        self.begins = [sizes[count][1] for count in counts]
        self.scratch: list[dict[str, Tensor]] = [{} for _ in requests]
        self.last_loss: list[Tensor | None] = [None for _ in requests]
        self.gradients = [0 for _ in requests]

    def train(self) -> list[Fitted]:
        """Train all segments and return each party's result."""
        # A plain LearningTask holds no tensors.
        tasks = {id(r.task): r.task for r in self.requests if type(r.task) is not LearningTask}
        arguments = [[aux for aux in self.party_aux if aux is not None], list(tasks.values())]
        before = tensor_versions(arguments)
        for segment in self._segments():
            if len(segment.rows) > 1:
                self._walk(segment)
            else:
                self._walk_alone(segment)
        check_unwritten(arguments, before)
        return [self._fitted(i) for i in range(len(self.requests))]

    def _segments(self) -> Iterator[Segment]:
        """The segments of the training: at each step the parties with equal batch sizes; unchanged
        groups share a segment.
        """
        if all(sizes is self.sizes[0] for sizes in self.sizes) and len(set(self.sizes[0])) == 1:
            yield Segment(tuple(range(len(self.requests))), 0, len(self.sizes[0]), self.sizes[0][0])
            return
        under_way: dict[tuple[int, ...], Segment] = {}
        for number in range(max(map(len, self.sizes)) + 1):
            rows_by_size: dict[int, list[int]] = {}
            for i, sizes in enumerate(self.sizes):
                if number < len(sizes):
                    rows_by_size.setdefault(sizes[number], []).append(i)
            now = {tuple(rows): size for size, rows in rows_by_size.items()}
            complete = [
                rows for rows, segment in under_way.items() if now.get(rows) != segment.size
            ]
            yield from [under_way.pop(rows) for rows in complete]
            for rows, size in now.items():
                segment = under_way.get(rows, Segment(rows, number, number, size))
                under_way[rows] = segment._replace(end=number + 1)

    def _descent(self, loss: Any, at: slice | Tensor | int, first_step: int) -> Descent:
        """Descent on some rows: in place if `at` is a slice or an index, otherwise on copies."""
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
        """Take a segment's steps on its parties' rows: in place if the rows are adjacent, otherwise
        on copies that are written back.
        """
        rows = segment.rows
        adjacent = rows == tuple(range(rows[0], rows[-1] + 1))
        at: slice | Tensor = slice(rows[0], rows[-1] + 1) if adjacent else torch.tensor(rows)
        tasks = {k: v[at] for k, v in self.task.rows.items()}
        aux_rows = {k: v[at] for k, v in self.aux.rows.items()}
        values = torch.zeros(len(rows))
        function = self.requests[0].objective

        def loss(theta: Params, batch: Batch) -> Tensor:
            stacked_draws: StackedTree = batch.draws

            def party_loss(
                theta: Params,
                samples: Params,
                rows: Params,
                scratch: Params,
                task: Params,
                aux: Params,
                draws: Params,
            ) -> Params:
                x, y, indices = samples["x"], samples["y"], samples["i"]
                new_scratch = dict(scratch)
                party_batch = Batch(
                    x, y, indices, batch.number, new_scratch, rows, stacked_draws.of(draws)
                )
                value = function(
                    self.task.of(task), ReadOnlyDict(theta), party_batch, self.aux.of(aux)
                )
                return {**new_scratch, VALUE: value}

            nonlocal values
            samples = {"x": batch.x, "y": batch.y, "i": batch.indices}
            outputs = over_rows(
                party_loss,
                theta,
                samples,
                batch.rows,
                batch.scratch,
                tasks,
                aux_rows,
                stacked_draws.rows,
            )
            values = outputs.pop(VALUE)
            batch.scratch.update(outputs)
            return values.sum()

        descent = self._descent(loss, at, segment.first)
        scratch = _stack([self.scratch[i] for i in rows])
        before = tensor_versions((aux_rows, tasks))
        for batch in self._batches(segment, scratch):
            descent.step(batch)
        check_unwritten((aux_rows, tasks), before)
        descent.finish(scratch)
        for n, i in enumerate(rows):
            self.last_loss[i] = values[n].detach()
            self.gradients[i] += descent.gradients
            self.scratch[i] = {k: v[n] for k, v in scratch.items()}
        if not adjacent:
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
        """Take a segment's steps for one party, with the loss itself on its row."""
        (i,) = segment.rows
        request = self.requests[i]

        def loss(theta: Params, batch: Batch) -> Tensor:
            return request.objective(request.task, ReadOnlyDict(theta), batch, self.party_aux[i])

        descent = self._descent(loss, i, segment.first)
        for batch in self._batches(segment, {}):
            party_batch = _row(batch, 0, self.scratch[i])
            party_batch.draws = batch.draws.of({k: v[0] for k, v in batch.draws.rows.items()})
            descent.step(party_batch)
        fitted = descent.finish({})
        self.last_loss[i] = fitted.loss
        self.gradients[i] += fitted.gradients

    def _batches(self, segment: Segment, scratch: dict[str, Tensor]) -> Iterator[Batch]:
        """The segment's batches, stacked: one row per party."""
        parties, size = segment.rows, segment.size
        example = self.requests[parties[0]].samples
        batches_per_call = max(
            1, GATHERED_BYTES // max(1, len(parties) * size * example.x[0].nbytes)
        )
        for begin in range(segment.first, segment.end, batches_per_call):
            count = min(batches_per_call, segment.end - begin) * size
            orders = torch.stack(
                [self.orders[i][(at := self.begins[i][begin]) : at + count] for i in parties]
            )
            x = self._gather([self.requests[i].samples.x for i in parties], orders)
            y = self._gather([self.requests[i].samples.y for i in parties], orders)
            rows = {
                k: self._gather([self.requests[i].samples.rows[k] for i in parties], orders)
                for k in example.rows
            }
            for number, at in enumerate(range(0, count, size), begin):
                part = slice(at, at + size)
                inputs = self._augment(x[:, part], parties, number)
                batch_rows = {k: values[:, part] for k, values in rows.items()}
                batch = Batch(inputs, y[:, part], orders[:, part], number, scratch, batch_rows)
                batch.draws = self._draw(batch, parties)
                yield batch

    @staticmethod
    def _gather(tensors: Sequence[Tensor], orders: Tensor) -> Tensor:
        """The parties' samples in the order of their batches, one party per row."""
        if tensors[0].dim() == 1 and len({tensor.shape for tensor in tensors}) == 1:
            return torch.stack(list(tensors)).gather(1, orders)
        gathered = tensors[0].new_empty(*orders.shape, *tensors[0].shape[1:])
        for n, samples in enumerate(tensors):
            torch.index_select(samples, 0, orders[n], out=gathered[n])
        return gathered

    def _augment(self, x: Tensor, rows: tuple[int, ...], number: int) -> Tensor:
        augment = self.training.augment
        if augment is None:
            return x
        keys = [self.requests[i].key.fold("augment", number) for i in rows]
        return torch.stack([augment(inputs, key) for inputs, key in zip(x, keys, strict=True)])

    def _draw(self, batch: Batch, rows: tuple[int, ...]) -> StackedTree:
        """What each party draws for its row of the batch."""
        draw = self.requests[rows[0]].draw
        if draw is None:
            return NO_DRAWS
        draws = []
        for n, i in enumerate(rows):
            key = BatchKey(self.requests[i].key.bits, batch.number)
            draws.append(draw(_row(batch, n, {}), key, self.party_aux[i]))
        return StackedTree(draws)

    def _fitted(self, i: int) -> Fitted:
        theta, first, second = (
            {k: v[i] for k, v in state.items()} for state in (self.theta, self.first, self.second)
        )
        steps = len(self.sizes[i])
        moments = Moments(first, second, self.before + steps) if first and steps else None
        return Fitted(theta, moments, steps, self.gradients[i], self.last_loss[i], self.scratch[i])


NO_DRAWS = StackedTree([None])


def _row(batch: Batch, n: int, scratch: dict[str, Tensor]) -> Batch:
    """One party's batch of a stacked one."""
    rows = {k: values[n] for k, values in batch.rows.items()}
    return Batch(batch.x[n], batch.y[n], batch.indices[n], batch.number, scratch, rows)


def _stack(trees: Sequence[Params]) -> Params:
    """Stacked tensors, one party per row."""
    return {k: _stack_rows([tree[k] for tree in trees]) for k in trees[0]}


def _stack_rows(rows: Sequence[Tensor]) -> Tensor:
    first = rows[0].detach()
    if all(row is rows[0] for row in rows):  # as weights that all parties have received
        copies = first.expand(len(rows), *first.shape)
        return copies.clone(memory_format=torch.contiguous_format)
    return torch.stack([row.detach() for row in rows])
