"""Local training: our optimizers are torch's, batches are what section 0 of the specification says,
inputs stay as they were.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import batch_of, fit, noise, party_of, samples, task_of

import comity
from comity.base.call import CallId
from comity.core import Batch, Key, Params, Samples, Training, batches, plain
from comity.engines.running_call import KeptMoments, RunningCall

pytestmark = pytest.mark.quick

SHAPE, CLASSES = (6,), 3
OPTIMIZERS: dict[str, tuple[Training, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (Training(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "sgd-decay": (
        Training(lr=0.1, decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    ),
    "sgd-momentum": (
        Training(lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ),
    "sgd-momentum-decay": (
        Training(lr=0.05, momentum=0.5, decay=1e-3),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, weight_decay=1e-3),
    ),
    "adam": (Training("adam", lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    "adam-decay": (
        Training("adam", lr=0.01, decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
}


def with_settings(how: Training, **settings: Any) -> Training:
    return Training(**(vars(how) | settings))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ten_steps_equal_torch_optim(kind: str) -> None:
    """The same batches through nn.Linear and torch.optim: exactly, or up to rounding where
    gradients are never written out.
    """
    how, make = OPTIMIZERS[kind]
    how = with_settings(how, batch=4, steps=10)
    task, data = task_of("mlp2(width=5)", SHAPE, CLASSES), samples(14, SHAPE, CLASSES)
    theta = task.init(Key(1))
    layers = {
        name: nn.utils.skip_init(nn.Linear, *reversed(theta[f"{name}.weight"].shape))
        for name in ("fc1", "fc2", "fc3")
    }
    for name, layer in layers.items():
        layer.load_state_dict({"weight": theta[f"{name}.weight"], "bias": theta[f"{name}.bias"]})
    model = nn.Sequential(layers["fc1"], nn.ReLU(), layers["fc2"], nn.ReLU(), layers["fc3"])
    optimizer = make(model.parameters())
    count = 0
    for batch in batches(data, Key(2), how):
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
        count += 1
    result = fit(task.loss, theta, data, Key(2), how)
    assert count == result.steps == 10
    for name, layer in layers.items():
        ours, theirs = result.theta[f"{name}.weight"], layer.weight.detach()
        torch.testing.assert_close(
            ours,
            theirs,
            **({"rtol": 0, "atol": 0} if kind == "adam" else {"rtol": 1e-5, "atol": 1e-7}),
        )
        torch.testing.assert_close(
            result.theta[f"{name}.bias"], layer.bias.detach(), rtol=1e-5, atol=1e-7
        )


# --- a loss that does not look at its batch: what is left is the optimizer


def bowl(theta: Params, batch: Batch) -> Tensor:
    """Smooth, with different curvatures, and independent of the batch."""
    return (theta["a"].square() * torch.tensor([1.0, 4.0])).sum() + (theta["b"] - 1).pow(4).sum()


START = {
    "a": torch.tensor([1.0, -2.0]),
    "b": torch.tensor([[3.0]]),
    "c.~buffer": torch.tensor([7.0]),
}
ONE_SAMPLE = Samples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_moments_continue_as_one_long_training(kind: str) -> None:
    how = with_settings(OPTIMIZERS[kind][0], lr=0.003)
    whole = fit(bowl, START, ONE_SAMPLE, Key(0), with_settings(how, steps=10))
    first = fit(bowl, START, ONE_SAMPLE, Key(1), with_settings(how, steps=4))
    second = fit(
        bowl, first.theta, ONE_SAMPLE, Key(2), with_settings(how, steps=6), moments=first.moments
    )
    assert all(torch.equal(second.theta[k], whole.theta[k]) for k in START)
    restarted = fit(bowl, first.theta, ONE_SAMPLE, Key(2), with_settings(how, steps=6))
    assert torch.equal(restarted.theta["a"], whole.theta["a"]) == (
        not how.momentum and how.optimizer == "sgd"
    )


@pytest.mark.parametrize("kind", ["sgd-momentum", "adam"])
def test_moments_belong_to_names_not_to_places(kind: str) -> None:
    """The same weights in another order are the same weights."""
    how = with_settings(OPTIMIZERS[kind][0], lr=0.003, steps=4)
    first = fit(bowl, START, ONE_SAMPLE, Key(1), how)
    straight = fit(bowl, first.theta, ONE_SAMPLE, Key(2), how, moments=first.moments)
    turned = {k: first.theta[k] for k in reversed(first.theta)}
    assert _same(
        fit(bowl, turned, ONE_SAMPLE, Key(2), how, moments=first.moments).theta, straight.theta
    )


def _same(ours: Params, theirs: Params) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fit_changes_none_of_its_inputs(kind: str) -> None:
    """Weights, running statistics, data, `add` and `moments` are the caller's."""
    how = with_settings(OPTIMIZERS[kind][0], batch=4)
    shape = (1, 8, 8)
    task, data = task_of("fedbn-cnn(scale=0.03)", shape, CLASSES), samples(12, shape, CLASSES)
    theta = task.init(Key(1))
    add = {k: torch.full_like(v, 0.01) for k, v in theta.items() if "~" not in k}
    moments = fit(task.loss, theta, data, Key(2), how).moments
    inputs = [*theta.values(), *add.values(), data.x, data.y]
    if moments:
        inputs += [*moments.first.values(), *moments.second.values()]
    before = [v.clone() for v in inputs]
    result = fit(task.loss, theta, data, Key(3), how, add=add, moments=moments)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True))
    assert not any(v.requires_grad for v in (*inputs, *result.theta.values()))
    assert not torch.equal(result.theta["conv1.bn.~mean"], theta["conv1.bn.~mean"]), (
        "running statistics follow training"
    )
    assert not _same(result.theta, theta)


def test_add_is_added_to_every_gradient() -> None:
    """SCAFFOLD's l.10: y - lr (g + shift); three steps on a linear loss with gradient 2."""
    result = fit(
        lambda theta, batch: 2 * theta["w"].sum(),
        {"w": torch.tensor([1.0]), "v": torch.tensor([1.0])},
        ONE_SAMPLE,
        Key(0),
        Training(lr=0.1, steps=3), add={"w": torch.tensor([-5.0])},
    )  # fmt: skip
    assert result.theta["w"].item() == pytest.approx(1 - 3 * 0.1 * (2 - 5))
    assert result.theta["v"].item() == 1


def test_only_trains_what_it_names() -> None:
    result = fit(
        bowl,
        START,
        ONE_SAMPLE,
        Key(0),
        Training(lr=0.01, momentum=0.9, steps=3),
        only=frozenset({"b"}),
    )
    assert torch.equal(result.theta["a"], START["a"])
    assert not torch.equal(result.theta["b"], START["b"])
    assert result.moments is not None
    assert set(result.moments.first) == {"b"}


def test_loss_of_the_last_batch() -> None:
    """One step from 3 on w^2 with lr 0.1: the loss seen was 9, and w is 2.4 afterwards."""
    result = fit(
        lambda theta, batch: theta["w"].square().sum(),
        {"w": torch.tensor([3.0])},
        ONE_SAMPLE,
        Key(0),
        Training(lr=0.1, steps=1),
    )
    assert result.loss is not None
    assert result.loss.item() == 9
    assert result.theta["w"].item() == pytest.approx(2.4)


# --- batches


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A hang is a failure, not a wait."""

    def stop(*_: object) -> None:
        raise AssertionError(f"still going after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def steps_of(how: Training, n: int) -> list[int]:
    """The sizes of the batches that a party with n samples sees."""
    with within(2):
        return [len(b.y) for b in batches(samples(n, (1,), 1), Key(0), how)]


CASES = [
    (Training(batch=10), 25, [10, 10, 5]),
    (Training(batch=10, epochs=2), 25, [10, 10, 5, 10, 10, 5]),
    (Training(batch=10), 30, [10, 10, 10]),
    (Training(batch=10, min_batch=2), 21, [10, 10]),
    (Training(batch=10, min_batch=2), 22, [10, 10, 2]),
    (Training(batch=10, min_batch=2, epochs=3), 1, []),
    (Training(batch=10, min_batch=10), 25, [10, 10]),
    (Training(batch=10, min_batch=10), 9, []),
    (Training(batch=10), 3, [3]),
    (Training(batch=10, steps=2), 25, [10, 10]),
    (Training(batch=10, steps=5), 25, [10, 10, 5, 10, 10]),
    (Training(batch=10, steps=5, min_batch=2), 21, [10, 10, 10, 10, 10]),
    (Training(batch=10, steps=3, min_batch=2), 1, []),
    (Training(batch=10, steps=3, min_batch=10), 9, []),
    (Training(batch=1, epochs=2), 3, [1] * 6),
    (Training(batch=3, min_batch=2), 3 * 64 * 2 + 1, [3] * 128),
    (Training(batch=2, steps=200), 5, ([2, 2, 1] * 67)[:200]),
]


@pytest.mark.parametrize(("how", "n", "expected"), CASES)
def test_section0_batch_sizes(how: Training, n: int, expected: list[int]) -> None:
    """E epochs or a number of steps; a last batch that is too small is dropped."""
    assert steps_of(how, n) == expected
    assert how.steps_for(n) == len(expected)


@pytest.mark.parametrize(
    "how", [Training(batch=1, min_batch=2), Training(batch=1, min_batch=2, steps=3)]
)
def test_section0_batches_of_one_are_all_dropped_under_batchnorm(how: Training) -> None:
    """Every batch is too small: no step is made, and the training ends."""
    assert steps_of(how, 5) == []
    assert how.steps_for(5) == 0


def test_section0_batch_1_with_batchnorm_ends() -> None:
    """A run with --batch 1 and BatchNorm is refused or makes no step; it does not hang."""
    shape = (1, 8, 8)
    parties = {f"p{i}": (noise(8, *shape, seed=i).numpy(), [0, 1] * 4) for i in range(2)}
    fed = comity.Federation.from_arrays(parties)
    with within(4):
        try:
            result = comity.run(
                "fedavg", fed, model="fedbn-cnn(scale=0.03)", rounds=1, batch=1, engine="loop"
            )
        except comity.UsageError:
            return
    assert result.summary["steps"] == 0


def test_an_epoch_sees_every_sample_once_in_a_fresh_order() -> None:
    data = Samples(torch.arange(23.0)[:, None], torch.arange(23))
    labels = [b.y for b in batches(data, Key(5), Training(batch=4, epochs=3))]
    epochs = [torch.cat(labels[6 * e : 6 * e + 6]) for e in range(3)]
    assert all(sorted(e.tolist()) == list(range(23)) for e in epochs)
    assert len({tuple(e.tolist()) for e in epochs}) == 3


def test_a_batch_knows_its_rows_and_its_number() -> None:
    data = Samples(torch.arange(23.0)[:, None], torch.arange(23))
    stream = list(batches(data, Key(5), Training(batch=4, epochs=2)))
    assert [b.number for b in stream] == list(range(12))
    for b in stream:
        assert torch.equal(b.y, b.indices)
        assert torch.equal(b.x[:, 0], b.indices.float())


def test_equal_keys_equal_orders_other_keys_other_orders() -> None:
    data, how = samples(40, (1,), 2), Training(batch=40)
    orders = [next(batches(data, key, how)).indices for key in (Key(1), Key(1), Key(2))]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def test_scratch_lives_for_one_fit() -> None:
    """A loss may carry something from batch to batch, and finds nothing when the next training
    begins.
    """
    scratch_sizes: list[int] = []

    def loss(theta: Params, batch: Batch) -> Tensor:
        scratch_sizes.append(len(batch.scratch))
        batch.scratch[f"batch {batch.number}"] = batch.x
        return theta["w"].sum()

    for training in (0, 1):
        result = fit(
            loss, {"w": torch.zeros(1)}, samples(6, (1,), 2), Key(training), Training(batch=2)
        )
        assert list(result.scratch) == [
            "batch 0",
            "batch 1",
            "batch 2",
        ], "the party function finds it when the training is over"
    assert scratch_sizes == [0, 1, 2, 0, 1, 2]


def test_a_running_call_counts_the_steps_of_all_its_requests() -> None:
    """Trainings of 3 and 4 steps, and a step of its own over 2 batches."""
    task = task_of("mlp2(width=5)", SHAPE, CLASSES)
    party = party_of(task, samples(6, SHAPE, CLASSES), Training(batch=3))

    async def function() -> tuple[list[int], int]:
        fits = [
            await party.fit(plain, task.init(Key(1)), Key(i), training=Training(steps=n))
            for i, n in enumerate((3, 4))
        ]
        return [result.steps for result in fits], await party.fold(
            lambda count, batch: count + 1, 0, Key(2)
        )

    running = RunningCall(
        function(), CallId("a function", 0, 0, 0), KeptMoments({}, ""), nullcontext()
    )
    step_counts = [running.steps]
    while running.request:
        running.train()
        step_counts.append(running.steps)
    assert running.result == ([3, 4], 2)
    assert step_counts == [0, 3, 7, 9]


def test_a_run_counts_the_steps_of_all_parties() -> None:
    """3 rounds of 2 epochs: parties with 9 and 5 samples in batches of 4 make 3 and 2 steps an
    epoch.
    """
    counts = Counter({"p0": 9, "p1": 5})
    parties = {
        n: ((noise(c, 6, seed=1), torch.arange(c) % 2), (noise(4, 6, seed=2), [0, 1, 0, 1]))
        for n, c in counts.items()
    }
    fed = comity.Federation.from_arrays(parties, validation=0.0)
    result = comity.run(
        "fedavg", fed, model="mlp2(width=4)", rounds=3, epochs=2, batch=4, engine="loop"
    )
    assert result.summary["steps"] == 3 * 2 * (3 + 2)


def test_the_gradient_is_that_of_the_mean_over_the_batch() -> None:
    """A batch held twice over gives the same step."""
    task, data = task_of("mlp2(width=5)", SHAPE, CLASSES), samples(6, SHAPE, CLASSES)
    twice = Samples(torch.cat([data.x, data.x]), torch.cat([data.y, data.y]))
    theta = task.init(Key(1))
    assert task.loss(theta, batch_of(twice)).item() == pytest.approx(
        task.loss(theta, batch_of(data)).item(), rel=1e-6
    )
