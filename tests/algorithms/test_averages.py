"""FedAvg, FedProx, FedBN, FedPer: what is averaged, by which weights, and what stays at the party."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from toys import federation, party_of, quadratic, rounds, rows, same, samples, server_of, task_of

import comity
from comity.algorithms.fedavg import FedAvg
from comity.algorithms.fedprox import FedProx
from comity.core import Key, LearningTask, Model, Params, Party, Samples, Training, average
from comity.models import build
from comity.training.descent import train
from comity.training.requests import FitRequest
from comity.training.requests import plain as plain_loss
from comity.training.task import batchnorm_private

pytestmark = pytest.mark.quick

BN_MODEL, IMAGE = "fedbn-cnn(scale=0.03)", (1, 8, 8)


# --- FedAvg, Algorithm 1


def test_average_by_hand() -> None:
    """(3 * 1 + 1 * 5) / 4 = 2 and (3 * -2 + 1 * 2) / 4 = -1."""
    models = {4: {"w": torch.tensor([1.0, -2.0])}, 7: {"w": torch.tensor([5.0, 2.0])}}
    assert torch.equal(average(models, {4: 3, 7: 1})["w"], torch.tensor([2.0, -1.0]))


def test_average_leaves_its_inputs_alone() -> None:
    models = {0: {"w": torch.tensor([1.0])}, 1: {"w": torch.tensor([5.0])}}
    average(models, {0: 1, 1: 1})
    assert (models[0]["w"].item(), models[1]["w"].item()) == (1.0, 5.0)


def test_average_takes_whole_numbers_from_the_first_party() -> None:
    """num_batches_tracked: the first participant's, whatever the order in which replies arrived."""
    models = {
        5: {"n~": torch.tensor(70), "w": torch.ones(1)},
        2: {"n~": torch.tensor(3), "w": torch.ones(1)},
    }
    counter = average(models, {5: 9, 2: 1})["n~"]
    assert counter.item() == 3
    assert counter.dtype == torch.int64


def test_alg1_weighted_average_by_hand() -> None:
    """f_1 = 2 (w-1)^2 with 3 samples, f_2 = (w-7)^2/2 with 1; one step of 0.1 from 0: (3 * 0.4 + 1
    * 0.7) / 4 = 0.475.
    """
    fedavg = FedAvg()
    server, s = server_of(
        fedavg, quadratic(), [rows(4, 1, count=3), rows(1, 7)], Training(lr=0.1, batch=100, steps=1)
    )
    assert rounds(fedavg, server, s, 1)["body.w"].item() == pytest.approx(0.475)


def test_alg1_weights_are_those_of_the_cohort() -> None:
    """n_i / n_S, not n_i / n: with two of four parties the shares still add up to 1."""
    data = [rows(1, 10, count=1), rows(1, 20, count=2), rows(1, 30, count=3), rows(1, 40, count=4)]
    fedavg = FedAvg()
    server, s = server_of(
        fedavg, quadratic(), data, Training(lr=1.0, batch=100, steps=1), participation=0.5
    )
    i, j = server.sample(1)
    optimum, n = (10, 20, 30, 40), (1, 2, 3, 4)  # a step of 1 on curvature 1 lands on b
    expected = (n[i] * optimum[i] + n[j] * optimum[j]) / (n[i] + n[j])
    assert rounds(fedavg, server, s, 1)["body.w"].item() == pytest.approx(expected)


def test_alg1_everybody_starts_from_the_same_weights() -> None:
    fed = federation((5, 6, 7))
    job = comity.run("fedavg", fed, model="mlp2(width=4)", rounds=1, engine="loop").job
    starts = [party.task.init(job.root.fold("init")) for party in job.parties]
    for other in starts[1:]:
        assert all(torch.equal(other[k], v) for k, v in starts[0].items())


# --- FedProx, eq. 2


def request_of(method: FedProx, theta: Params, m: Model, party: Party) -> FitRequest[Any]:
    """FedProx's only fit request when it begins at `theta`, whatever the received model is."""
    request = method.train_locally(theta, m, party, Key(0)).send(None)
    assert isinstance(request, FitRequest)
    return request


@pytest.mark.parametrize("mu", [0.01, 1.0, 10.0])
def test_fedprox_eq2_gradient_is_mu_times_the_distance(mu: float) -> None:
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(8, (6,), 3)
    data = Samples(data.x.double(), data.y)
    w_t = {k: torch.full(shape, 0.1, dtype=torch.float64) for k, (shape, _) in task.shapes.items()}
    w = {k: v + 0.3 for k, v in w_t.items()}
    request = request_of(
        FedProx(mu=mu), w, Model(w_t), party_of(task, data, Training(lr=1.0, batch=8))
    )
    count = sum(v.numel() for v in w.values())
    assert request.pull is not None
    gaps = sum((w[k] - to).square().sum().item() for k, to in request.pull.to.items())
    assert request.pull.weight / 2 * gaps == pytest.approx(mu / 2 * 0.09 * count, rel=1e-4)
    prox, plain = train(request), train(replace(request, pull=None))
    assert request.objective is plain_loss, "the pull is not a second time in the loss"
    for k in w:
        g = plain.theta[k] - prox.theta[k]  # a step of 1: what the pull adds to the gradient
        torch.testing.assert_close(g, torch.full_like(g, mu * 0.3), rtol=0, atol=mu * 1e-5)


def test_fedprox_eq2_by_hand() -> None:
    """f = 2 (w-1)^2, mu = 2, from w_t = 0: 0 -> 0.4 (no pull yet) -> 0.4 + 0.1 * 4 * 0.6 - 0.1 * 2
    * 0.4 = 0.56.
    """
    fedprox = FedProx(mu=2.0)
    server, s = server_of(fedprox, quadratic(), [rows(4, 1)], Training(lr=0.1, batch=100, steps=2))
    assert rounds(fedprox, server, s, 1)["body.w"].item() == pytest.approx(0.56)


@pytest.mark.parametrize("policy", ["all", "params_only", "none"])
def test_fedprox_eq2_holds_only_what_was_received_and_is_trained(policy: str) -> None:
    """The shifted values are running statistics (policy all) and BatchNorm values that stay at the
    party: none of them is pulled.
    """
    network = build(BN_MODEL, IMAGE, 3)
    task = LearningTask(network, 3, network.cut, batchnorm_private(network, policy))
    data, theta = samples(6, IMAGE, 3), task.init(Key(1))
    received = Model({k: v for k, v in theta.items() if k not in task.private})

    shifted = {k: v + 1.0 if k in task.private or "~" in k else v.clone() for k, v in theta.items()}
    request = request_of(
        FedProx(mu=5.0), shifted, received, party_of(task, data, Training(lr=0.1, batch=6))
    )
    assert request.pull is not None
    assert request.pull.to.keys() == {k for k in theta if k not in task.private and "~" not in k}
    one_step = train(request)
    assert one_step.steps == 1
    assert same(one_step.theta, train(replace(request, pull=None)).theta)


# --- FedBN, FedPer and the BatchNorm policies


def _batchnorm(task: LearningTask) -> set[str]:
    """By hand: FedBN's digit network has a BatchNorm after each of its first five layers."""
    layers = ("conv1", "conv2", "conv3", "fc1", "fc2")
    names = {
        f"{layer}.bn.{part}" for layer in layers for part in ("weight", "bias", "~mean", "~var")
    }
    assert names <= set(task.shapes)
    return names


def _expected_private(case: str, task: LearningTask) -> set[str]:
    bn = _batchnorm(task)
    return {
        "fedavg/all": set(),
        "fedavg/params_only": {n for n in bn if "~" in n},
        "fedavg/none": bn,
        "fedbn/all": bn,
        "fedbn/params_only": bn,
        "fedper/all": {"fc3.weight", "fc3.bias"},
        "fedper/none": bn | {"fc3.weight", "fc3.bias"},
        "fedprox/params_only": {n for n in bn if "~" in n},
        "scaffold/params_only": {n for n in bn if "~" in n},
        "scaffold/none": bn,
    }[case]


@pytest.mark.parametrize(
    "case",
    ["fedavg/all", "fedavg/params_only", "fedavg/none", "fedbn/all", "fedbn/params_only", "fedper/all", "fedper/none",
     "fedprox/params_only", "scaffold/params_only", "scaffold/none"],
)  # fmt: skip
def test_section0_what_is_averaged_and_what_stays(case: str, replies: list[dict[int, Any]]) -> None:
    """Each shared name is the weighted mean of what the parties sent; each other name never leaves
    and differs by party.
    """
    policy: Any
    method, policy = case.split("/")
    fed = federation((9, 14, 22), shape=IMAGE)
    result = comity.run(
        method, fed, model=BN_MODEL, bn=policy, rounds=1, batch=4, lr=0.1, engine="loop"
    )
    task = result.job.info.task
    private = _expected_private(case, task)
    (training_replies,) = [
        call for call in replies if hasattr(call[0], "theta")
    ]  # the other calls are evaluations
    assert all(
        set(reply.theta) == set(task.shapes) - private for reply in training_replies.values()
    )
    weights = (
        dict.fromkeys(training_replies, 1 / 3)
        if method == "scaffold"
        else {0: 9 / 45, 1: 14 / 45, 2: 22 / 45}
    )
    deployed = [result.model(name).theta for name in fed.names]
    start = task.init(result.job.root.fold("init"))
    for name in task.shapes:
        if name in private:
            assert not torch.equal(deployed[0][name], start[name]), (
                f"{name} was not trained at the party"
            )
            assert not torch.equal(deployed[0][name], deployed[1][name]), name
            continue
        mean = sum(
            weight * training_replies[i].theta[name].double() for i, weight in weights.items()
        )
        for theta in deployed:
            torch.testing.assert_close(theta[name].double(), mean, rtol=0, atol=1e-6)


def _pair() -> tuple[nn.Module, nn.Module]:
    """A user's own modules; their initial values do not come from the global stream."""
    with torch.random.fork_rng(devices=[]):
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()), nn.Linear(5, 3)


def test_section0_num_batches_tracked_comes_from_the_first_participant(
    replies: list[dict[int, Any]],
) -> None:
    """7, 5 and 3 batches a round: after one round all parties count 7, after two 14, though the
    mean would be 5.
    """
    fed = federation((28, 20, 12))
    name = "encoder.1.~num_batches_tracked"
    for count in (1, 2):
        result = comity.run("fedavg", fed, model=_pair(), rounds=count, batch=4, engine="loop")
        for party in fed.names:
            value = result.model(party).theta[name]
            assert value.dtype == torch.int64
            assert value.item() == 7 * count
    last = [call for call in replies if hasattr(call[0], "theta")][-1]
    assert [reply.theta[name].item() for reply in last.values()] == [7 + 7, 7 + 5, 7 + 3]


def test_section0_num_batches_tracked_of_a_part_of_the_parties() -> None:
    """The first *participant*: with two of four drawn, the one with the lower number counts."""
    fed = federation((4, 8, 12, 16))
    result = comity.run(
        "fedavg", fed, model=_pair(), rounds=1, batch=4, participation=0.5, engine="loop"
    )
    first = result.job.cohort(1)[0]
    assert result.model("p0").theta["encoder.1.~num_batches_tracked"].item() == first + 1


def test_fedbn_knows_batchnorm_by_type_not_by_name(replies: list[dict[int, Any]]) -> None:
    """A linear layer called `bn` is averaged; a BatchNorm called `linear` stays at the party."""

    class Confusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.Linear(6, 5)
            self.linear = nn.BatchNorm1d(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.bn(x)).relu()

    with torch.random.fork_rng(devices=[]):
        pair = Confusing(), nn.Linear(5, 3)
    comity.run("fedbn", federation((8, 12)), model=pair, rounds=1, batch=4, engine="loop")
    sent_weights = next(call for call in replies if hasattr(call[0], "theta"))[0].theta
    assert set(sent_weights) == {"encoder.bn.weight", "encoder.bn.bias", "head.weight", "head.bias"}


@pytest.mark.parametrize("cut", ["fc1", "fc2"])
def test_fedper_personal_layers_are_those_behind_the_cut(
    cut: str, replies: list[dict[int, Any]]
) -> None:
    comity.run(
        "fedper", federation((8, 12)), model="mlp2(width=4)", cut=cut, rounds=1, engine="loop"
    )
    sent_names = set(next(call for call in replies if hasattr(call[0], "theta"))[0].theta)
    base = {"fc1.weight", "fc1.bias"} | ({"fc2.weight", "fc2.bias"} if cut == "fc2" else set())
    assert sent_names == base


# --- a last batch of one


@pytest.mark.parametrize(
    "method",
    [
        "solo",
        "centralized",
        "fedavg",
        "fedprox",
        "fedbn",
        "fedper",
        "scaffold",
        "adcol",
        "fedavg+dbe",
        "fedper+mr",
    ],
)
def test_section0_batchnorm_never_meets_a_last_batch_of_one(method: str) -> None:
    """9 and 5 samples in batches of 4 leave one, and so do all 25 together: that batch is dropped."""
    fed = federation((9, 5, 11), shape=IMAGE)
    result = comity.run(method, fed, model=BN_MODEL, rounds=1, batch=4, engine="loop")
    assert all(torch.isfinite(v).all() for v in result.model("p0").theta.values())
