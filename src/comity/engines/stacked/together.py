"""Many parties' local training as one: their parameters stacked, each step one batched computation for all of them.

A step of a small model is mostly overhead and waiting for memory; of twenty small models at once it is arithmetic. The numbers
are those of `fit` up to rounding. Parties take a step together when their batches are of one size, else in groups or alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, cycle, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comity.core.alike import Unlike, join
from comity.core.fit import Descent, Fit, Request
from comity.core.kernels import SecondOrder, over_rows
from comity.core.key import Key
from comity.core.moments import Moments
from comity.core.record import Params
from comity.core.task import Batch
from comity.core.training import Training, orders

VALUE = "the loss"
GATHERED = 16_000_000  # bytes of inputs that are brought together at once


def fit_together(asked: Sequence[Request]) -> list[Fit | None]:
    """What `alone` would give for each, up to rounding; None for those that are not alike enough to be trained together."""
    results: dict[int, Fit | None] = {}
    for group in _groups(asked):
        done = _together([asked[i] for i in group])
        results |= zip(group, done, strict=True) if done else dict.fromkeys(group)
    return [results[i] for i in range(len(asked))]


def _groups(asked: Sequence[Request]) -> list[list[int]]:
    """Requests that train the same tensors in the same way, by their number of samples."""
    found: dict[Any, list[int]] = {}
    for i, r in enumerate(asked):
        shapes = tuple((k, v.shape, v.dtype) for k, v in r.theta.items())
        count = r.moments.count if r.moments else -1
        found.setdefault((shapes, r.training, r.data.shape, r.only, r.add is None, count), []).append(i)
    return [sorted(group, key=lambda i: -len(asked[i].data)) for group in found.values()]


def _together(asked: Sequence[Request]) -> list[Fit] | None:
    """None where the parties' losses turn out not to be one computation."""
    if len(asked) < 2:
        return None
    try:
        return Together(asked).fit()
    except (Unlike, SecondOrder, RuntimeError):  # torch refuses with a RuntimeError what depends on values or draws by itself
        return None


class NoKey(Key):
    """In place of a batch's key: parties' keys differ, so a loss that draws from them is not one computation."""

    def fold(self, *path: int | str) -> Key:
        raise Unlike


class Leg(NamedTuple):
    """Steps first..end-1, which these parties take together with batches of one size."""

    rows: tuple[int, ...]
    first: int
    end: int
    size: int


def _order(asked: Request) -> Tensor:
    """The samples of all of a party's batches in a row."""
    each = list(orders(len(asked.data), asked.key, asked.training))
    return each[0] if len(each) == 1 else torch.cat(each) if each else torch.zeros(0, dtype=torch.int64)


@lru_cache
def _sizes(samples: int, training: Training) -> tuple[list[int], list[int]]:
    """The sizes of all batches that so many samples make, and where each begins in their row."""
    an_epoch = [min(training.batch, samples - at) for at in range(0, samples, training.batch)][: training.an_epoch(samples)]
    sizes = list(islice(cycle(an_epoch), training.steps_for(samples)))
    return sizes, [0, *accumulate(sizes)]


class Together:
    """Parties in the middle of their training; row i of every stacked tensor is party i's."""

    def __init__(self, asked: Sequence[Request]) -> None:
        self.asked = asked
        self.how, self.names = asked[0].training, asked[0].names
        self.held, self.make = join([r.loss for r in asked])
        self.theta = _stack([r.theta for r in asked])
        self.shift = _stack([r.shift or {} for r in asked])
        self.before = asked[0].moments.count if asked[0].moments else 0
        self.first: Params = {}
        self.second: Params = {}
        if asked[0].moments:
            self.first = _stack([r.moments.first for r in asked if r.moments])
            self.second = _stack([r.moments.second for r in asked if r.moments])
        elif self.how.optimizer == "adam" or self.how.momentum:
            self.first = {k: torch.zeros_like(self.theta[k]) for k in self.names}
            self.second = {k: torch.zeros_like(self.theta[k]) for k in self.names if self.how.optimizer == "adam"}
        self.orders = [_order(r) for r in asked]
        self.sizes, self.begins = zip(*[_sizes(len(r.data), r.training) for r in asked], strict=True)
        self.scratch: list[dict[str, Tensor]] = [{} for _ in asked]
        self.last: list[Tensor | None] = [None for _ in asked]

    def fit(self) -> list[Fit]:
        """All legs, and then what came out for each."""
        for leg in self._legs():
            if len(leg.rows) > 1:
                self._walk(leg)
            else:
                self._alone(leg)
        return [self._done(i) for i in range(len(self.asked))]

    def _legs(self) -> Iterator[Leg]:
        """Step by step those whose batches are of one size; as long as they stay the same it is one leg."""
        under_way: dict[tuple[int, ...], Leg] = {}
        if all(sizes is self.sizes[0] for sizes in self.sizes) and len(set(self.sizes[0])) == 1:
            yield Leg(tuple(range(len(self.asked))), 0, len(self.sizes[0]), self.sizes[0][0])
            return
        for number in range(max(map(len, self.sizes)) + 1):
            there: dict[int, list[int]] = {}
            for i, sizes in enumerate(self.sizes):
                if number < len(sizes):
                    there.setdefault(sizes[number], []).append(i)
            now = {tuple(rows): size for size, rows in there.items()}
            ended = [rows for rows, leg in under_way.items() if now.get(rows) != leg.size]
            yield from [under_way.pop(rows) for rows in ended]
            for rows, size in now.items():
                begun = under_way.get(rows, Leg(rows, number, number, size))
                under_way[rows] = begun._replace(end=number + 1)

    def _walk(self, leg: Leg) -> None:
        """Take a leg's steps on its parties' rows: in place if they lie side by side, else on copies that are put back."""
        rows = leg.rows
        side_by_side = rows == tuple(range(rows[0], rows[-1] + 1))
        at: slice | Tensor = slice(rows[0], rows[-1] + 1) if side_by_side else torch.tensor(rows)
        states = (self.theta, self.first, self.second)
        theta, first, second = ({k: v[at] for k, v in state.items()} for state in states)
        moments = Moments(first, second, self.before + leg.first) if first else None
        shift = [self.shift[k][at] for k in self.names] if self.shift else None
        held = {str(n): h[at] for n, h in enumerate(self.held)}
        values = torch.zeros(len(rows))

        def loss(theta: Params, batch: Batch) -> Tensor:
            def one(theta: Params, seen: Params, scratch: Params, own: Params) -> Params:
                mine = Batch(seen["x"], seen["y"], seen["i"], NoKey(0), batch.number, scratch)
                value = self.make(list(own.values()))(theta, mine)
                return {**mine.scratch, VALUE: value}

            nonlocal values
            kept = over_rows(one, theta, {"x": batch.x, "y": batch.y, "i": batch.indices}, batch.scratch, held)
            values = kept.pop(VALUE)
            batch.scratch.update(kept)
            return values.sum()

        descent, scratch = Descent(loss, self.how, theta, self.names, moments, shift), _stack([self.scratch[i] for i in rows])
        for batch in self._batches(leg, scratch):
            descent.step(batch)
        descent.done()
        for n, i in enumerate(rows):
            self.last[i] = values[n].detach()
            self.scratch[i] = {k: v[n] for k, v in scratch.items()}
        if not side_by_side:
            for state, changed in zip(states, (theta, first, second), strict=True):
                for k, v in changed.items():
                    state[k][at] = v

    def _alone(self, leg: Leg) -> None:
        """The same for one party: its own loss on its row, made anew, so that one that writes around itself is noticed."""
        (i,) = leg.rows
        asked, loss = self.asked[i], self.make([h[i] for h in self.held])
        theta, first, second = ({k: v[i] for k, v in state.items()} for state in (self.theta, self.first, self.second))
        moments = Moments(first, second, self.before + leg.first) if first else None
        shift = [self.shift[k][i] for k in self.names] if self.shift else None
        descent = Descent(loss, self.how, theta, self.names, moments, shift)
        for batch in self._batches(leg, {}):
            descent.step(Batch(batch.x[0], batch.y[0], batch.indices[0], asked.key, batch.number, self.scratch[i]))
        self.last[i] = descent.done().loss

    def _batches(self, leg: Leg, scratch: dict[str, Tensor]) -> Iterator[Batch]:
        """The leg's batches, stacked: row by row the parties' own."""
        one, rows = self.asked[leg.rows[0]].data, leg.rows
        some = max(1, GATHERED // max(1, len(rows) * leg.size * one.x[0].nbytes))
        for begin in range(leg.first, leg.end, some):
            many = min(some, leg.end - begin) * leg.size
            x, y = one.x.new_empty(len(rows), many, *one.shape), one.y.new_empty(len(rows), many)
            orders = torch.stack([self.orders[i][(at := self.begins[i][begin]) : at + many] for i in rows])
            for n, i in enumerate(rows):
                torch.index_select(self.asked[i].data.x, 0, orders[n], out=x[n])
                torch.index_select(self.asked[i].data.y, 0, orders[n], out=y[n])
            for number, at in enumerate(range(0, many, leg.size), begin):
                seen, part = x[:, at : at + leg.size], slice(at, at + leg.size)
                if change := self.how.augment:
                    keys = (self.asked[i].key.fold("augment", number) for i in rows)
                    seen = torch.stack([change(v, key) for v, key in zip(seen, keys, strict=True)])
                yield Batch(seen, y[:, part], orders[:, part], NoKey(0), number, scratch)

    def _done(self, i: int) -> Fit:
        theta, first, second = ({k: v[i] for k, v in state.items()} for state in (self.theta, self.first, self.second))
        steps = len(self.sizes[i])
        return Fit(theta, Moments(first, second, self.before + steps) if first and steps else None, steps, self.last[i])


def _stack(trees: Sequence[Params]) -> Params:
    """Row by row each party's tensors."""
    return {k: torch.stack([tree[k].detach() for tree in trees]) for k in trees[0]}
