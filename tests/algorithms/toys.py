"""Problems small enough to be solved by hand, and a server to run them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

import comity
from comity.base.call import CallId
from comity.core import (
    AnyAlgorithm,
    Batch,
    Fitted,
    Info,
    Key,
    LearningTask,
    Params,
    Party,
    PartyData,
    Samples,
    Server,
    Training,
)
from comity.engines.loop import LoopEngine, Sequential
from comity.engines.running_call import KeptMoments, RunningCall
from comity.engines.site_store import SiteStore
from comity.models import build
from comity.training.descent import train
from comity.training.requests import FitRequest, PartyCoroutine, Pull
from comity.training.settings import Moments

T = TypeVar("T")


@dataclass(frozen=True)
class OneNumber:
    """A network that is a single number w, in double precision."""

    begin: float = 0.0
    name: str = "one-number"
    stages: tuple[str, ...] = ("body", "head")
    cut: str = "body"
    norms: frozenset[str] = frozenset()

    def init(self, key: Key) -> Params:
        return {"body.w": torch.full((1,), self.begin, dtype=torch.float64)}

    def run(self, theta: Params, x: Tensor, train: bool, begin: int, end: int) -> Tensor:
        raise AssertionError("a quadratic has no representation")

    draws, dense = False, True

    def layer_stream(self, key: Key) -> AbstractContextManager[object]:
        return nullcontext()

    def shape_after(self, stage: str) -> tuple[int, ...]:
        return (1,)


@dataclass(frozen=True)
class Quadratic(LearningTask):
    """f(w) = a/2 (w - b)^2; a sample is the row (a, b), so a party's rows are its curvature and its
    optimum.
    """

    def loss(self, theta: Params, batch: Batch) -> Tensor:
        a, b = batch.x.unbind(1)
        return (a / 2 * (theta["body.w"] - b).square()).mean()


def quadratic(begin: float = 0.0) -> Quadratic:
    return Quadratic(OneNumber(begin), classes=1, cut="body")


def rows(a: float, b: float, count: int = 1) -> Samples:
    """A party whose loss is a/2 (w - b)^2, with `count` equal samples."""
    return Samples(
        torch.tensor([[a, b]] * count, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
    )


def task_of(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    cut: str = "",
    private: frozenset[str] = frozenset(),
) -> LearningTask:
    network = build(model, shape, classes)
    return LearningTask(network, classes, cut or network.cut, private)


def party_of(
    task: LearningTask, train: Samples, training: Training, i: int = 0, parties: int = 1
) -> Party:
    nothing = train.take(torch.zeros(0, dtype=torch.int64))
    return Party(i, f"p{i}", task, training, PartyData(train, nothing, nothing), parties)


class LoopServer(Server):
    """A server with parties in this process, whose states a test can read."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        info: Info,
        root: Key,
        participation: float,
        parties: Sequence[Party],
    ) -> None:
        self.engine = LoopEngine(SiteStore(algorithm, parties, root), Sequential())
        super().__init__(algorithm, info, root, participation, self.engine)

    def state(self, i: int) -> Any:
        """A party's state."""
        return self.engine.sites[i].mine


def server_of(
    algorithm: AnyAlgorithm,
    task: LearningTask,
    data: Sequence[Samples],
    training: Training,
    participation: float = 1.0,
    seed: int = 0,
) -> tuple[LoopServer, Any]:
    """A server over these parties, all with one task, and its state before round 1."""
    parties = [party_of(task, samples, training, i, len(data)) for i, samples in enumerate(data)]
    info = Info(
        tuple(p.name for p in parties),
        tuple(map(len, data)),
        (task,) * len(data),
        training,
        tuple(data[0].x.shape[1:]),
    )
    algorithm.check(info)
    root = Key.root(seed)
    server = LoopServer(algorithm, info, root, participation, parties)
    server.begin(0)
    return server, algorithm.start(algorithm.init_server(root.fold("init"), info), server)


def fit(
    loss: Callable[[Params, Batch], Tensor],
    theta: Params,
    data: Samples,
    key: Key,
    how: Training,
    *,
    only: frozenset[str] | None = None,
    add: Params | None = None,
    pull: Pull | None = None,
    moments: Moments | None = None,
) -> Fitted:
    """A single training on a loss that depends on weights and batch only."""
    request = FitRequest(
        lambda task, theta, batch, aux: loss(theta, batch),
        theta,
        data,
        key,
        how,
        quadratic(),
        None,
        only=only,
        add=add,
        pull=pull,
        before=moments,
    )
    return train(request)


def run_call(function: PartyCoroutine[T]) -> T:
    """The result of a party function or a part of one; each training it requests is run at once."""

    async def pair() -> tuple[T, None]:
        return await function, None

    running = RunningCall(pair(), CallId("a function", 0, 0, 0), KeptMoments({}, ""), nullcontext())
    while running.request:
        running.train()
    result: T = running.result[0]
    return result


def rounds(algorithm: AnyAlgorithm, server: Server, s: Any, count: int, first: int = 1) -> Any:
    """The server's state after `count` rounds."""
    for t in range(first, first + count):
        server.begin(t)
        s = algorithm.round(s, server, t)
    return s


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def samples(count: int, shape: tuple[int, ...], classes: int, seed: int = 0) -> Samples:
    """Gaussian inputs whose labels run through all classes."""
    return Samples(noise(count, *shape, seed=seed), torch.arange(count) % classes)


def batch_of(data: Samples, scratch: dict[str, Tensor] | None = None) -> Batch:
    """All samples as one batch."""
    return Batch(
        data.x, data.y, torch.arange(len(data)), 0, {} if scratch is None else scratch, data.rows
    )


def federation(
    sizes: Sequence[int], shape: tuple[int, ...] = (6,), classes: int = 3, test: int = 6
) -> comity.Federation:
    """Parties with exactly these numbers of training samples, `test` test samples and no
    validation.
    """
    parties = {}
    for i, size in enumerate(sizes):
        data = samples(size + test, shape, classes, seed=i + 1)
        x = data.x + 0.3 * i  # the parties' inputs are shifted
        parties[f"p{i}"] = ((x[:size], data.y[:size]), (x[size:], data.y[size:]))
    return comity.Federation.from_arrays(parties, validation=0.0, classes=classes)


def assert_near(ours: Params, theirs: Params, atol: float = 1e-5) -> None:
    """Equal weights, up to rounding."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, rtol=0, atol=atol, msg=partial("{}: {}".format, name)
        )


def same(ours: Params, theirs: Params) -> bool:
    """Equal weights, bit for bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def distance(ours: Params, theirs: Params) -> float:
    """The largest difference of any weight."""
    return max((ours[k] - theirs[k]).abs().max().item() for k in ours)
