"""FedProto and FedTGP: prototypes by hand, the pull to them, answers by the nearest, and their
reductions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import (
    batch_of,
    federation,
    noise,
    party_of,
    rounds,
    run_call,
    samples,
    server_of,
    task_of,
)

import comity
from comity.algorithms.fedproto import KNOWN_CLASSES, PROTOTYPES, Bank, FedProto, Guide, Prototypes
from comity.algorithms.fedtgp import FedTgp, distances, generate_prototypes
from comity.core import Key, Params, Samples, Training
from comity.studies import export

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 2,
    "engine": "loop",
    "lr": 0.1,
    "batch": 4,
}
BOTH = ("fedproto", "fedtgp(server_epochs=3)")


def run(method: str, **settings: object) -> comity.Result:
    return comity.run(method, federation(SIZES), **SETTINGS | settings)


def weights(method: str, **settings: object) -> list[Params]:
    result = run(method, **settings)
    return [result.model(name).theta for name in result.job.info.names]


def points(*rows: tuple[float, float, int]) -> Samples:
    """Samples in the plane, each with its class: a linear model's representations are its inputs."""
    return Samples(
        torch.tensor([row[:2] for row in rows], dtype=torch.float32),
        torch.tensor([row[2] for row in rows]),
    )


def two_parties() -> list[Samples]:
    """The first has three of class 0 and two of class 1; the second one of class 0 and two of class
    1; no party has class 2.
    """
    first = points((0, 0, 0), (3, 0, 0), (0, 3, 0), (8, 8, 1), (8, 6, 1))
    return [first, points((5, 5, 0), (0, 1, 1), (0, 3, 1))]


def guide(method: FedProto | FedTgp, data: list[Samples], count: int = 1) -> Guide:
    """What parties get after some rounds with a linear model."""
    server, s = server_of(method, task_of("linear", (2,), 3), data, Training(lr=0.1, batch=8))
    return method.message_for(rounds(method, server, s, count), 0)


# --- FedProto: eqs. 3 and 6


def test_fedproto_eq6_by_hand() -> None:
    """Class 0: three samples with mean (1, 1), one at (5, 5). Class 1: (8, 7) of two and (0, 2) of
    two.
    """
    prototypes = guide(FedProto(min_count=1), two_parties())
    assert prototypes.means.tolist() == [[2, 2], [4, 4.5], [0, 0]]
    assert prototypes.known.tolist() == [True, True, False]


def test_fedproto_eq6_with_parties_alike() -> None:
    prototypes = guide(FedProto(min_count=1, weights="uniform"), two_parties())
    assert prototypes.means.tolist() == [[3, 3], [4, 4.5], [0, 0]]


def test_a_mean_of_too_few_is_not_sent() -> None:
    """The second party's only sample of class 0 would be its mean."""
    assert guide(FedProto(), two_parties()).means.tolist() == [[1, 1], [4, 4.5], [0, 0]]
    assert guide(FedProto(min_count=3), two_parties()).known.tolist() == [True, False, False]


def test_prototypes_of_parties_outside_the_cohort_stay() -> None:
    old = Prototypes(torch.ones(3, 2), torch.tensor([1, 1, 1], dtype=torch.int32))
    method = FedProto()
    server, _ = server_of(
        method, task_of("linear", (2,), 3), two_parties(), Training(lr=0.1), participation=0.5
    )
    s = rounds(method, server, Bank(3, 2, {0: old, 1: old}), 1)
    assert sum(torch.equal(upload.means, old.means) for upload in s.last.values()) == 1


# --- eq. 7


@pytest.mark.parametrize(
    ("reduction", "gap"),
    [
        ("mean", lambda apart: apart.square().sum(1) / 5),
        ("sum", lambda apart: apart.square().sum(1)),
        ("norm", lambda apart: apart.square().sum(1).sqrt()),
    ],
)
def test_fedproto_eq7_by_hand(reduction: Any, gap: Callable[[Tensor], Tensor]) -> None:
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(7, (6,), 3)
    theta, means = task.init(Key(1)), noise(3, 5)
    known_classes = torch.tensor([True, False, True])
    value = FedProto(lam=2.0, reduction=reduction).eq7(
        task, theta, batch_of(data), Guide(means, known_classes)
    )
    by_sample = gap(task.features(theta, data.x) - means[data.y]) * known_classes[data.y]
    by_hand = F.cross_entropy(task.logits(theta, data.x), data.y) + 2.0 * by_sample.mean()
    assert value.item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_a_strong_pull_brings_representations_to_the_prototypes() -> None:
    """Without a term for the labels the minimum is 0: every sample lies on its class's prototype."""
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(6, (6,), 3)
    target = Guide(noise(3, 5).abs(), torch.ones(3, dtype=torch.bool))
    how = Training(lr=2e-3, batch=6, epochs=1000)
    theta, upload = run_call(
        FedProto(lam=1e3, min_count=1).local(
            task.init(Key(1)), target, party_of(task, data, how), Key(2)
        )
    )
    assert (task.features(theta, data.x) - target.means[data.y]).abs().max() < 0.05
    assert torch.allclose(upload.means, target.means, atol=0.05)


# --- eq. 4


def test_fedproto_eq4_the_nearest_known_prototype_answers() -> None:
    task, data = task_of("mlp2(width=5)", (6,), 4), samples(30, (6,), 4)
    means = noise(4, 5).abs()
    party = party_of(task, samples(8, (6,), 2), Training())
    theta = task.init(Key(1))
    z = task.features(theta, data.x)
    far = (z[:, None] - means).square().sum(2)
    for answer, possible in (("nearest", [0, 1, 3]), ("own", [0, 1])):
        method = FedProto(answer=answer)  # type: ignore[arg-type]
        deployed = method.deployed_model(
            theta, Guide(means, torch.tensor([True, True, False, True])), party
        )
        logits = method.party_for(party, theta).task.logits(deployed, data.x)
        assert logits.argmax(1).tolist() == [
            min((row[c].item(), c) for c in possible)[1] for row in far
        ]
        torch.testing.assert_close(logits[:, possible], -far[:, possible], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("answer", "has_prototypes"), [("head", True), ("nearest", False)])
def test_the_head_answers_by_option_or_without_prototypes(
    answer: Any, has_prototypes: bool
) -> None:
    task, data = task_of("mlp2(width=5)", (6,), 3), samples(9, (6,), 3)
    method, theta = FedProto(answer=answer), task.init(Key(1))
    party = party_of(task, data, Training())
    deployed = method.deployed_model(
        theta, Guide(noise(3, 5), torch.full((3,), has_prototypes)), party
    )
    assert deployed.keys() == theta.keys()
    assert torch.equal(
        method.party_for(party, theta).task.logits(deployed, data.x), task.logits(theta, data.x)
    )


@pytest.mark.parametrize("method", BOTH)
def test_what_is_evaluated_is_the_newest_global_prototypes(method: str) -> None:
    theta = weights(method)
    assert all(
        torch.equal(theta[0][k], other[k])
        for other in theta[1:]
        for k in (PROTOTYPES, KNOWN_CLASSES)
    )
    assert theta[0][KNOWN_CLASSES].tolist() == [1, 1, 1]


@pytest.mark.usefixtures("without_onnx")
@pytest.mark.parametrize("method", BOTH)
def test_an_exported_model_answers_by_its_prototypes(method: str, tmp_path: Path) -> None:
    result = run(method, out=tmp_path / "run")
    export.export(result, "p0", tmp_path / "out")
    exported, x = export.load(tmp_path / "out"), noise(20, 6, seed=9)
    assert PROTOTYPES in exported.theta
    assert torch.equal(exported.logits(x), result.model("p0").logits(x))


# --- reductions


@pytest.mark.parametrize("method", BOTH)
def test_without_the_pull_weights_are_solos(method: str) -> None:
    ours, alone = weights(method, lam=0), weights("solo")
    assert all(torch.equal(a[k], b[k]) for a, b in zip(ours, alone, strict=True) for k in b)


@pytest.mark.parametrize("method", BOTH)
def test_with_the_pull_weights_are_not_solos(method: str) -> None:
    assert any(
        not torch.equal(a[k], b[k])
        for a, b in zip(weights(method), weights("solo"), strict=True)
        for k in b
    )


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("fedproto", option)
        for option in ("reduction=sum", "reduction=norm", "min_count=4", "weights=uniform", "lam=3")
    ]
    + [
        ("fedtgp", option)
        for option in (
            "margin=pairs",
            "tau=0.01",
            "server_epochs=5",
            "server_lr=0.3",
            "min_count=4",
            "lam=3",
        )
    ],
)
def test_no_option_is_without_effect(method: str, option: str) -> None:
    usual = "server_epochs=3" if method == "fedtgp" else "lam=1"
    plain, other = f"{method}({usual})", f"{method}({option})"
    if option.partition("=")[0] != usual.partition("=")[0]:
        other = f"{method}({usual},{option})"
    assert any(
        not torch.equal(a[PROTOTYPES], b[PROTOTYPES])
        for a, b in zip(weights(plain), weights(other), strict=True)
    )


# --- whom it is for


@pytest.mark.parametrize("method", BOTH)
def test_architectures_may_differ_in_all_but_the_width(method: str) -> None:
    result = run(method, model="mlp2(width=6)", party={"p1": {"model": "linear"}})
    assert [result.model(p).task.network.name for p in ("p0", "p1")] == ["mlp2", "linear"]
    with pytest.raises(comity.UsageError, match="all parties need one width"):
        run(method, party={"p1": {"model": "linear"}})


@pytest.mark.parametrize("wrapper", ["dbe", "mr", "prbm", "dp(noise=1)"])
def test_wrappers_of_averaged_models_are_refused(wrapper: str) -> None:
    with pytest.raises(comity.UsageError):
        run(f"fedproto+{wrapper}")


# --- FedTGP


def three_classes(*at: float) -> list[Prototypes]:
    """One party's prototypes on a line."""
    return [
        Prototypes(torch.tensor([[x, 0.0] for x in at]), torch.ones(len(at), dtype=torch.int32))
    ]


@pytest.mark.parametrize(
    ("margin", "tau", "delta"),
    [
        ("classwise", 100.0, 4.0),
        ("pairs", 100.0, 7.0),
        ("classwise", 2.5, 2.5),
        ("pairs", 5.0, 5.0),
    ],
)
def test_fedtgp_margin_by_hand(margin: Any, tau: float, delta: float) -> None:
    """Centres at 0, 3 and 7: the nearest others are 3, 3 and 4 away, the farthest pair is 7 apart."""
    largest, present = FedTgp(margin=margin, tau=tau).delta(three_classes(0, 3, 7), 3, 2)
    assert largest.item() == delta
    assert present.all()


def test_fedtgp_centres_count_parties_alike_and_leave_out_classes_not_shown() -> None:
    """Class 0 at 0 and 4, hence 2; class 1 at 8 by one party only; no party has class 2."""
    first = Prototypes(
        torch.tensor([[0.0, 0], [8, 0], [0, 0]]), torch.tensor([1, 1, 0], dtype=torch.int32)
    )
    second = Prototypes(
        torch.tensor([[4.0, 0], [0, 0], [0, 0]]), torch.tensor([1, 0, 0], dtype=torch.int32)
    )
    largest, present = FedTgp().delta([first, second], 3, 2)
    assert largest.item() == 6
    assert present.tolist() == [True, True, False]


def test_fedtgp_of_one_class_has_the_largest_margin() -> None:
    assert FedTgp(tau=7.0).delta(three_classes(5), 1, 2)[0].item() == 7


def test_fedtgp_loss_as_printed() -> None:
    method, task = FedTgp(), task_of("linear", (4,), 3)
    _, s = server_of(method, task, [samples(6, (4,), 3)], Training())
    data, delta = samples(5, (4,), 3, seed=4), 1.5
    P = generate_prototypes(s.F)
    terms = []
    for p, c in zip(data.x, data.y.tolist(), strict=True):
        phi = [math.dist(p.tolist(), other.tolist()) for other in P]
        near = math.exp(-(phi[c] + delta))
        terms.append(-math.log(near / (near + sum(math.exp(-phi[k]) for k in range(3) if k != c))))
    loss = method.acl(task, s.F, batch_of(data), torch.tensor(delta))
    assert loss.item() == pytest.approx(sum(terms) / 5, rel=1e-5)


def test_fedtgp_prototypes_are_made_by_two_layers() -> None:
    _, s = server_of(FedTgp(), task_of("linear", (4,), 3), [samples(6, (4,), 3)], Training())
    layers = {k: v.double() for k, v in s.F.items()}
    hidden = (layers["embedding"] @ layers["in.weight"].T + layers["in.bias"]).clamp(min=0)
    assert torch.allclose(
        generate_prototypes(s.F).double(),
        hidden @ layers["out.weight"].T + layers["out.bias"],
        atol=1e-6,
    )


@pytest.mark.parametrize(("method", "step"), [
    (FedTgp(server_epochs=1, min_count=1), 0.01),
    (FedTgp(server_epochs=1, min_count=1, server_lr=0), 0.1),  # the experiment's
    (FedTgp(server_epochs=1, min_count=1, server_lr=0.5), 0.5),
])  # fmt: skip
def test_fedtgp_server_step_by_hand(method: FedTgp, step: float) -> None:
    """One epoch of one batch: θ_F moves down the gradient of the loss at this round's prototypes,
    by the authors' 0.01.
    """
    data = two_parties()
    server, s = server_of(method, task_of("linear", (2,), 3), data, Training(lr=0.1, batch=8))
    after = rounds(method, server, s, 1)
    uploads = Samples(torch.tensor([[1.0, 1], [8, 7], [5, 5], [0, 2]]), torch.tensor([0, 1, 0, 1]))
    delta = torch.tensor(math.dist((3, 3), (4, 4.5)))
    free = {k: v.clone().requires_grad_() for k, v in s.F.items()}
    loss = method.acl(server.info.task, free, batch_of(uploads), delta)
    grads = torch.autograd.grad(loss, list(free.values()))
    for (k, v), g in zip(free.items(), grads, strict=True):
        assert torch.allclose(after.F[k], v - step * g, atol=1e-5)
    assert after.known.tolist() == [True, True, False]


def test_fedtgp_learnt_prototypes_lie_farther_apart_than_averages() -> None:
    """What the paper is about: averages of two parties' prototypes shrink, learnt ones keep their
    distance.
    """
    first = points((0, 0, 0), (0, 0, 0), (6, 0, 1), (6, 0, 1))
    second = points((4, 4, 0), (4, 4, 0), (2, -4, 1), (2, -4, 1))
    averaged = guide(FedProto(), [first, second])
    learnt = guide(FedTgp(server_epochs=300, server_lr=0.05), [first, second], count=3)

    def gap(prototypes: Guide) -> float:
        return distances(prototypes.means[:1], prototypes.means[1:2]).item()

    assert gap(averaged) == pytest.approx(math.dist((2, 2), (4, -2)))
    assert gap(learnt) > 1.5 * gap(averaged)


def test_fedtgp_tells_which_classes_there_are_but_not_how_many_of_each() -> None:
    task = task_of("linear", (2,), 3)
    party = party_of(task, two_parties()[0], Training())
    _, upload = run_call(
        FedTgp().local(
            task.init(Key(0)),
            Guide(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool)),
            party,
            Key(1),
        )
    )
    assert upload.counts.tolist() == [1, 1, 0]
    assert FedTgp().traits.leaves == {"means"}
    assert FedProto().traits.leaves == {"means", "class counts"}


def test_fedtgp_without_a_prototype_leaves_the_server_as_it_is() -> None:
    method = FedTgp(min_count=50)
    server, s = server_of(method, task_of("linear", (2,), 3), two_parties(), Training())
    assert rounds(method, server, s, 1) is s
