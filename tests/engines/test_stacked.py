"""The stacked engine trains many parties in one computation; results equal those of the loop engine
up to rounding.
"""

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
def float64_weights() -> Iterator[None]:
    """Use 64-bit weights during a test."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def job(text: str, engine: str, **settings: Any) -> SimulatedRun:
    """A small run whose data are in 64 bits."""
    is_steep = text.startswith(STEEP)
    usual = {
        "algorithm": text,
        "model": "mlp2(width=16)",
        "rounds": 2,
        "lr": 0.02 if is_steep else 0.1,
        "workers": 1,
        "epochs": 2,
    }
    simulated_run = prepare(config.experiment(usual | settings | {"engine": engine}), ragged())

    def to_double(samples: Samples) -> Samples:
        return Samples(samples.x.double(), samples.y)

    parties = [
        replace(
            p,
            data=PartyData(
                to_double(p.data.train), to_double(p.data.validation), to_double(p.data.test)
            ),
        )
        for p in simulated_run.parties
    ]
    return replace(simulated_run, parties=parties)


def tensors_after_run(simulated_run: SimulatedRun) -> list[torch.Tensor]:
    """All tensors of the server and the parties after the last round, and the number of steps."""
    engine = simulated_run.engine()
    assert isinstance(engine, LoopEngine)
    server = simulated_run.server(engine, Quiet())
    s = simulated_run.algorithm.start(
        simulated_run.algorithm.init_server(simulated_run.root.fold("init"), simulated_run.info),
        server,
    )
    for t in range(1, simulated_run.experiment.rounds + 1):
        server.begin(t)
        s = simulated_run.algorithm.round(s, server, t)
    states = [
        s,
        *(engine.sites[i].mine for i in simulated_run.info.parties),
        torch.tensor([server.steps, server.server_steps]),
    ]
    return [leaf.double() for leaf in leaves(states) if isinstance(leaf, torch.Tensor)]


@pytest.fixture
def training_counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts of the trainings that were stacked and of those that were not."""
    counts = {"together": 0, "alone": 0}
    train = scheduler._train

    def train_and_count(requests: Sequence[Any]) -> tuple[list[Fitted | None], list[str]]:
        fits, reasons = train(requests)
        for fitted in fits:
            counts["together" if fitted else "alone"] += 1
        return fits, reasons

    monkeypatch.setattr(scheduler, "_train", train_and_count)
    return counts


def assert_agrees(text: str, **settings: Any) -> None:
    expected, actual = (
        tensors_after_run(job(text, "loop", **settings)),
        tensors_after_run(job(text, "stacked", **settings)),
    )
    assert len(expected) == len(actual)
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)


def test_stacked_agrees_with_loop_in_64_bits(
    text: str, float64_weights: None, training_counts: dict[str, int]
) -> None:
    """Every method after two rounds; all of them stack, except those that stacking would slow down."""
    assert_agrees(text)
    has_own_steps = text.startswith(("apfl", "apple", "fed-sps", "fedmeta", "per-fedavg", "pfedme"))
    trains_alone = has_own_steps or "+dp" in text
    assert bool(training_counts["together"]) == (
        text != "centralized" and not trains_alone
    )  # there the server trains by itself
    has_single_trainings = text in (
        "drfa",
        "fada",
    )  # who is drawn twice trains again by itself; there is one target
    assert bool(training_counts["alone"]) == (trains_alone or has_single_trainings)


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
def test_stacked_agrees_with_loop_for_all_training_options(
    text: str, settings: dict[str, Any], float64_weights: None, training_counts: dict[str, int]
) -> None:
    assert_agrees(text, **settings)
    assert training_counts["together"]


@pytest.mark.parametrize(
    "text", [pytest.param("fedavg", marks=pytest.mark.quick), "moon", "fedavg+dbe"]
)
def test_stacked_is_close_to_loop_in_32_bits(text: str, tmp_path: Path) -> None:
    """Within 1e-5 after one step; within one point of accuracy after five rounds."""
    one_step = {"model": "mlp2", "steps": 1, "rounds": 1}
    loop_run, stacked_run = (
        run(text, tmp_path / e, engine=e, workers=1, **one_step) for e in ("loop", "stacked")
    )
    for name, theta in weights(loop_run).items():
        for k, v in theta.items():
            torch.testing.assert_close(weights(stacked_run)[name][k], v, rtol=1e-5, atol=1e-5)
    five_rounds = {"model": "mlp2", "rounds": 5}
    loop_run, stacked_run = (
        run(text, tmp_path / f"{e}5", engine=e, workers=1, **five_rounds)
        for e in ("loop", "stacked")
    )
    assert (
        abs(loop_run.summary["accuracy"]["mean"] - stacked_run.summary["accuracy"]["mean"]) < 0.01
    )


@pytest.mark.parametrize("text", ["fedavg+dbe", "adcol", GOSSIP])
def test_number_of_workers_does_not_matter(text: str, tmp_path: Path) -> None:
    """Two processes with two parties each equal one process with four parties, up to rounding."""
    one_worker, two_workers = (
        run(text, tmp_path / str(w), engine="stacked", workers=w, model="mlp2") for w in (1, 2)
    )
    for name, theta in weights(one_worker).items():
        for k, v in theta.items():
            torch.testing.assert_close(weights(two_workers)[name][k], v, rtol=1e-4, atol=1e-4)


def test_party_state_does_not_share_storage(float64_weights: None) -> None:
    """The tensors of a party's state have their own storage, not a row of a stacked tensor."""
    simulated_run = job("fedper", "stacked")
    engine = simulated_run.engine()
    assert isinstance(engine, LoopEngine)
    server = simulated_run.server(engine, Quiet())
    s = simulated_run.algorithm.init_server(simulated_run.root.fold("init"), simulated_run.info)
    server.begin(1)
    simulated_run.algorithm.round(s, server, 1)
    for i in simulated_run.info.parties:
        assert leaves(engine.sites[i].mine)
        for leaf in leaves(engine.sites[i].mine):
            assert leaf.untyped_storage().nbytes() == leaf.nbytes


DROPOUT_MODEL = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5)), nn.Linear(12, 10)


@pytest.mark.parametrize(
    "model", ["fedbn-cnn(scale=0.06)", DROPOUT_MODEL], ids=["convolutions", "dropout"]
)
def test_networks_that_are_not_stacked_equal_loop(model: Any, tmp_path: Path) -> None:
    """Convolutions gain nothing by stacking, and dropout draws per party: bits equal the loop's."""
    expected, actual = (
        run("fedavg", tmp_path / e, engine=e, workers=1, model=model) for e in ("loop", "stacked")
    )
    for name, theta in weights(expected).items():
        for k, v in theta.items():
            assert torch.equal(v, weights(actual)[name][k])


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
def test_losses_that_cannot_be_stacked_train_alone(
    text: str, alone: bool, float64_weights: None, training_counts: dict[str, int]
) -> None:
    assert_agrees(text)
    assert bool(training_counts["alone"]) == alone


def test_scratch_is_kept_when_batch_sizes_differ(
    float64_weights: None, training_counts: dict[str, int]
) -> None:
    """With one batch per party no steps are stacked; the scratch of a loss is still available at
    the end.
    """
    assert_agrees("adcol(rep_mode=last_epoch,hidden=8)", batch=100)
    assert training_counts["alone"]
    assert_agrees("fedavg+dbe(init_mean=ema)", batch=100)


# --- stacking of the aux arguments of losses


@record
class Own:
    """The aux argument of a loss."""

    w: torch.Tensor
    names: dict[str, Any]
    number: float = 1.0


def read_only_aux(*aux_values: Own) -> list[Own]:
    return [read_only(aux) for aux in aux_values]


def test_equal_leaves_are_shared_and_different_tensors_are_stacked() -> None:
    shared, a, b = torch.ones(3), torch.tensor([1.0]), torch.tensor([2.0])
    aux_values = read_only_aux(
        Own(shared, {"x": a, "array": np.arange(3)}), Own(shared, {"x": b, "array": np.arange(3)})
    )
    tree = StackedTree(aux_values)
    (stacked_tensor,) = tree.rows.values()
    assert torch.equal(stacked_tensor, torch.tensor([[1.0], [2.0]]))
    for n, aux in enumerate(aux_values):
        rebuilt = tree.of({k: v[n] for k, v in tree.rows.items()})
        assert rebuilt.w is shared
        assert torch.equal(rebuilt.names["x"], aux.names["x"])
        assert np.array_equal(rebuilt.names["array"], np.arange(3))
        assert type(rebuilt.names) is type(aux.names)  # read-only as it was


def test_identical_objects_are_not_traversed() -> None:
    (aux,) = read_only_aux(Own(torch.ones(3), {}))
    tree = StackedTree([aux, aux, aux])
    assert not tree.rows
    assert tree.of({}) is aux


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
def test_values_that_differ_in_more_than_tensors_are_not_stackable(other: Own) -> None:
    with pytest.raises(NotStackable):
        StackedTree(read_only_aux(Own(torch.ones(3), {"x": 1}), other))


@pytest.mark.parametrize(
    "arrays",
    [(np.zeros(2), np.ones(2)), (np.zeros(2), np.zeros(3)), (np.zeros(2), np.zeros(2, np.int64))],
)
def test_different_arrays_are_not_stackable(arrays: tuple[Any, Any]) -> None:
    with pytest.raises(NotStackable):
        StackedTree(read_only_aux(*(Own(torch.ones(3), {"x": array}) for array in arrays)))


def test_block_size_does_not_change_results(
    monkeypatch: pytest.MonkeyPatch, float64_weights: None
) -> None:
    """Results are the same with two parties per block."""
    monkeypatch.setattr(scheduler, "BLOCK_PARTIES", 2)
    assert_agrees("fedavg+dbe")
