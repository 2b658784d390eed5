"""Parties that start from their own weights (init=own): by hand, on every engine, after a resume,
and in every method that supports it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import GOSSIP, VARIANTS, compositions, ragged, run, short, tables, weights
from plain import Trainer, assert_close, cross_entropy, features, head, stream
from plain import first as common
from sweeps import over_methods
from torch import Tensor, nn

import comity
from comity import algorithms
from comity.core import Key, Params, average
from comity.engines.loop import LoopEngine
from comity.errors import UsageError
from comity.runs import checkpoint, config
from comity.runs.build import prepare
from comity.runs.server_run import Quiet

ALL_METHODS = [*compositions(), *VARIANTS]
TEXTS = [
    text
    for text in ALL_METHODS
    if algorithms.compose(text).traits.start_weights is not None and "kappa=auto" not in text
]  # a pilot excludes init=own, too
SGD = partial(torch.optim.SGD, lr=0.1)
PARTIES = ("north", "east", "south", "west")


def own(result: comity.Result, i: int, place: int | None = None) -> Params:
    """A party's own initial weights, from their key."""
    key = Key.root(result.job.experiment.seed).fold("party", i if place is None else place, "init")
    return result.job.parties[i].task.network.init(key)


def fedavg_round(result: comity.Result, begin: dict[int, Params], t: int) -> Params:
    """A round of FedAvg by torch's own layers, from these weights."""
    weights_by_party = {
        i: Trainer(theta, SGD).train(stream(result, i, t, "local")) for i, theta in begin.items()
    }
    return average(weights_by_party, {i: result.job.info.sizes[i] for i in weights_by_party})


def test_which_methods_cannot_start_from_different_weights() -> None:
    """Those that declare no `start_weights`. Later methods may be among them."""
    excluded = set(ALL_METHODS) - set(TEXTS)
    refusing = ("fedbabu", "centralized", "q-ffl", "fada", "feddyn")
    assert {start for start in refusing if any(text.startswith(start) for text in excluded)} == {
        *refusing
    }
    assert not [text for text in TEXTS if text.startswith(refusing)]


def test_fedavg_averages_models_from_different_initial_weights(tmp_path: Path) -> None:
    """Round 1 from each party's own weights, round 2 from their average, as in any FedAvg."""
    result = run("fedavg", tmp_path, model="mlp2(width=16)", init="own")
    starts = {i: own(result, i) for i in range(4)}
    assert (
        len({float(theta["fc1.weight"][0, 0]) for theta in (*starts.values(), common(result))}) == 5
    )
    w = fedavg_round(result, starts, 1)
    w = fedavg_round(result, dict.fromkeys(range(4), w), 2)
    assert_close(weights(result)["north"], w)


def test_a_party_absent_in_round_1_starts_from_the_average(tmp_path: Path) -> None:
    """East is offline in round 1: its own weights are never used, because the server has an average
    by then.
    """
    table = tmp_path / "plan.csv"
    table.write_text("party,round\neast,1\n")
    result = run("fedavg", tmp_path / "run", model="mlp2(width=16)", init="own", absent=str(table))
    w = fedavg_round(result, {i: own(result, i) for i in (0, 2, 3)}, 1)
    assert_close(weights(result)["north"], fedavg_round(result, dict.fromkeys(range(4), w), 2))


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_discarded_round_1_does_not_count_as_the_first(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody replies in round 1: round 2 starts from the parties' own weights, also if the run was
    stopped in between.
    """
    table = tmp_path / "plan.csv"
    table.write_text("".join(["party,round\n", *(f"{name},1\n" for name in PARTIES)]))
    settings: dict[str, Any] = {
        "model": "mlp2(width=16)",
        "init": "own",
        "absent": str(table),
        "rounds": 2,
    }
    if interrupted:
        monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            run("fedavg", tmp_path / "run", progress=Stop(after=1), **settings)
    result = run("fedavg", tmp_path / "run", resume=interrupted, **settings)
    assert [entry["round"] for entry in result.summary["discarded"]] == [1]
    assert_close(
        weights(result)["north"], fedavg_round(result, {i: own(result, i) for i in range(4)}, 2)
    )


def test_the_proximal_anchor_is_the_partys_own_start(tmp_path: Path) -> None:
    """FedProx's term is zero at the weights from which a party starts."""
    mu = 0.5
    result = run(f"fedprox(mu={mu})", tmp_path, model="mlp2(width=16)", init="own", rounds=1)
    weights_by_party = {}
    for i in range(4):
        anchor = own(result, i)

        def loss(theta: Params, batch: Any, anchor: Params = anchor) -> Tensor:
            near = torch.stack([(theta[k] - anchor[k]).square().sum() for k in anchor]).sum()
            return cross_entropy(theta, batch) + mu / 2 * near

        weights_by_party[i] = Trainer(anchor, SGD).train(stream(result, i, 1, "local"), loss)
    sizes = dict(enumerate(result.job.info.sizes))
    assert_close(weights(result)["north"], average(weights_by_party, sizes))


@pytest.mark.parametrize(
    "text", ["solo", "relay", "fd", "adcol(hidden=8)", "fed-sps", "relay-p2p", "ditto", "fedper"]
)
def test_private_weights_are_the_partys_own_from_the_start(text: str) -> None:
    job = prepare(config.experiment({"algorithm": text, "init": "own", "engine": "loop"}), ragged())
    engine = job.engine()
    assert isinstance(engine, LoopEngine)
    server = job.algorithm.init_server(job.root, job.info)
    for i, party in enumerate(job.parties):
        theta = job.algorithm.deployed_model(
            engine.sites[i].mine, job.algorithm.message_for(server, i), party
        )
        own_weights = party.task.network.init(Key.root(0).fold("party", i, "init"))
        private = ("fc3.weight",) if text == "fedper" else tuple(own_weights)
        assert all(torch.equal(theta[k], own_weights[k]) for k in private)


@pytest.mark.parametrize(
    "text", ["adcol(aggregate=model,hidden=8)", "relay(aggregate=model,lambda_kd=0,lambda_disc=0)"]
)
def test_averaged_parts_start_from_own_weights_too(text: str, tmp_path: Path) -> None:
    """With their own terms off, these are FedAvg with other messages beside it, whatever parties
    start from.
    """
    plain = text.replace("hidden", "mu=0,hidden")
    ours, theirs = (
        run(t, tmp_path / t[:3], model="mlp2(width=16)", init="own", rounds=1)
        for t in (plain, "fedavg")
    )
    mean = average(dict(enumerate(weights(ours).values())), dict(enumerate(ours.job.info.sizes)))
    assert_close(mean, weights(theirs)["north"])


class Stop(Quiet):
    """Ends a run after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == self.after:
            raise KeyboardInterrupt


def outcome(result: comity.Result) -> tuple[Any, ...]:
    return tables(result.folder), {k: v for k, v in result.summary.items() if k != "seconds"}


def assert_same(ours: comity.Result, theirs: comity.Result) -> None:
    assert outcome(ours) == outcome(theirs)
    for party, theta in weights(theirs).items():
        assert all(torch.equal(weights(ours)[party][k], v) for k, v in theta.items())


@pytest.mark.sweep("fedavg", "adcol", "relay-p2p")
@pytest.mark.parametrize("text", over_methods(TEXTS), ids=short)
def test_every_method_everywhere(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """init=own changes the weights and adds no byte. Processes, and a run that was stopped after
    round 1, give the same.
    """
    settings: dict[str, Any] = {"init": "own", "model": "mlp2(width=8)"} | VARIANTS.get(text, {})
    alone = run(text, tmp_path / "loop", **settings)
    assert_same(run(text, tmp_path / "process", engine="process", workers=2, **settings), alone)
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "stopped", progress=Stop(after=1), **settings)
    assert_same(run(text, tmp_path / "stopped", resume=True, **settings), alone)
    alike = run(text, tmp_path / "common", **settings | {"init": "common"})
    assert [tuple(row) for row in alike.ledger] == [tuple(row) for row in alone.ledger]
    assert alike.metrics != alone.metrics


@pytest.mark.parametrize("text", ["fedavg", "fedavg+dbe", "relay", "fedufo"])
def test_stacked_agrees(text: str, tmp_path: Path) -> None:
    step = {"model": "mlp2(width=16)", "steps": 2, "rounds": 2, "init": "own", "lr": 0.02}
    loop, stacked = (
        run(text, tmp_path / e, engine=e, workers=None if e == "loop" else 1, **step)
        for e in ("loop", "stacked")
    )
    for name, theta in weights(loop).items():
        torch.testing.assert_close(weights(stacked)[name], theta, rtol=1e-4, atol=1e-5)


def test_leaving_a_party_out_changes_no_other_partys_start(tmp_path: Path) -> None:
    whole = run("solo", tmp_path / "whole", init="own")
    less = run("solo", tmp_path / "less", init="own", without="east")
    for name in ("north", "south", "west"):
        assert all(torch.equal(v, weights(whole)[name][k]) for k, v in weights(less)[name].items())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fedbabu", "needs one head for all"),
        ("fedbabu+mr", "needs one head for all"),
        ("centralized", "trains one model at the server"),
        ("feddyn", "measures h from the weights that the server sent"),
        ("fedavg+dbe(kappa=auto)", "its pilot rounds would restart every party"),
        (GOSSIP, "does not say which field of its messages"),
    ],
    ids=["fedbabu", "wrapped", "centralized", "feddyn", "pilot", "a user's"],
)
def test_methods_that_need_common_weights_refuse(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^init=own (is not supported|has no effect).*{why}"):
        run(text, tmp_path, init="own")


class Fixed(nn.Module):
    """A layer with fixed initial weights, not random ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, width))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


class FixedHead(Fixed):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_models_without_random_weights_are_refused(tmp_path: Path) -> None:
    pair = Fixed(64), FixedHead(10)
    with pytest.raises(UsageError, match="the same initial weights"):
        run("fedavg", tmp_path, model=pair, init="own")
    run("fedavg", tmp_path / "drawn", model=(Fixed(64), nn.Linear(64, 10)), init="own", rounds=1)


def test_newcomers_are_offered_the_servers_model(tmp_path: Path) -> None:
    """A newcomer of FedAvg takes the server's model; its training on its own data alone starts from
    its own weights.
    """
    result = run("fedavg", tmp_path, model="mlp2(width=16)", init="own", newcomers=1, join_epochs=1)
    w = fedavg_round(result, {i: own(result, i) for i in range(3)}, 1)
    w = fedavg_round(result, dict.fromkeys(range(3), w), 2)
    losses = {m.split: m.value for m in result.metrics if m.party == "west" and m.metric == "loss"}
    test_samples = result.job.parties[3].data.test
    for split, begin in (("test-joined", w), ("test-alone", own(result, 3))):
        theta = Trainer(begin, SGD).train(stream(result, 3, 3, "warm_up"))
        loss = nn.functional.cross_entropy(
            head(theta, features(theta, test_samples.x)), test_samples.y
        )
        assert losses[split] == pytest.approx(float(loss), rel=1e-4)
