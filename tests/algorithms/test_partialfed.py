"""PartialFed: what is loaded, how a strategy is learned, and what it is when all or only BatchNorm
is loaded.
"""

from __future__ import annotations

import math

import pytest
import torch
from test_reductions import assert_same, run_method
from torch import nn
from toys import party_of, quadratic, rounds, rows, run_call, samples, server_of, task_of

from comity.algorithms.partialfed import LOGITS, PartialFed, PartialState, Sources, gap, layers
from comity.core import Key, LearningTask, Model, Training
from comity.models.modules import Modules
from comity.training.task import Batch

pytestmark = pytest.mark.quick

ONE_STEP = Training(lr=0.1, batch=1, epochs=1)


@pytest.mark.sweep("-0.5")
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("partialfed(strategy=fix,own=none)", "fedavg"),
        ("partialfed(strategy=adaptive,strategy_epochs=0)", "fedavg"),
        ("partialfed(strategy=adaptive,strategy_lr=0)", "fedavg"),
        ("partialfed(strategy=fix,own=bn)", "fedbn"),
        ("partialfed(strategy=fix,own=head)", "fedper"),
        ("partialfed(strategy=fix,own=body)", "lg-fedavg"),
    ],
)
def test_a_fixed_strategy_is_its_parent(child: str, parent: str, participation: float) -> None:
    """All layers loaded is FedAvg; all but BatchNorm FedBN; all but the head FedPer: to the bit."""
    assert_same(
        run_method(child, "batchnorm", participation),
        run_method(parent, "batchnorm", participation),
    )


def test_layers_of_a_model_are_its_layers() -> None:
    """In the network's order; a BatchNorm belongs to the layer before it, also where names do not
    tell.
    """
    number = layers(task_of("fedbn-cnn(scale=0.03)", (1, 8, 8), 3))
    assert {k: n for k, n in number.items() if n < 2} == {
        f"conv{n + 1}.{part}": n
        for n in (0, 1)
        for part in ("weight", "bias", "bn.weight", "bn.bias", "bn.~mean", "bn.~var")
    }
    assert max(number.values()) == 5
    with torch.random.fork_rng():
        encoder = nn.Sequential(
            nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 5), nn.BatchNorm1d(5)
        )
        network = Modules(encoder, nn.Linear(5, 3), (6,))
    number = layers(LearningTask(network, 3, network.cut))
    assert {number[f"encoder.{n}.{kind}"] for n in (0, 1) for kind in ("weight", "bias")} == {0}
    expected_layers = {
        "encoder.1.~running_var": 0,
        "encoder.2.bias": 1,
        "encoder.3.~running_mean": 1,
        "head.weight": 2,
    }
    assert {k: number[k] for k in expected_layers} == expected_layers


def test_a_batchnorm_comes_with_its_layer() -> None:
    """F_i is the training loss, which does not use running statistics: a strategy of their own
    would be random.
    """
    task = task_of("fedbn-cnn(scale=0.03)", (1, 8, 8), 3)
    last = task.init(Key(1))
    received = {k: v + 0.1 for k, v in task.init(Key(2)).items()}
    party = party_of(task, samples(12, (1, 8, 8), 3), Training(lr=0.0, batch=4, steps=0))
    state = PartialFed(strategy="adaptive").kept_of(last, torch.zeros(6, 2), task)
    _, reply = run_call(
        PartialFed(strategy="adaptive", strategy_lr=1.0).local(
            state, Model(received), party, Key(5)
        )
    )
    own = {name for name, value in reply.theta.items() if torch.equal(value, last[name])}
    whole = {name for name, n in layers(task).items() if any(layers(task)[k] == n for k in own)}
    assert own == whole
    assert 0 < len(own) < len(last), "some come from here, some from there"


def test_everything_is_sent_and_averaged_whatever_is_loaded() -> None:
    """f_i = (w - b_i)²/2, b = 1 and 3, one step of 0.1 from 0: 0.1 and 0.3, hence w = 0.2; w has no
    head, so own=body keeps w.
    """
    algorithm = PartialFed(strategy="fix", own="body")
    server, s = server_of(algorithm, quadratic(), [rows(1, 1), rows(1, 3)], ONE_STEP)
    s = rounds(algorithm, server, s, 1)
    assert s["body.w"].item() == pytest.approx(0.2)
    s = rounds(
        algorithm, server, s, 1, first=2
    )  # each continues from its own weights: 0.1 + 0.1·0.9 and 0.3 + 0.1·2.7
    assert [server.state(i).own["body.w"].item() for i in (0, 1)] == pytest.approx([0.19, 0.57])
    assert s["body.w"].item() == pytest.approx(0.38)


def relaxed_by_hand(
    a: tuple[float, float], g: tuple[float, float], w: float, own: float, b: float, tau: float
) -> float:
    e = [math.exp((x + y) / tau) for x, y in zip(a, g, strict=True)]
    p = e[0] / sum(e)
    return (p * w + (1 - p) * own - b) ** 2 / 2


def test_the_strategys_loss_is_that_of_the_mixture() -> None:
    task, tau = quadratic(), 0.7
    data = rows(1, 2.0)
    received, last = (
        {"body.w": torch.tensor([1.5]).double()},
        {"body.w": torch.tensor([-0.5]).double()},
    )
    noise = torch.tensor([[0.3, -1.1]]).double()
    batch = Batch(data.x, data.y, torch.arange(1), 0, {}, {}, noise)
    value = PartialFed(strategy="adaptive", temperature=tau).mixture_loss(
        task,
        {LOGITS: torch.tensor([[0.4, 0.1]]).double()},
        batch,
        Sources(last, gap(received, last), {"body.w": 0}),
    )
    assert value.item() == pytest.approx(
        relaxed_by_hand((0.4, 0.1), (0.3, -1.1), 1.5, -0.5, 2.0, tau), abs=1e-7
    )


@pytest.mark.parametrize(("b", "loads"), [(2.0, True), (-2.0, False)])
def test_a_party_loads_what_fits_its_data(b: float, loads: bool) -> None:
    """The global model is 1, its own -1: a party whose optimum is 2 loads the global one, one whose
    optimum is -2 does not.
    """
    theta = {"body.w": torch.tensor([-1.0]).double()}
    state = PartialState({}, theta, torch.zeros(1, 2))
    party = party_of(quadratic(), rows(1, b, 20), Training(lr=0.0, batch=1))
    after, reply = run_call(
        PartialFed(strategy="adaptive").local(
            state, Model({"body.w": torch.tensor([1.0]).double()}), party, Key(3)
        )
    )
    assert (after.logits[0, 0] > after.logits[0, 1]).item() is loads
    assert reply.theta["body.w"].item() == (1.0 if loads else -1.0)  # lr 0: sent as it was loaded
    assert set(after.own) == (set() if loads else {"body.w"})


@pytest.mark.parametrize("own", ["fc1", "fc2", "fc3"])
def test_a_layer_comes_from_where_its_logits_say(own: str) -> None:
    """θ_l ← w_l if A_l = global, else the party's own: of three layers one, whichever, and however
    the state holds them.
    """
    task = task_of("mlp2(width=5)", (6,), 3)
    last, received = task.init(Key(1)), task.init(Key(2))
    logits = torch.tensor(
        [[0.0, 1.0] if layer == own else [1.0, 0.0] for layer in ("fc1", "fc2", "fc3")]
    )
    method = PartialFed(strategy="adaptive", strategy_lr=0.0)
    party = party_of(task, samples(8, (6,), 3), Training(lr=0.0, batch=4))
    state = method.kept_of(last, logits, task)
    assert {k.partition(".")[0] for k in state.own} == {own}
    after, reply = run_call(method.local(state, Model(received), party, Key(3)))
    for name, value in reply.theta.items():  # lr 0: sent as it was loaded
        assert torch.equal(value, (last if name.startswith(own) else received)[name]), name
    assert after.own.keys() == state.own.keys()


def test_a_strategys_step_leaves_statistics_alone() -> None:
    task = task_of("fedbn-cnn(scale=0.03)", (1, 8, 8), 3)
    theta = task.init(Key(1))
    before = {k: v.clone() for k, v in theta.items()}
    party = party_of(task, samples(12, (1, 8, 8), 3), Training(lr=0.0, batch=4))
    state = PartialState({}, theta, torch.zeros(6, 2))
    run_call(
        PartialFed(strategy="adaptive").local(
            state, Model({k: v + 0.1 for k, v in theta.items()}), party, Key(0)
        )
    )
    assert all(torch.equal(theta[k], v) for k, v in before.items())


@pytest.mark.parametrize(
    "text", ["strategy_epochs=3", "strategy_lr=1", "temperature=0.1", "strategy=adaptive", "own=bn"]
)
def test_no_option_is_without_effect(text: str) -> None:
    begin = "" if text.startswith(("strategy=", "own=")) else "strategy=adaptive,"
    usual, other = (
        run_method(method, "batchnorm", 1.0).model("p1").theta
        for method in (f"partialfed({begin[:-1]})", f"partialfed({begin}{text})")
    )
    assert any(not torch.equal(usual[k], v) for k, v in other.items())
