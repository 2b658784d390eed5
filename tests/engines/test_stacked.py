"""Many parties' trainings as one computation: the numbers of one by one, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrix import GOSSIP, STEEP, ragged, run, weights
from torch import nn

from comity.base.record import leaves, read_only
from comity.base.samples import PartyData
from comity.core import Samples, record
from comity.engines.loop import LoopEngine
from comity.engines.stacked import scheduler
from comity.engines.stacked.stacked_tree import NotStackable, StackedTree
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.server_run import Quiet
from comity.training.requests import Fitted


@pytest.fixture
def double() -> Iterator[None]:
    """Weights of 64 bits for a while."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def job(text: str, engine: str, **settings: Any) -> SimulatedRun:
    """A small experiment in 64 bits."""
    gentle = text.startswith(STEEP)
    usual = {
        "algorithm": text,
        "model": "mlp2(width=16)",
        "rounds": 2,
        "lr": 0.02 if gentle else 0.1,
        "workers": 1,
        "epochs": 2,
    }
    made = prepare(config.experiment(usual | settings | {"engine": engine}), ragged())

    def wide(samples: Samples) -> Samples:
        return Samples(samples.x.double(), samples.y)

    parties = [
        replace(p, data=PartyData(wide(p.data.train), wide(p.data.validation), wide(p.data.test)))
        for p in made.parties
    ]
    return replace(made, parties=parties)


def after(made: SimulatedRun) -> list[torch.Tensor]:
    """Every tensor that the server and the parties have after the last round, and how many steps it
    took.
    """
    engine = made.engine()
    assert isinstance(engine, LoopEngine)
    server = made.server(engine, Quiet())
    s = made.algorithm.start(made.algorithm.init_server(made.root.fold("init"), made.info), server)
    for t in range(1, made.experiment.rounds + 1):
        server.begin(t)
        s = made.algorithm.round(s, server, t)
    states = [
        s,
        *(engine.sites[i].mine for i in made.info.parties),
        torch.tensor([server.steps, server.server_steps]),
    ]
    return [leaf.double() for leaf in leaves(states) if isinstance(leaf, torch.Tensor)]


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many trainings ran together and how many did not."""
    seen = {"together": 0, "alone": 0}
    train = scheduler._train

    def counted(requests: Sequence[Any]) -> tuple[list[Fitted | None], list[str]]:
        trained, reasons = train(requests)
        for done in trained:
            seen["together" if done else "alone"] += 1
        return trained, reasons

    monkeypatch.setattr(scheduler, "_train", counted)
    return seen


def same(text: str, **settings: Any) -> None:
    right, ours = after(job(text, "loop", **settings)), after(job(text, "stacked", **settings))
    assert len(right) == len(ours)
    for a, b in zip(right, ours, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)


def test_stacked_agrees_with_loop_in_64_bits(
    text: str, double: None, count: dict[str, int]
) -> None:
    """Every method after two rounds of ragged parties; all of them really stack, but for those that
    are slower so.
    """
    same(text)
    own_steps = text.startswith(("apfl", "apple", "fed-sps", "fedmeta", "per-fedavg", "pfedme"))
    apart = own_steps or "+dp" in text
    assert bool(count["together"]) == (
        text != "centralized" and not apart
    )  # there the server trains by itself
    lonely = text in (
        "drfa",
        "fada",
    )  # who is drawn twice trains again by itself; there is one target
    assert bool(count["alone"]) == (apart or lonely)


@pytest.mark.sweep("fedprox+dbe")
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd(momentum=0.9,decay=1e-3)", "opt_state": "keep"},
        {"optimizer": "adam", "lr": 0.01},
        {"optimizer": "adam", "lr": 0.01, "opt_state": "keep"},
        {"steps": 7, "epochs": 1},
        {"last_batch": "drop"},
        {"batch": 100},
        {"model": "linear"},
        {"model": "mlp2(width=16,projection=8)"},
        {"participation": 0.5},
        {"party": {"east": {"model": "mlp2(width=16)", "lr": 0.01, "batch": 5}}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("text", ["fedavg", "fedprox+dbe", "ditto"])
def test_whatever_the_training(
    text: str, settings: dict[str, Any], double: None, count: dict[str, int]
) -> None:
    same(text, **settings)
    assert count["together"]


@pytest.mark.parametrize(
    "text", [pytest.param("fedavg", marks=pytest.mark.quick), "moon", "fedavg+dbe"]
)
def test_32_bits_stay_close(text: str, tmp_path: Path) -> None:
    """After one step to 1e-5; after five rounds within one point of accuracy."""
    step = {"model": "mlp2", "steps": 1, "rounds": 1}
    one, both = (run(text, tmp_path / e, engine=e, workers=1, **step) for e in ("loop", "stacked"))
    for name, theta in weights(one).items():
        for k, v in theta.items():
            torch.testing.assert_close(weights(both)[name][k], v, rtol=1e-5, atol=1e-5)
    long = {"model": "mlp2", "rounds": 5}
    one, both = (
        run(text, tmp_path / f"{e}5", engine=e, workers=1, **long) for e in ("loop", "stacked")
    )
    assert abs(one.summary["accuracy"]["mean"] - both.summary["accuracy"]["mean"]) < 0.01


@pytest.mark.parametrize("text", ["fedavg+dbe", "adcol", GOSSIP])
def test_workers_do_not_matter(text: str, tmp_path: Path) -> None:
    """Blocks of two parties in two processes, or all four in one: the same up to rounding."""
    one, two = (
        run(text, tmp_path / str(w), engine="stacked", workers=w, model="mlp2") for w in (1, 2)
    )
    for name, theta in weights(one).items():
        for k, v in theta.items():
            torch.testing.assert_close(weights(two)[name][k], v, rtol=1e-4, atol=1e-4)


def test_a_kept_state_keeps_no_block(double: None) -> None:
    """What a party remembers lies in memory of its own, not in a row among its neighbours'."""
    made = job("fedper", "stacked")
    engine = made.engine()
    assert isinstance(engine, LoopEngine)
    server = made.server(engine, Quiet())
    s = made.algorithm.init_server(made.root.fold("init"), made.info)
    server.begin(1)
    made.algorithm.round(s, server, 1)
    for i in made.info.parties:
        assert leaves(engine.sites[i].mine)
        for leaf in leaves(engine.sites[i].mine):
            assert leaf.untyped_storage().nbytes() == leaf.nbytes


DROPS = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5)), nn.Linear(12, 10)


@pytest.mark.parametrize("model", ["fedbn-cnn(scale=0.06)", DROPS], ids=["convolutions", "dropout"])
def test_some_networks_run_one_by_one(model: Any, tmp_path: Path) -> None:
    """There is nothing to gain by stacking convolutions, and dropout draws party by party: the bits
    are loop's.
    """
    right, ours = (
        run("fedavg", tmp_path / e, engine=e, workers=1, model=model) for e in ("loop", "stacked")
    )
    for name, theta in weights(right).items():
        for k, v in theta.items():
            assert torch.equal(v, weights(ours)[name][k])


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("fedavg+dbe(init_mean=ema)", False),  # its first loss keeps the mean in the batches' scratch
        ("fedavg+dbe(mu=0.3,ema_debias=true)", False),
        ("relay(m_down=2)", False),  # sets of observations are drawn for each batch
        ("relay(negatives=marginal)", False),
        # its loss notes a row for each sample: so many at each party
        ("adcol(rep_mode=last_epoch,hidden=8)", True),
        ("adcol(disc=conv)", False),
        ("adcol(past=3,hidden=8)", False),
        ("adcol(objective=simsiam,hidden=8)", False),
        ("moon", False),
    ],
)  # fmt: skip
def test_what_cannot_be_one_computation_runs_alone(
    text: str, alone: bool, double: None, count: dict[str, int]
) -> None:
    same(text)
    assert bool(count["alone"]) == alone


def test_notes_are_not_lost_where_every_batch_has_a_size_of_its_own(
    double: None, count: dict[str, int]
) -> None:
    """With one batch a party nobody takes a step with another, and what a loss notes is still there
    at the end.
    """
    same("adcol(rep_mode=last_epoch,hidden=8)", batch=100)
    assert count["alone"]
    same("fedavg+dbe(init_mean=ema)", batch=100)


# --- what parties' losses get, as one


@record
class Own:
    """What a loss gets."""

    w: torch.Tensor
    names: dict[str, Any]
    number: float = 1.0


def owns(*each: Own) -> list[Own]:
    return [read_only(own) for own in each]


def test_what_is_equal_is_taken_once_and_tensors_that_differ_are_stacked() -> None:
    shared, a, b = torch.ones(3), torch.tensor([1.0]), torch.tensor([2.0])
    each = owns(
        Own(shared, {"x": a, "array": np.arange(3)}), Own(shared, {"x": b, "array": np.arange(3)})
    )
    joined = StackedTree(each)
    (stacked,) = joined.rows.values()
    assert torch.equal(stacked, torch.tensor([[1.0], [2.0]]))
    for n, own in enumerate(each):
        made = joined.of({k: v[n] for k, v in joined.rows.items()})
        assert made.w is shared
        assert torch.equal(made.names["x"], own.names["x"])
        assert np.array_equal(made.names["array"], np.arange(3))
        assert type(made.names) is type(own.names)  # read-only as it was


def test_one_and_the_same_is_not_looked_into() -> None:
    (own,) = owns(Own(torch.ones(3), {}))
    joined = StackedTree([own, own, own])
    assert not joined.rows
    assert joined.of({}) is own


@pytest.mark.parametrize(
    "other",
    [
        Own(torch.ones(3), {"x": 1}, number=2.0),
        Own(torch.ones(4), {"x": 1}),
        Own(torch.ones(3, dtype=torch.float64), {"x": 1}),
        Own(torch.ones(3), {"y": 1}),
        Own(torch.ones(3), {"x": True}),  # which is equal to 1, and is not it
        Own(torch.ones(3), {"x": np.ones(1)}),
        Own(torch.ones(3), {"x": None}),
        Own(torch.ones(3), {"x": [1]}),
        Own(torch.ones(3), {}),
    ],
    ids=str,
)
def test_what_differs_in_more_than_tensors_is_not_one(other: Own) -> None:
    with pytest.raises(NotStackable):
        StackedTree(owns(Own(torch.ones(3), {"x": 1}), other))


@pytest.mark.parametrize(
    "arrays",
    [(np.zeros(2), np.ones(2)), (np.zeros(2), np.zeros(3)), (np.zeros(2), np.zeros(2, np.int64))],
)
def test_arrays_that_differ_are_not_one(arrays: tuple[Any, Any]) -> None:
    with pytest.raises(NotStackable):
        StackedTree(owns(*(Own(torch.ones(3), {"x": array}) for array in arrays)))


def test_blocks_follow_the_cache(monkeypatch: pytest.MonkeyPatch, double: None) -> None:
    """However few parties fit at once, the numbers are the same."""
    monkeypatch.setattr(scheduler, "BLOCK_PARTIES", 2)
    same("fedavg+dbe")
