"""FedUFO and FedUAD (Zhang et al., ICCV 2021): eqs. 1-12 as the paper numbers them, dynamic
sampling, the two stages, bytes.

`paper_round` is a round in plain torch: full batches, networks as matrix products, losses from
their definitions. Of the library it takes the initial weights only, and where a test trains in
mini-batches their order.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import (
    LoopServer,
    assert_near,
    batch_of,
    distance,
    federation,
    fit,
    noise,
    party_of,
    rounds,
    run_call,
    same,
    samples,
    server_of,
    task_of,
)

import comity
from comity.algorithms import find, options
from comity.algorithms.feduad import Both, FedUad, FedUadState, Prior
from comity.algorithms.fedufo import FedUfo
from comity.base.call import PartyResult
from comity.components.choice import with_the_worst
from comity.components.consensus import class_shares, consensus
from comity.components.discriminator import Owners, discriminator, tell_apart, with_others
from comity.components.divergence import kl, uniform_cross_entropy
from comity.components.server_steps import momentum_step
from comity.core import (
    Batch,
    FitRequest,
    Key,
    LearningTask,
    Params,
    Party,
    Samples,
    Training,
    batches,
)
from comity.errors import UsageError
from comity.runs import checkpoint
from comity.runs.server_run import Quiet
from comity.studies import plan

pytestmark = pytest.mark.quick

SHAPE, CLASSES, WIDTH = (6,), 4, 5
MODEL = f"mlp2(width={WIDTH})"
IMAGE, BATCHNORM = (1, 8, 8), "fedbn-cnn(scale=0.03)"
HOW = Training(
    lr=0.1, momentum=0.9, decay=2e-4, batch=100, epochs=3
)  # section 4.1.1 but for the batch: all samples
SIZES = (12, 9, 15, 6, 10)
ROOT = Key.root(0)
OFF: dict[str, Any] = {"uad": False, "cgr": False, "cgl": False, "dynamic": "off"}
ALIGN, REFINE, PLAIN = (
    "align",
    "local",
    "align",
)  # the party functions of FedUFO's stages, and FedUAD's
OWN = (
    "uad",
    "cgr",
    "cgl",
    "lam",
    "stage_one",
    "dynamic",
    "target",
    "direction",
    "cgr_weight",
)  # fedufo's, beside feduad's

# --- the paper written out


def encoder_features(theta: Params, x: Tensor) -> Tensor:
    """h_e of mlp2."""
    x = F.relu(x @ theta["fc1.weight"].T + theta["fc1.bias"])
    return F.relu(x @ theta["fc2.weight"].T + theta["fc2.bias"])


def model_logits(theta: Params, x: Tensor) -> Tensor:
    """h of mlp2, as logits."""
    return encoder_features(theta, x) @ theta["fc3.weight"].T + theta["fc3.bias"]


def disc_logits(D: Params, z: Tensor) -> Tensor:
    """The logits of a discriminator of fully connected layers."""
    k = 1
    while f"fc{k}.weight" in D:
        z, k = F.relu(z @ D[f"fc{k}.weight"].T + D[f"fc{k}.bias"]), k + 1
    return z @ D["out.weight"].T + D["out.bias"]


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q), batch mean."""
    return (p * (p / q).log()).sum(1).mean()


def torch_sgd(
    loss: Callable[[Params], Tensor], theta: Params, count: int, how: Training = HOW
) -> Params:
    """`count` steps of torch.optim.SGD, each on all samples."""
    free = {k: v.clone().requires_grad_() for k, v in theta.items()}
    optimizer = torch.optim.SGD(
        free.values(), lr=how.lr, momentum=how.momentum, weight_decay=how.decay
    )
    for _ in range(count):
        optimizer.zero_grad()
        loss(free).backward()
        optimizer.step()
    return {k: v.detach() for k, v in free.items()}


def group_target(
    priors: Mapping[int, Params], data: Mapping[int, Samples], x: Tensor, target: str
) -> Tensor:
    """Eqs. 6 and 7, class by class; p_j[c] = 1/K_c where no party has class c."""
    v = torch.zeros(len(x), CLASSES)
    for j, theta in priors.items():
        answer = model_logits(theta, x)
        if target != "logits":
            answer = answer.softmax(1)
        for c in range(CLASSES):
            of_all = sum(data[i].y.tolist().count(c) for i in priors)
            p = data[j].y.tolist().count(c) / of_all if of_all else 1 / len(priors)
            v[:, c] += p * answer[:, c]
    return v / v.sum(1, keepdim=True) if target == "l1" else v.softmax(1)


def paper_round(
    data: Mapping[int, Samples], w: Params, Ds: Mapping[int, Params], label: Mapping[int, int], *, uad: bool = True,
    cgr: bool = True, cgl: bool = True, lam: float = 3.0, target: str = "softmax", direction: str = "reverse",
    disc_passes: int = HOW.epochs, first: bool = False, how: Training = HOW, cgr_weight: float = 1.0, reduction: str = "sum",
    begin: str = "w",
) -> tuple[dict[int, Params], dict[int, Params]]:  # fmt: skip
    """Steps 1-3 of figure 2 for the group `data`: the posteriors and what became of the Ds;
    `first`: D learns first, from w.

    reduction=mean is a mean over all that a term is made of: of n samples' C classes, of n samples'
    K logarithms and K again.
    """
    learnt = dict(Ds)
    posteriors: dict[int, Params] = {}

    def ce(theta: Params, d: Samples) -> Tensor:
        return F.cross_entropy(model_logits(theta, d.x), d.y)

    priors = {k: torch_sgd(partial(ce, d=d), w, how.epochs, how) for k, d in data.items()}
    for k, d in data.items():
        x = d.x
        theirs = {j: encoder_features(priors[j], x) for j in data if j != k}  # eq. 1
        first_weights = priors[k] if begin == "prior" else w
        teachers = [(cgr_weight, group_target(priors, data, x, target))] if cgr else []
        teachers += [(lam, model_logits(w, x).softmax(1))] if cgl else []  # eq. 9

        def eq5(D: Params, z: Tensor, k: int = k, theirs: dict[int, Tensor] = theirs) -> Tensor:
            value = -disc_logits(D, z).softmax(1)[:, label[k]].log().mean()
            for j, other in theirs.items():
                value = value - disc_logits(D, other).softmax(1)[:, label[j]].log().mean() / (
                    len(data) - 1
                )
            return value

        def eq12(
            theta: Params, x: Tensor = x, y: Tensor = d.y, k: int = k, teachers: Any = teachers
        ) -> Tensor:
            y_hat = model_logits(theta, x).softmax(1)
            value = -y_hat[torch.arange(len(y)), y].log().mean()
            if uad:
                d_hat = disc_logits(learnt[k], encoder_features(theta, x)).softmax(1)
                eq4 = -d_hat.log().sum(1).mean() / d_hat.shape[1]
                value = value + (eq4 / d_hat.shape[1] if reduction == "mean" else eq4)
            for weight, answer in teachers:  # eqs. 8 and 10
                apart = (
                    divergence(y_hat, answer)
                    if direction == "reverse"
                    else divergence(answer, y_hat)
                )
                value = value + weight * (apart / CLASSES if reduction == "mean" else apart)
            return value

        if uad and first:
            z = encoder_features(first_weights, x)
            learnt[k] = torch_sgd(partial(eq5, z=z), learnt[k], disc_passes, how)
        posteriors[k] = torch_sgd(eq12, first_weights, how.epochs, how)
        if uad and not first:
            z = encoder_features(posteriors[k], x)
            learnt[k] = torch_sgd(partial(eq5, z=z), learnt[k], disc_passes, how)
    return posteriors, learnt


def mean_of(models: Mapping[int, Params], sizes: Mapping[int, int]) -> Params:
    """sum_k n_k / n w_k, in double precision."""
    total = sum(sizes[k] for k in models)
    names = next(iter(models.values()))
    return {
        n: (
            sum(
                (sizes[k] / total * m[n].double() for k, m in models.items()), torch.zeros(())
            ).float()
        )
        for n in names
    }


# --- helpers


def party_data(i: int) -> Samples:
    """Party i has shifted inputs and twice as many samples of two of the classes 0, 1 and 2; no
    party has class 3.
    """
    n = SIZES[i % len(SIZES)]
    return Samples(
        noise(n, *SHAPE, seed=i + 1) + 0.4 * i,
        torch.tensor([(i + (k % 3 == 2)) % 3 for k in range(n)]),
    )


def game(
    fed: FedUad,
    parties: int = 5,
    participation: float = 0.6,
    how: Training = HOW,
    planned_rounds: int = 0,
) -> tuple[dict[int, Samples], LoopServer, Any]:
    """Parties and their server before round 1; with `planned_rounds` there is a stage one."""
    data = {i: party_data(i) for i in range(parties)}
    server, s = server_of(
        fed, task_of(MODEL, SHAPE, CLASSES), list(data.values()), how, participation
    )
    server.info = replace(server.info, rounds=planned_rounds)
    return data, server, s


class Wire:
    """Records of each call its round and function, the messages, the edges of its sealed messages
    and the replies.
    """

    def __init__(self, server: LoopServer) -> None:
        self.calls: list[
            tuple[int, str, dict[int, Any], list[tuple[int, int]], dict[int, Any]]
        ] = []
        function = server.engine.run

        def listening(
            call: Any, messages: Any, sealed_messages: Any
        ) -> Iterator[tuple[int, PartyResult]]:
            replies: dict[int, Any] = {}
            contents = {i: message.content for i, message in messages.items()}
            self.calls.append(
                (call.round, call.function, contents, sorted(sealed_messages), replies)
            )
            for i, answer in function(call, messages, sealed_messages):
                replies[i] = answer.reply
                yield i, answer

        server.engine.run = listening

    def functions(self, t: int) -> list[str]:
        return [function for when, function, *_ in self.calls if when == t]

    def group(self, t: int) -> list[int]:
        """The parties that replied to the round's last call."""
        return sorted([call for call in self.calls if call[0] == t][-1][4])

    def replies(self, t: int) -> dict[int, Both]:
        return [call for call in self.calls if call[0] == t][-1][4]


def digest(*trees: Params) -> str:
    parts = [k.encode() + v.numpy().tobytes() for tree in trees for k, v in sorted(tree.items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def party_function(fed: FedUad) -> Any:
    """The party function that trains the posterior, in stage two if there are two."""
    return getattr(fed, REFINE if isinstance(fed, FedUfo) else PLAIN)


def option_text(settings: Mapping[str, Any]) -> str:
    return ",".join(
        f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items()
    )


def text(name: str, settings: Mapping[str, Any]) -> str:
    return f"{name}({option_text(settings)})" if settings else name


@cache
def run_method(
    algorithm: str, model: str = MODEL, out: Path | None = None, parties: int = 4, **settings: Any
) -> comity.Result:
    shape = IMAGE if model.startswith("fedbn") else SHAPE
    usual: dict[str, Any] = {"rounds": 4, "batch": 4, "lr": 0.05, "engine": "loop"}
    fed = federation((11, 7, 9, 6, 8)[:parties], shape=shape)
    return comity.run(algorithm, fed, model=model, out=out, **(usual | settings))


def all_weights(result: comity.Result) -> list[Params]:
    return [result.model(name).theta for name in result.job.info.names]


# --- eq. 4: L_uniform


@pytest.mark.parametrize("K", [2, 5, 100])
def test_eq4_is_log_k_at_constant_logits_with_zero_gradient_and_more_elsewhere(K: int) -> None:
    constant = torch.full((7, K), 1.5, requires_grad=True)
    value = uniform_cross_entropy(constant)
    assert value.item() == pytest.approx(math.log(K), abs=2e-6)
    (grad,) = torch.autograd.grad(value, constant)
    assert grad.abs().max() < 1e-8
    for scale in (0.1, 1.0, 10.0):
        logits = (scale * noise(7, K, seed=K)).requires_grad_()
        value = uniform_cross_entropy(logits)
        assert value.item() > math.log(K) + 1e-4
        assert torch.autograd.grad(value, logits)[0].abs().max() > 1e-4


def test_eq4_by_hand() -> None:
    """d = (3/4, 1/4): -(log 3/4 + log 1/4) / 2 = 0.83699; with a row at log 2 the mean is 0.76507."""
    assert uniform_cross_entropy(torch.tensor([[math.log(3), 0.0]])).item() == pytest.approx(
        0.836988, abs=1e-5
    )
    assert uniform_cross_entropy(
        torch.tensor([[math.log(3), 0.0], [2.0, 2.0]])
    ).item() == pytest.approx(0.765068, abs=1e-5)


def _posterior(
    fed: FedUad, D: Params, how: Training, others: Mapping[int, Prior] | None = None
) -> tuple[Params, Both]:
    """w, and the reply of party 0 of 3 to D in a round in which it has a prior."""
    task, data = task_of(MODEL, SHAPE, CLASSES), party_data(0)
    w = task.init(Key(1))
    party = replace(party_of(task, data, how, parties=3), inbox=dict(others or {}))
    own = Prior({k: v + 0.1 for k, v in w.items()}, torch.tensor([8, 4, 0, 0]))
    return (
        w,
        run_call(party_function(fed)(FedUadState({}, w, own, {}), Both({}, D), party, Key(3)))[1],
    )


def _priors() -> dict[int, Prior]:
    task = task_of(MODEL, SHAPE, CLASSES)
    return {j: Prior(task.init(Key(10 + j)), torch.tensor([0, 5, j, 1])) for j in (1, 2)}


def test_eq4_gradient_goes_through_d_to_the_extractor_and_not_to_the_classifier() -> None:
    """One step: h_c is where CE alone would have it, h_e is not."""
    D = discriminator("shallow", WIDTH, WIDTH, 3).init(Key(2))
    once = Training(lr=0.5, batch=100)
    w, with_term = _posterior(FedUad(), {k: 4 * v for k, v in D.items()}, once, _priors())
    _, without = _posterior(FedUfo(**OFF), {}, once)
    for name in w:
        gap = (with_term.theta[name] - without.theta[name]).abs().max()
        assert gap < 1e-7 if name.startswith("fc3") else gap > 1e-4, name


def test_eq4_a_constant_discriminator_changes_nothing() -> None:
    D = {
        k: torch.zeros_like(v)
        for k, v in discriminator("shallow", WIDTH, WIDTH, 3).init(Key(2)).items()
    }
    _, with_term = _posterior(FedUad(disc_steps=0), D, HOW, _priors())
    _, without = _posterior(FedUfo(**OFF), {}, HOW)
    assert_near(with_term.theta, without.theta, 1e-6)


# --- eq. 5: the discriminator's loss


def _three_way() -> tuple[LearningTask, Params]:
    """A linear D on two values whose logits are (z_0, z_1, 0)."""
    return discriminator("linear", 2, 2, 3), {
        "out.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), "out.bias": torch.zeros(3),
    }  # fmt: skip


def test_eq5_by_hand() -> None:
    """Own: logits (0, log 2, 0), label 1, softmax (1/4, 1/2, 1/4): log 2. Party 0's: (log 3, 0,
    0): log 5/3. Party 2's: (0, 0, 0): log 3. Together log 2 + (log 5/3 + log 3) / 2 = log 2
    + log(5) / 2 = 1.49787.
    """
    disc, D = _three_way()
    own = Samples(torch.tensor([[0.0, math.log(2)]]), torch.tensor([0]))
    batch = batch_of(with_others(own, [torch.tensor([[math.log(3), 0.0]]), torch.zeros(1, 2)]))
    owners = Owners(torch.tensor(1), torch.tensor([0, 2]))
    assert tell_apart(disc, D, batch, owners).item() == pytest.approx(1.497866, abs=1e-5)


def test_eq5_other_extractors_use_the_same_samples() -> None:
    """A batch of samples 2 and 0 takes rows 2 and 0 of what the others made, and is a mean over the
    batch.
    """
    disc, D = _three_way()
    theirs = torch.tensor([[math.log(3), 0.0], [50.0, 50.0], [0.0, 0.0]])
    data = with_others(Samples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)), [theirs])
    all_batches = [batch for k in range(50) for batch in batches(data, Key(k), Training(batch=2))]
    batch = next(batch for batch in all_batches if batch.indices.tolist() == [2, 0])
    owners = Owners(torch.tensor(2), torch.tensor([0]))
    expected = math.log(3) + (math.log(5 / 3) + math.log(3)) / 2
    assert tell_apart(disc, D, batch, owners).item() == pytest.approx(expected, abs=1e-5)


def test_eq5_a_group_of_one_has_the_first_term_only() -> None:
    """No 1/(K_c - 1): log 2 as above."""
    disc, D = _three_way()
    own = Samples(torch.tensor([[0.0, math.log(2)]]), torch.tensor([0]))
    owners = Owners(torch.tensor(1), torch.zeros(0, dtype=torch.int64))
    assert tell_apart(disc, D, batch_of(with_others(own, [])), owners).item() == pytest.approx(
        math.log(2), abs=1e-6
    )


# --- eqs. 6 and 7: what the group expects


def test_eq7_shares_of_the_group_by_class() -> None:
    """Class 0: 3 and 1 of 4; class 1: the second party's only; class 2: no party has it, so 1/2
    each.
    """
    p = class_shares({4: torch.tensor([3, 0, 0]), 9: torch.tensor([1, 5, 0])})
    torch.testing.assert_close(p[4], torch.tensor([0.75, 0.0, 0.5]))
    torch.testing.assert_close(p[9], torch.tensor([0.25, 1.0, 0.5]))


def test_eq7_u9_a_class_that_nobody_has_is_shared_evenly() -> None:
    """Three parties without class 1: 1/3 each, and over any group the shares of every class add up
    to 1.
    """
    p = class_shares({j: torch.tensor([j, 0, 7]) for j in (1, 2, 3)})
    assert [p[j][1].item() for j in (1, 2, 3)] == pytest.approx([1 / 3] * 3)
    torch.testing.assert_close(sum(p.values()), torch.ones(3))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        # p_1 = (3/4, 0), p_2 = (1/4, 1); answers (3/4, 1/4) and (1/5, 4/5): v = (9/16 + 1/20, 4/5)
        # = (0.6125, 0.8).
        (
            "softmax",
            [1 / (1 + math.exp(0.8 - 0.6125)), 1 / (1 + math.exp(0.6125 - 0.8))],
        ),  # 0.45326, 0.54674
        ("l1", [0.6125 / 1.4125, 0.8 / 1.4125]),  # 0.43363, 0.56637
        # Logits (log 3, 0) and (0, log 4): their mean by p is (3/4 log 3, log 4), so odds of
        # 3^(3/4) to 4.
        ("logits", [3**0.75 / (3**0.75 + 4), 4 / (3**0.75 + 4)]),  # 0.36301, 0.63699
    ],
)
def test_eq7_target_of_two_parties_by_hand(target: str, expected: list[float]) -> None:
    logits = {0: torch.tensor([[math.log(3), 0.0]]), 1: torch.tensor([[0.0, math.log(4)]])}
    counts = {0: torch.tensor([3, 0]), 1: torch.tensor([1, 5])}
    assert consensus(logits, counts, target).exp()[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_eq7_u1_bounds_of_a_softmax_of_probabilities() -> None:
    """C = 10: no entry above e/(e + 9) = 0.2320 nor below 1/(1 + 9e) = 0.0393, and sure answers
    reach the upper bound.
    """
    low, high = 1 / (1 + 9 * math.e), math.e / (math.e + 9)
    counts = {
        j: torch.randint(0, 9, (10,), generator=torch.Generator().manual_seed(j)) for j in range(4)
    }
    for scale in (0.0, 1.0, 10.0, 1000.0):
        answers = consensus(
            {j: scale * noise(50, 10, seed=j) for j in range(4)}, counts, "softmax"
        ).exp()
        assert low - 1e-6 <= answers.min().item()
        assert answers.max().item() <= high + 1e-6
        torch.testing.assert_close(answers.sum(1), torch.ones(50))
    sure = consensus(
        {j: 1000 * F.one_hot(torch.arange(10), 10).float() for j in range(4)}, counts, "softmax"
    ).exp()
    torch.testing.assert_close(sure.diagonal(), torch.full((10,), high))
    opposed = 1000 * torch.eye(
        2
    )  # v = (1, 1, 0, ..., 0) where each is sure of what it alone has: the lowest is above `low`
    half = consensus(
        {j: F.pad(opposed[j : j + 1], (0, 8)) for j in (0, 1)},
        {0: torch.eye(10)[0], 1: torch.eye(10)[1]},
        "softmax",
    )
    assert half.exp()[0].tolist() == pytest.approx(
        [math.e / (2 * math.e + 8)] * 2 + [1 / (2 * math.e + 8)] * 8, abs=1e-6
    )
    nine = {
        j: 1000 * F.one_hot(torch.tensor([j]), 10).float() for j in range(9)
    }  # nine ones and a zero: the lower bound
    lowest = consensus(nine, {j: torch.eye(10)[j] for j in range(9)}, "softmax").exp()
    assert lowest[0, 9].item() == pytest.approx(low, abs=1e-6)


def test_eq7_equal_priors_agree_with_each_other() -> None:
    """Every class is there, so sum_j p_j = 1 and v is the common answer: l1 gives it back, softmax
    its softmax.
    """
    answer = 2 * noise(6, 10, seed=3)
    counts = {
        j: torch.randint(1, 9, (10,), generator=torch.Generator().manual_seed(j)) for j in range(3)
    }
    for target, expected in (
        ("l1", answer.softmax(1)),
        ("softmax", answer.softmax(1).softmax(1)),
        ("logits", answer.softmax(1)),
    ):
        answers = consensus(dict.fromkeys(range(3), answer), counts, target).exp()
        torch.testing.assert_close(answers, expected, rtol=0, atol=1e-6)


def test_eq7_a_group_of_one_expects_its_own_prior() -> None:
    """p = 1 for every class, those it does not have included."""
    answer = noise(6, CLASSES, seed=3)
    answers = consensus({7: answer}, {7: torch.tensor([5, 0, 2, 0])}, "softmax").exp()
    torch.testing.assert_close(answers, answer.softmax(1).softmax(1), rtol=0, atol=1e-6)


# --- eqs. 8 and 10: consensus


def test_eq8_kl_by_hand_in_its_direction() -> None:
    """p = (3/4, 1/4), q = (1/2, 1/2): KL(p || q) = 0.13081, KL(q || p) = 0.14384; a mean over rows."""
    p, q = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.5, 0.5]]).log()
    assert kl(p, q).item() == pytest.approx(0.130812, abs=1e-5)
    assert kl(q, p).item() == pytest.approx(0.143841, abs=1e-5)
    assert kl(torch.cat([p, q]), torch.cat([q, q])).item() == pytest.approx(0.065406, abs=1e-5)


def _teaching_batch(fed: FedUfo, state: FedUadState, party: Party) -> Batch:
    """All samples as in stage two's request for the posterior's training, which carries the
    teachers' answers.
    """
    function = fed.local(state, Both({}, {}), party, Key(0))
    request = function.send(None)
    function.close()
    assert isinstance(request, FitRequest)
    return batch_of(request.samples)


def _sure(*odds: float) -> Params:
    """A linear model that answers these odds for every input."""
    return {"fc.weight": torch.zeros(len(odds), 2), "fc.bias": torch.tensor(odds).log()}


@pytest.mark.parametrize("direction", ["reverse", "forward"])
@pytest.mark.parametrize("lam", [0.0, 1.0, 3.0])
def test_eq12_consensus_terms_by_hand(direction: Literal["reverse", "forward"], lam: float) -> None:
    """The posterior says (1/2, 1/2), w (3/4, 1/4); priors (3/4, 1/4) with counts (3, 0) and (1/5,
    4/5) with (1, 5), whose target is 0.43363 to 0.56637 by l1. CE = log 2; CGL 0.14384 or 0.13081;
    CGR 0.00889 or 0.00884.
    """
    task, x = task_of("linear", (2,), 2), noise(4, 2)
    prior = Prior(_sure(3, 1), torch.tensor([3, 0]))
    other = Prior(_sure(1, 4), torch.tensor([1, 5]))
    party = replace(
        party_of(task, Samples(x, torch.tensor([0, 0, 0, 1])), HOW, parties=2), inbox={1: other}
    )
    q = 0.6125 / 1.4125
    to_group = {"reverse": 0.5 * math.log(0.5 / q) + 0.5 * math.log(0.5 / (1 - q)),
                "forward": q * math.log(2 * q) + (1 - q) * math.log(2 * (1 - q))}[direction]  # fmt: skip
    to_global = {"reverse": 0.143841, "forward": 0.130812}[direction]
    theta = _sure(1, 1)
    cases: list[tuple[dict[str, Any], float]] = [
        ({}, to_group + lam * to_global), ({"cgr": False}, lam * to_global), ({"cgl": False}, to_group),
    ]  # fmt: skip
    for settings, expected in cases:
        fed = FedUfo(direction=direction, lam=lam, target="l1", **settings)
        batch = _teaching_batch(fed, FedUadState({}, _sure(3, 1), prior, {}), party)
        value = fed.objective(task, theta, task.features(theta, x), batch)
        assert value.item() == pytest.approx(math.log(2) + expected, abs=1e-5)
    assert to_group > 0.005


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_eq10_is_zero_with_zero_gradient_where_the_posterior_is_the_global_model(
    direction: Literal["reverse", "forward"],
) -> None:
    task, data = task_of(MODEL, SHAPE, CLASSES), party_data(1)
    w = {k: 2 * v for k, v in task.init(Key(1)).items()}
    fed = FedUfo(cgr=False, lam=100.0, direction=direction)
    batch = _teaching_batch(fed, FedUadState({}, w, None, {}), party_of(task, data, HOW))

    def term(theta: Params) -> tuple[float, float]:
        free = {k: v.clone().requires_grad_() for k, v in theta.items()}
        ce = F.cross_entropy(model_logits(free, data.x), data.y)
        value = fed.objective(task, free, task.features(free, data.x), batch) - ce
        grads = torch.autograd.grad(value, list(free.values()))
        return value.item(), max(g.abs().max().item() for g in grads)

    assert term(w) == (pytest.approx(0, abs=1e-5), pytest.approx(0, abs=1e-5))
    value, slope = term({k: v + 0.1 for k, v in w.items()})
    assert value > 0.01
    assert slope > 0.01


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_eq10_the_first_step_of_a_round_is_fedavgs(
    direction: Literal["reverse", "forward"],
) -> None:
    """One full batch: lambda = 1000 changes nothing; from the second step on it does."""
    for epochs, equal in ((1, True), (2, False)):
        how = Training(lr=1e-3, batch=100, epochs=epochs)
        ends = []
        for fed in (FedUfo(uad=False, cgr=False, lam=1000.0, direction=direction), FedUfo(**OFF)):
            _, server, s = game(fed, 3, 1.0, how)
            ends.append(rounds(fed, server, s, 1).w)
        assert (distance(*ends) < 1e-6) == equal


def test_eq8_and_eq10_teachers_answer_in_evaluation_mode() -> None:
    """With BatchNorm: the posterior's answers are those of a training pass, the teachers' are not."""
    task, data = task_of(BATCHNORM, IMAGE, CLASSES), samples(8, IMAGE, CLASSES, seed=4)
    w, first, second, theta = (task.init(Key(k)) for k in (1, 2, 3, 4))
    before = digest(w, first, second)
    party = replace(
        party_of(task, data, HOW, parties=2), inbox={1: Prior(second, torch.tensor([2, 2, 2, 2]))}
    )
    fed = FedUfo(lam=2.0)
    batch = _teaching_batch(
        fed, FedUadState({}, w, Prior(first, torch.tensor([2, 2, 2, 2])), {}), party
    )
    fresh = {k: v.clone() for k, v in theta.items()}
    z = task.features(fresh, data.x, train=True)
    value = fed.objective(task, fresh, z, batch).item()
    fresh = {k: v.clone() for k, v in theta.items()}
    y_hat = task.head(fresh, task.features(fresh, data.x, train=True), train=True).softmax(1)
    mean_answers = torch.cat(
        [
            (task.logits(first, row[None]).softmax(1) + task.logits(second, row[None]).softmax(1))
            / 2
            for row in data.x
        ]
    )
    at_w = torch.cat([task.logits(w, row[None]).softmax(1) for row in data.x])
    expected = (
        F.cross_entropy(y_hat.log(), data.y)
        + divergence(y_hat, mean_answers.softmax(1))
        + 2 * divergence(y_hat, at_w)
    )
    assert value == pytest.approx(expected.item(), abs=1e-5)
    assert digest(w, first, second) == before, "running statistics do not change"


# --- figure 2: whole rounds

SWITCHES = [
    dict(zip(("uad", "cgr", "cgl"), on, strict=True))
    for on in itertools.product((True, False), repeat=3)
]
ROUNDS: list[dict[str, Any]] = [
    *SWITCHES, {"lam": 0.0}, {"lam": 10.0}, {"target": "l1"}, {"target": "logits"}, {"direction": "forward"},
    {"direction": "forward", "target": "l1", "lam": 1.0}, {"disc": "mlp"}, {"disc": "linear"}, {"disc_steps": 0},
    {"disc_steps": 2}, {"disc_steps": "epochs"}, {"outputs": "group"}, {"outputs": "group", "disc_state": "local", "disc_steps": 2},
    {"disc_state": "local"}, {"disc_state": "local", "disc_steps": "epochs", "disc_epochs": 2}, {"disc_state": "fresh"},
    {"disc_state": "fresh", "disc_steps": 4, "disc": "mlp"}, {"cgr_weight": 0.0}, {"cgr_weight": 2.5, "cgl": False},
    {"reduction": "mean"}, {"reduction": "mean", "direction": "forward", "target": "l1", "cgr_weight": 7.0},
    {"reduction": "mean", "outputs": "group", "lam": 20.0}, {"begin": "prior"}, {"begin": "prior", "disc_state": "fresh"},
    {"begin": "prior", "uad": False, "cgl": False}, {"begin": "prior", "reduction": "mean", "direction": "forward"},
]  # fmt: skip


def _by_hand(
    fed: FedUad, data: Mapping[int, Samples], server: LoopServer, s: Any, t: int, **stage: Any
) -> tuple[Any, Any]:
    """The posteriors and Ds of round t from the state before it, by `paper_round`; `stage` says
    what a stage leaves out.
    """
    group = server.sample(t)
    where = "fresh" if fed.outputs == "group" else fed.disc_state
    label = {k: j if fed.outputs == "group" else k for j, k in enumerate(group)}
    Ds: dict[int, Params] = {k: {} for k in group}
    if fed.uad and where == "fresh":
        fresh = discriminator(
            fed.disc, WIDTH, WIDTH, len(group) if fed.outputs == "group" else len(server.info.names)
        )
        Ds = {
            k: fresh.init(ROOT.fold("party", k, t, party_function(fed).__name__, 0).fold("fresh"))
            for k in group
        }
    elif fed.uad:
        Ds = {k: s.D if where == "federated" else server.state(k).D for k in group}
    names = (
        "uad",
        "cgr",
        "cgl",
        "lam",
        "target",
        "direction",
        "cgr_weight",
        "reduction",
        "begin",
    )
    settings = {n: getattr(fed, n) for n in names if hasattr(fed, n)} | stage
    # A batch has all samples, so a step is a pass.
    named = {"party": HOW.epochs, "epochs": fed.disc_epochs}
    steps = fed.disc_steps
    settings["disc_passes"] = named[steps] if isinstance(steps, str) else steps
    return paper_round(
        {k: data[k] for k in group}, s.w, Ds, label, first=where == "fresh", **settings
    )


@pytest.mark.sweep("disc_state=", "lam=10.0")
@pytest.mark.slow
@pytest.mark.parametrize("settings", ROUNDS, ids=option_text)
def test_eq12_rounds_written_out(settings: dict[str, Any]) -> None:
    """Three of five parties, three rounds: priors, exchange, posteriors, D, averages."""
    fed = FedUfo(dynamic="off", **settings)
    data, server, s = game(fed)
    sizes, wire = dict(enumerate(SIZES)), Wire(server)
    where = ("fresh" if fed.outputs == "group" else fed.disc_state) if fed.uad else "nowhere"
    for t in (1, 2, 3):
        group, discs_before = server.sample(t), {i: server.state(i).D for i in range(5)}
        posteriors, Ds = _by_hand(fed, data, server, s, t)
        s = rounds(fed, server, s, 1, first=t)
        assert wire.group(t) == group
        assert len(group) == 3
        for k, reply in wire.replies(t).items():
            assert_near(reply.theta, posteriors[k])
        assert_near(s.w, mean_of(posteriors, sizes))
        assert_near(s.D, mean_of(Ds, sizes) if where == "federated" else {})
        for i in range(5):
            assert server.state(i).w == {}, "w and priors are not kept after a round"
            assert server.state(i).prior is None
            if where == "local" and i in group:
                assert_near(server.state(i).D, Ds[i])
            else:
                assert same(server.state(i).D, discs_before[i]), "the absent keep their own"
    assert (where == "local") == bool(server.state(0).D)


@pytest.mark.parametrize("epochs", [1, 4])
def test_figure2_two_parties_one_batch(epochs: int) -> None:
    """The simplest round: all parties, all three terms, plain SGD; then a second round from its
    result.
    """
    fed, how = FedUfo(), Training(lr=0.1, batch=100, epochs=epochs)
    data, server, s = game(fed, 2, 1.0, how)
    for t in (1, 2):
        posteriors, Ds = paper_round(
            data, s.w, {0: s.D, 1: s.D}, {0: 0, 1: 1}, how=how, disc_passes=epochs
        )
        plain, _ = paper_round(
            data, s.w, {0: s.D, 1: s.D}, {0: 0, 1: 1}, how=how, uad=False, cgr=False, cgl=False
        )
        s = rounds(fed, server, s, 1, first=t)
        assert_near(s.w, mean_of(posteriors, {0: 12, 1: 9}))
        assert_near(s.D, mean_of(Ds, {0: 12, 1: 9}))
        assert distance(posteriors[0], plain[0]) > 1e-3, "the terms matter"


def test_figure2_a_group_of_one() -> None:
    """K_c = 1: no 1/(K_c - 1), the group's answer is the own prior's; one of three parties."""
    fed = FedUfo(dynamic="off")
    data, server, s = game(fed, 3, 0.3)
    for t in (1, 2):
        (k,) = server.sample(t)
        posteriors, Ds = _by_hand(fed, data, server, s, t)
        s = rounds(fed, server, s, 1, first=t)
        assert_near(s.w, posteriors[k])
        assert_near(s.D, Ds[k])
        assert all(v.isfinite().all() for v in (*s.w.values(), *s.D.values()))


@pytest.mark.parametrize("outputs", ["all", "group"])
@pytest.mark.parametrize("disc_state", ["federated", "local", "fresh"])
@pytest.mark.parametrize("more", [{}, {"reduction": "mean", "begin": "prior"}], ids=str)
def test_feduad_rounds_written_out(
    outputs: Literal["all", "group"],
    disc_state: Literal["federated", "local", "fresh"],
    more: dict[str, Any],
) -> None:
    """Eq. 11: CE + L_uniform."""
    fed = FedUad(outputs=outputs, disc_state=disc_state, **more)
    data, server, s = game(fed)
    for t in (1, 2):
        posteriors, _ = _by_hand(fed, data, server, s, t, cgr=False, cgl=False)
        s = rounds(fed, server, s, 1, first=t)
        assert_near(s.w, mean_of(posteriors, dict(enumerate(SIZES))))


# --- every option

OTHERS: dict[str, list[Any]] = {
    "uad": [False], "cgr": [False], "cgl": [False], "lam": [0.0, 10.0], "stage_one": [0.0, 0.25, 1.0],
    "dynamic": ["fresh", "off"], "target": ["l1", "logits"], "direction": ["forward"], "outputs": ["group"],
    "disc": ["mlp", "linear"], "disc_state": ["local", "fresh"], "disc_steps": [0, 3, "epochs"], "disc_epochs": [3],
    "alternate": ["batch"], "server_lr": [0.5], "server_momentum": [0.9], "weight": [0.0, 0.1],
    "cgr_weight": [0.0, 3.0], "reduction": ["mean"], "begin": ["prior"],
}  # fmt: skip


def test_every_option_is_in_this_file() -> None:
    """A new option, or a new value of one, needs a test."""
    for name in ("fedufo", "feduad"):
        known_options = options(find(name))
        assert set(known_options) == set(OTHERS) - (set(OWN) if name == "feduad" else set())
        for option in known_options.values():
            values = {
                value
                for kind in (option.kind, *getattr(option.kind, "__args__", ()))
                for value in getattr(kind, "__args__", ())
                if isinstance(value, str)
            }
            assert values <= {option.default, *OTHERS[option.name]}, option.name


@pytest.mark.sweep("uad-False", "server_lr", "disc_state-local")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in OTHERS.items() for value in values]
)
def test_no_option_is_without_effect(name: str, value: Any) -> None:
    """Half of the parties a round: other weights than by the defaults, and finite ones."""
    how = {"parties": 5, "participation": 0.6, "seed": 1, "rounds": 8 if name == "dynamic" else 4}
    begin: dict[str, Any] = {"stage_one": 0.0} if name == "dynamic" else {}
    if name.startswith("disc_"):  # with one epoch, a pass would be as many steps as a party takes
        how["epochs"] = 2
    if name == "disc_epochs":
        begin = {"disc_steps": "epochs"}
    for method in ("fedufo", "feduad") if name not in OWN else ("fedufo",):
        usual, other = (
            run_method(text(method, settings), **how)
            for settings in (begin, {**begin, name: value})
        )
        assert distance(usual.model("p0").theta, other.model("p0").theta) > 1e-6
        assert all(v.isfinite().all() for v in other.model("p0").theta.values())


# --- reductions


@pytest.mark.sweep("1.0-all", "0.5-none")
@pytest.mark.slow
@pytest.mark.parametrize("bn", ["all", "params_only", "none"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_all_extras_off_is_fedavg_bit_for_bit(participation: float, bn: str) -> None:
    """Dynamic sampling goes with CGL, so the default of `dynamic` is off here, too."""
    theirs = run_method("fedavg", BATCHNORM, participation=participation, bn=bn)
    for settings in (OFF, {n: v for n, v in OFF.items() if n != "dynamic"}):
        ours = run_method(text("fedufo", settings), BATCHNORM, participation=participation, bn=bn)
        assert all(map(same, all_weights(ours), all_weights(theirs)))
        assert ours.metrics == theirs.metrics
        assert ours.ledger == theirs.ledger
        assert ours.summary["steps"] == theirs.summary["steps"]


def test_a_weight_of_zero_leaves_fedavg() -> None:
    """D is trained, but has no effect. All samples are in one batch, because the posterior's
    batches are drawn separately.
    """
    theirs = run_method("fedavg", batch=1000).model("p0").theta
    far = [
        distance(run_method(f"feduad(weight={w})", batch=1000).model("p0").theta, theirs)
        for w in (0, 0.01, 0.1)
    ]
    assert far[0] < 1e-6 < far[1] < far[2]


@pytest.mark.parametrize("alternate", ["round", "batch"])
def test_a_mean_is_a_sum_with_smaller_weights(alternate: str) -> None:
    """C = 3 classes and K = 4 parties: CGR and λ are divided by 3, L_uni by 4. The usual losses'
    default would be this.
    """
    means = run_method(
        f"fedufo(alternate={alternate},reduction=mean,lam=3,cgr_weight=2,weight=0.5,stage_one=0.25)"
    )
    sums = run_method(
        f"fedufo(alternate={alternate},lam=1,cgr_weight={2 / 3},weight=0.125,stage_one=0.25)"
    )
    assert_near(means.model("p0").theta, sums.model("p0").theta, 1e-6)
    with_mean, with_sum = (
        run_method(f"feduad(alternate={alternate},{how})").model("p0").theta
        for how in ("reduction=mean", "weight=0.25")
    )
    assert_near(with_mean, with_sum, 1e-6)
    y_hat, teacher = (noise(5, 3, seed=k).softmax(1) for k in (1, 2))
    library = F.kl_div(
        y_hat.log(), teacher, reduction="none"
    ).mean()  # KL(teacher ‖ ŷ) over all 5 · 3 values
    assert (kl(teacher.log(), y_hat.log()) / 3).item() == pytest.approx(library.item(), rel=1e-5)


def test_begin_prior_needs_a_prior() -> None:
    with pytest.raises(UsageError, match="begin=prior needs priors"):
        run_method("fedufo(uad=false,cgr=false,begin=prior)")


FEDUAD = [
    {},
    {"participation": 0.5},
    {"participation": 0.5, "disc_state": "local"},
    {"outputs": "group"},
    {"alternate": "batch"},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", FEDUAD, ids=str)
@pytest.mark.parametrize("stage_one", [0.0, 0.5])
def test_feduad_is_fedufo_without_consensus_bit_for_bit(
    settings: dict[str, Any], stage_one: float
) -> None:
    """With CGR and CGL off both stages minimise eq. 11."""
    theirs = run_method("feduad", **settings)
    ours = run_method(f"fedufo(cgr=false,cgl=false,dynamic=off,stage_one={stage_one})", **settings)
    assert all(map(same, all_weights(ours), all_weights(theirs)))
    assert ours.metrics == theirs.metrics
    assert [r[2:] for r in ours.ledger] == [r[2:] for r in theirs.ledger]


def test_feduad_is_the_first_stage_of_fedufo_bit_for_bit() -> None:
    """Table 1: FedUAD is the model after stage one."""
    theirs, ours = run_method("feduad"), run_method("fedufo(stage_one=1,dynamic=off)")
    assert all(map(same, all_weights(ours), all_weights(theirs)))


def test_feduad_is_the_first_stage_of_fedufo_with_the_same_parties() -> None:
    """Section 3.3.2: dynamic sampling is adopted together with the CGL loss, which stage one does
    not have.
    """
    fed = FedUfo(stage_one=1.0)
    _, server, s = game(fed, 5, 0.6, planned_rounds=6)
    wire = Wire(server)
    rounds(fed, server, s, 6)
    assert [wire.group(t) for t in range(1, 7)] == [server.sample(t) for t in range(1, 7)]


# --- section 3.4: the two stages


@pytest.mark.sweep("-True")
@pytest.mark.slow
@pytest.mark.parametrize("uad", [True, False])
@pytest.mark.parametrize(
    ("stage_one", "first"), [(0.0, 0), (0.25, 1), (0.3, 1), (0.5, 2), (0.99, 3), (1.0, 4)]
)
def test_stage_one_is_a_share_of_the_rounds(stage_one: float, first: int, uad: bool) -> None:
    """Of four rounds the first call `align`; without UAD there is none."""
    result = run_method(text("fedufo", {"stage_one": stage_one, "uad": uad}))
    for t in (1, 2, 3, 4):
        functions = {row.call for row in result.ledger if row.round == t and row.kind == "up"}
        assert functions == {ALIGN if uad and t <= first else REFINE}


@pytest.mark.parametrize(
    ("share", "planned_rounds", "last"), [(0.29, 100, 29), (0.58, 50, 29), (0.57, 100, 57)]
)
def test_stage_one_ends_at_the_exact_product_of_share_and_rounds(
    share: float, planned_rounds: int, last: int
) -> None:
    fed = FedUfo(stage_one=share)
    _, server, s = game(fed, 2, 1.0, planned_rounds=planned_rounds)
    wire = Wire(server)
    rounds(fed, server, s, 1, first=last)
    assert wire.functions(last) == ["prior", ALIGN]


def test_stage_one_has_eq11_and_stage_two_eq12_from_its_w_and_d() -> None:
    """Four rounds, half of them in stage one: the same w and D go on."""
    fed = FedUfo(dynamic="off")
    data, server, s = game(fed, planned_rounds=4)
    wire = Wire(server)
    for t in (1, 2, 3, 4):
        both = [_by_hand(fed, data, server, s, t, cgr=on, cgl=on) for on in (False, True)]
        assert distance(both[0][0][server.sample(t)[0]], both[1][0][server.sample(t)[0]]) > 1e-3
        posteriors, Ds = both[t > 2]
        s = rounds(fed, server, s, 1, first=t)
        assert wire.functions(t) == ["prior", ALIGN if t <= 2 else REFINE]
        assert_near(s.w, mean_of(posteriors, dict(enumerate(SIZES))))
        assert_near(s.D, mean_of(Ds, dict(enumerate(SIZES))))


@pytest.mark.parametrize("on", SWITCHES, ids=option_text)
def test_calls_of_a_round(on: dict[str, Any]) -> None:
    """Priors are made and swapped for UAD and CGR only; every party of the group sends its prior to
    every other.
    """
    fed = FedUfo(dynamic="off", **on)
    _, server, s = game(fed, 4, 1.0)
    wire = Wire(server)
    rounds(fed, server, s, 1)
    exchange = on["uad"] or on["cgr"]
    *before, posterior = wire.functions(1)
    assert before == (["prior"] if exchange else [])
    assert posterior == REFINE or (
        posterior == ALIGN and on == {"uad": True, "cgr": False, "cgl": False}
    )
    assert wire.calls[-1][3] == (sorted(itertools.permutations(range(4), 2)) if exchange else [])
    assert all(bool(reply.D) == on["uad"] for reply in wire.replies(1).values())
    assert all(reply.accuracy is None for reply in wire.replies(1).values())


# --- section 3.4: what is frozen when


@pytest.mark.parametrize("alternate", ["round", "batch"])
def test_stage_two_leaves_teachers_priors_and_messages_unchanged(
    alternate: Literal["round", "batch"],
) -> None:
    """BatchNorm, whose running statistics a training pass would move; nothing asks for gradients
    afterwards.
    """
    task, data = task_of(BATCHNORM, IMAGE, CLASSES), samples(12, IMAGE, CLASSES, seed=4)
    w, own, first, second = (task.init(Key(k)) for k in (1, 2, 3, 4))
    D = discriminator("shallow", task.width, task.width, 3).init(Key(5))
    counts = torch.tensor([3, 3, 3, 3])
    inbox = {1: Prior(first, counts), 2: Prior(second, counts)}
    party = replace(
        party_of(task, data, Training(lr=0.05, batch=5, epochs=2, min_batch=2), parties=3),
        inbox=inbox,
    )
    before = digest(w, own, first, second, D, {"x": data.x, "counts": counts})
    state = FedUadState({}, w, Prior(own, counts), {})
    _, reply = run_call(
        party_function(FedUfo(alternate=alternate))(state, Both({}, D), party, Key(6))
    )
    assert digest(w, own, first, second, D, {"x": data.x, "counts": counts}) == before
    assert not any(
        v.requires_grad
        for tree in (w, own, first, second, D, reply.theta, reply.D)
        for v in tree.values()
    )
    assert not same(reply.theta, w)
    assert not same(reply.D, D)


def test_stage_one_d_is_fixed_while_h_learns_and_h_while_d_learns() -> None:
    """Without passes of D it is as it came, so h's epochs did not touch it; with them h ends where
    it did without.
    """
    D = discriminator("shallow", WIDTH, WIDTH, 3).init(Key(2))
    for make in (FedUad, FedUfo):
        still, with_passes = (_posterior(make(disc_steps=e), D, HOW, _priors())[1] for e in (0, 5))
        assert same(still.D, D)
        assert not same(with_passes.D, D)
        assert same(still.theta, with_passes.theta)


# --- section 3.3.2: dynamic sampling


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "n"), [(1, 1), (1, 6), (2, 6), (5, 6), (5, 12), (6, 6), (10, 100)]
)
def test_dynamic_sampling_takes_the_worst_half(count: int, n: int) -> None:
    """K_c different parties, floor(K_c / 2) of them the worst; the others are drawn from all the
    rest.
    """
    scores = {k: ((k * 7) % n) / n for k in range(n)}
    worst = sorted(scores, key=scores.__getitem__)[: count // 2]
    counts: Counter[int] = Counter()
    for seed in range(200):
        group = with_the_worst(count, n, scores, Key(seed))
        assert len(group) == len(set(group)) == count
        assert set(worst) <= set(group) <= set(range(n))
        counts.update(group)
    others = [counts[k] for k in range(n) if k not in worst]
    share = (count - count // 2) / (n - count // 2)
    spread = 4.5 * (200 * share * (1 - share)) ** 0.5
    assert all(abs(k - 200 * share) <= spread for k in others), "the rest at random"


@pytest.mark.slow
def test_dynamic_sampling_takes_the_never_seen_first() -> None:
    """Parties 2 and 5 are unknown, and 0 is at nothing: of four places two are by score, three of
    six.
    """
    scores = {0: 0.0, 1: 0.9, 3: 0.8, 4: 0.1}
    for seed in range(30):
        assert {2, 5} <= set(with_the_worst(4, 6, scores, Key(seed)))
        assert {2, 5, 0} <= set(with_the_worst(6, 6, scores, Key(seed)))
    thirds = {tuple(set(with_the_worst(4, 6, scores, Key(seed))) - {2, 5}) for seed in range(60)}
    assert len(thirds) == 6, "all pairs of the other four"
    unknown = {tuple(with_the_worst(2, 6, {}, Key(seed))) for seed in range(200)}
    assert len(unknown) == 15, "among the unknown any"


def _accuracy(w: Params, data: Samples) -> float:
    return (model_logits(w, data.x).argmax(1) == data.y).double().mean().item()


@pytest.mark.sweep("fresh-uad=false", "last-")
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"uad": False}, {"uad": False, "cgr": False}], ids=option_text
)
@pytest.mark.parametrize("dynamic", ["last", "fresh"])
def test_dynamic_sampling_over_a_run(
    dynamic: Literal["last", "fresh"], settings: dict[str, Any]
) -> None:
    """Eight parties, four a round: the two of lowest accuracy of w on their training data, as of
    their last round or now.
    """
    fed = FedUfo(dynamic=dynamic, stage_one=0.0, **settings)
    data, server, s = game(fed, 8, 0.5, Training(lr=0.1, batch=5), planned_rounds=12)
    wire = Wire(server)
    last_accuracy: dict[int, float] = {}
    unlike_sample, not_the_worst = 0, 0
    for t in range(1, 13):
        now = {i: _accuracy(s.w, d) for i, d in data.items()}
        scores = {i: last_accuracy.get(i, -1.0) for i in data} if dynamic == "last" else now
        s = rounds(fed, server, s, 1, first=t)
        group = wire.group(t)
        assert len(set(group)) == 4
        assert sorted(scores[i] for i in group)[:2] == sorted(scores.values())[:2], (
            "the two worst, whoever wins a tie"
        )
        unlike_sample += group != server.sample(t)
        not_the_worst += sorted(scores[i] for i in group) != sorted(scores.values())[:4]
        last_accuracy |= {i: now[i] for i in group}
        if dynamic == "last":
            assert {i: r.accuracy for i, r in wire.replies(t).items()} == pytest.approx(
                {i: now[i] for i in group}
            )
            assert s.accuracy == pytest.approx(last_accuracy)
            assert "look" not in wire.functions(t)
        else:
            _, function, messages, _, looks = next(call for call in wire.calls if call[0] == t)
            assert (function, list(messages)) == ("look", list(range(8)))
            assert looks == pytest.approx(now)
            assert all(r.accuracy is None and r.theta for r in wire.replies(t).values())
            assert not any(
                m.theta
                for when, w, mail, *_ in wire.calls
                if when == t and w != "look"
                for m in mail.values()
            )
    assert unlike_sample > 3
    assert not_the_worst > 3, "half of the group is drawn at random"
    assert dynamic == "fresh" or set(last_accuracy) == set(range(8)), (
        "no party is left out for long"
    )


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", ["last", "fresh"])
def test_section332_dynamic_sampling_comes_with_cgl_in_stage_two(
    dynamic: Literal["last", "fresh"],
) -> None:
    fed = FedUfo(dynamic=dynamic)
    _, server, s = game(fed, 8, 0.5, Training(lr=0.1, batch=5), planned_rounds=16)
    wire = Wire(server)
    rounds(fed, server, s, 16)
    usual = [wire.group(t) == server.sample(t) for t in range(1, 17)]
    assert all(usual[:8])
    assert not all(usual[8:])
    assert [("look" in wire.functions(t)) for t in range(1, 17)] == [False] * 8 + [
        dynamic == "fresh"
    ] * 8


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_bytes_of_fresh_looks_come_with_stage_two(participation: float) -> None:
    result = run_method("fedufo(dynamic=fresh)", participation=participation, rounds=4)
    _, traffic_by_round = plan.traffic(result.job)
    for t in (1, 2, 3, 4):
        assert _bytes_by_kind(result, t) == {
            kind: size for kind, size in vars(traffic_by_round[t - 1]).items() if size
        }
    assert traffic_by_round[2].up == traffic_by_round[1].up + 4 * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"dynamic": "off"}, {"cgl": False}, {"cgl": False, "dynamic": "fresh"}],
    ids=option_text,
)
def test_sampling_is_uniform_if_dynamic_is_off_or_without_cgl(settings: dict[str, Any]) -> None:
    fed = FedUfo(**settings)
    _, server, s = game(fed, 8, 0.5, Training(lr=0.1, batch=5), planned_rounds=4)
    wire = Wire(server)
    s = rounds(fed, server, s, 4)
    for t in (1, 2, 3, 4):
        assert wire.group(t) == server.sample(t)
        assert "look" not in wire.functions(t)
    assert s.accuracy == {}


@pytest.mark.slow
def test_dynamic_sampling_fresh_looks_change_only_who_takes_part() -> None:
    """If all parties take part, they hold w already: the same weights bit for bit."""
    usual = run_method("fedufo(dynamic=off)")
    for dynamic in ("last", "fresh"):
        assert all(
            map(same, all_weights(run_method(f"fedufo(dynamic={dynamic})")), all_weights(usual))
        )


# --- parties that do not answer


def _silence_party(server: LoopServer, name: str, who: int, when: int) -> None:
    """Party `who` is not reached by the call of `name` in round `when`."""
    function = server.engine.run

    def without(
        call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[tuple[int, PartyResult]]:
        silent = who if (call.function, call.round) == (name, when) else -1
        messages = {i: m for i, m in messages.items() if i != silent}
        return function(
            call, messages, {e: p for e, p in sealed_messages.items() if e[1] != silent}
        )

    server.engine.run = without


@pytest.mark.parametrize("outputs", ["all", "group"])
def test_a_party_without_a_prior_is_out_of_the_round(outputs: Literal["all", "group"]) -> None:
    """Party 1 of four is silent: the round is that of the three others, K_c - 1 = 2."""
    fed = FedUfo(dynamic="off", outputs=outputs)
    data, server, s = game(fed, 4, 1.0)
    _silence_party(server, "prior", 1, 1)
    wire, group = Wire(server), [0, 2, 3]
    expected = game(fed, 4, 1.0)[1]
    expected.sample = lambda t: group
    posteriors, _ = _by_hand(fed, data, expected, s, 1)
    s = rounds(fed, server, s, 1)
    assert sorted(wire.calls[-1][2]) == group
    assert_near(s.w, mean_of(posteriors, dict(enumerate(SIZES))))


@pytest.mark.parametrize("missed", [1, 2, 3])
def test_a_party_that_missed_a_fresh_look_does_not_train_an_old_model(missed: int) -> None:
    """It stays out of the round, or is sent w now; it holds none, or that of an earlier round."""
    fed = FedUfo(dynamic="fresh", uad=False, cgr=False)
    for who in range(4):
        _, server, s = game(fed, 4, 0.5, Training(lr=1e-30, batch=100))
        _silence_party(server, "look", who, missed)
        wire = Wire(server)
        for t in range(1, missed + 1):
            s = replace(s, w={k: v + 1 for k, v in s.w.items()})  # each round has a w of its own
            w, s = s.w, rounds(fed, server, s, 1, first=t)
        assert all(same(reply.theta, w) for reply in wire.replies(missed).values())


# --- a wrapper's terms


def test_eq12_classification_loss_is_the_tasks() -> None:
    """L_cls is the task's criterion, where wrappers add their terms: 5 more here, in both stages."""

    class Dearer(LearningTask):
        def criterion(self, logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            return super().criterion(logits, z, batch) + 5.0

    usual, data = task_of(MODEL, SHAPE, CLASSES), party_data(0)
    theta = usual.init(Key(1))
    values = []
    for task in (usual, Dearer(usual.network, CLASSES, usual.cut)):
        fed = FedUfo(cgr=False)
        batch = _teaching_batch(fed, FedUadState({}, theta, None, {}), party_of(task, data, HOW))
        values.append(fed.objective(task, theta, task.features(theta, data.x), batch).item())
    assert values[1] - values[0] == pytest.approx(5.0, abs=1e-5)


# --- the discriminator


@pytest.mark.parametrize(
    ("disc", "layers"),
    [("linear", ("out",)), ("shallow", ("fc1", "out")), ("mlp", ("fc1", "fc2", "out"))],
)
def test_section411_layers_of_the_discriminator(
    disc: Literal["linear", "shallow", "mlp"], layers: tuple[str, ...]
) -> None:
    """Two FC layers, the first as wide as its input (200 on MNIST), K = 100 outputs; three for
    re-identification; or one.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for name in layers:
        shape = (100 if name == "out" else 200, 200)
        expected |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    D = FedUad(disc=disc).discriminator(200, 100).init(Key(0))
    assert {k: tuple(v.shape) for k, v in D.items()} == expected
    z = noise(4, 200)
    torch.testing.assert_close(
        FedUad(disc=disc).discriminator(200, 100).logits(D, z), disc_logits(D, z), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("outputs", "count"), [("all", 5), ("group", 3)])
def test_eq2_outputs_and_labels_of_the_discriminator(
    outputs: Literal["all", "group"], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K = 5 outputs under the parties' own numbers, or K_c = 3 in the order of the group."""
    calls = []

    def recording_loss(disc: LearningTask, D: Params, batch: Batch, owners: Owners) -> Tensor:
        calls.append((disc.classes, owners.me.item(), sorted(owners.others.tolist())))
        return tell_apart(disc, D, batch, owners)

    monkeypatch.setattr("comity.algorithms.feduad.tell_apart", recording_loss)
    fed = FedUfo(outputs=outputs, dynamic="off", disc_steps=1)
    _, server, s = game(fed)
    rounds(fed, server, s, 1)
    group = server.sample(1)
    assert group != [0, 1, 2]
    names = group if outputs == "all" else [0, 1, 2]
    assert calls == [(count, me, [j for j in names if j != me]) for me in names]


def test_u4_federated_d_is_the_weighted_average_of_the_groups() -> None:
    fed = FedUfo(dynamic="off")
    _, server, s = game(fed, how=Training(lr=0.1, batch=4))
    wire = Wire(server)
    for t in (1, 2):
        sent_D = s.D
        s = rounds(fed, server, s, 1, first=t)
        messages = wire.calls[-1][2]
        assert all(same(message.D, sent_D) for message in messages.values())
        replies = wire.replies(t)
        n = sum(SIZES[k] for k in replies)
        for name in s.D:
            expected = sum(SIZES[k] * r.D[name].double() for k, r in replies.items()) / n
            torch.testing.assert_close(s.D[name].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("where", ["local", "fresh", "group"])
def test_u4_a_d_that_is_not_averaged_does_not_travel(
    where: Literal["local", "fresh", "group"],
) -> None:
    """A local D stays at its party from round to round; a fresh one, or one of the group, leaves no
    trace.
    """
    fed = (
        FedUfo(dynamic="off", outputs="group")
        if where == "group"
        else FedUfo(dynamic="off", disc_state=where)
    )
    _, server, s = game(fed)
    wire = Wire(server)
    before = [server.state(i).D for i in range(5)]
    assert all(same(D, before[0]) for D in before), "all begin with one"
    for t in (1, 2, 3):
        s = rounds(fed, server, s, 1, first=t)
        assert s.D == {}
        after = [server.state(i).D for i in range(5)]
        for i in range(5):
            changed = not same(after[i], before[i])
            assert changed == (where == "local" and i in server.sample(t))
        before = after
    assert all(message.D == {} for *_, mail, _, replies in wire.calls for message in (*mail.values(), *replies.values())
               if isinstance(message, Both))  # fmt: skip
    assert bool(before[0]) == (where == "local")


# --- alternate=batch


def _alternating(momentum: float, weight: float = 1.0) -> tuple[Both, Params, Params]:
    """What FedUAD's posterior comes to with D at each batch, and the same by a loop of two of
    torch's optimizers.
    """
    how = Training(lr=0.2, momentum=momentum, batch=5, epochs=2)
    task, data = task_of(MODEL, SHAPE, CLASSES), party_data(0)
    w, D = (
        task.init(Key(1)),
        {k: 3 * v for k, v in discriminator("shallow", WIDTH, WIDTH, 3).init(Key(2)).items()},
    )
    inbox = _priors()
    party = replace(party_of(task, data, how, parties=3), inbox=inbox)
    fed = FedUad(alternate="batch", weight=weight)
    _, reply = run_call(
        party_function(fed)(FedUadState({}, w, None, {}), Both({}, D), party, Key(3))
    )
    theta, d = ({k: v.clone().requires_grad_() for k, v in tree.items()} for tree in (w, D))
    on_h, on_d = (torch.optim.SGD(tree.values(), lr=0.2, momentum=momentum) for tree in (theta, d))
    count = 0
    for batch in batches(data, Key(3), how):
        z = encoder_features(theta, batch.x)
        logits = z @ theta["fc3.weight"].T + theta["fc3.bias"]
        eq11 = (
            F.cross_entropy(logits, batch.y)
            - weight * disc_logits(d, z).log_softmax(1).sum(1).mean() / 3
        )
        on_h.zero_grad()
        eq11.backward()
        on_h.step()
        eq5 = F.cross_entropy(disc_logits(d, z.detach()), torch.full((len(z),), 0))
        for j, prior in inbox.items():
            other = encoder_features(prior.theta, data.x[batch.indices])
            eq5 = eq5 + F.cross_entropy(disc_logits(d, other), torch.full((len(z),), j)) / 2
        on_d.zero_grad()
        eq5.backward()
        on_d.step()
        count += 1
    assert count == 6
    return reply, {k: v.detach() for k, v in theta.items()}, {k: v.detach() for k, v in d.items()}


def test_u5_d_learns_after_each_batch() -> None:
    """On the batch's features as h made them; D is new at the next batch. Twelve samples, batches
    of 5, 5 and 2, twice.
    """
    reply, theta, D = _alternating(0.0)
    assert_near(reply.theta, theta)
    assert_near(reply.D, D)
    D_0 = {k: 3 * v for k, v in discriminator("shallow", WIDTH, WIDTH, 3).init(Key(2)).items()}
    _, frozen = _posterior(
        FedUad(disc_steps=0), D_0, Training(lr=0.2, batch=5, epochs=2), _priors()
    )
    assert distance(frozen.theta, theta) > 1e-4, "with D frozen for the epochs h would be another"


def test_u5_d_learns_by_the_experiments_optimizer() -> None:
    """Section 4.1.1: SGD with momentum 0.9."""
    reply, _, D = _alternating(0.9)
    assert_near(reply.D, D)


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_u5_the_weight_is_eq4s_alone(weight: float) -> None:
    """Posterior and D take their steps together, but D's is on eq. 5 as printed, and it gets
    nothing of eq. 4.
    """
    reply, theta, D = _alternating(0.0, weight)
    assert_near(reply.theta, theta)
    assert_near(reply.D, D)


def test_u14_steps_of_both_alternations_are_counted() -> None:
    """Prior, posterior and D: one epoch and one pass each are as many steps thrice; posterior and D
    together are one step.
    """
    epoch = sum(math.ceil(n / 4) for n in (11, 7, 9, 6))
    assert [run_method(f"feduad(alternate={a})").summary["steps"] for a in ("round", "batch")] == [
        4 * 3 * epoch,
        4 * 2 * epoch,
    ]


def test_u14_steps() -> None:
    """U14: E epochs for the prior and E for the posterior, and D's passes; FedAvg has E."""
    epoch = sum(math.ceil(n / 4) for n in (11, 7, 9, 6))
    expected = {"feduad": 3, "feduad(disc_steps=0)": 2, "feduad(disc_steps=epochs,disc_epochs=4,disc_state=fresh)": 6, "fedufo": 3,
                "fedufo(uad=false)": 2, "fedufo(uad=false,cgr=false)": 1}  # fmt: skip
    assert {name: run_method(name).summary["steps"] for name in expected} == {
        k: 4 * v * epoch for k, v in expected.items()
    }


# --- the server's steps


@pytest.mark.parametrize(("lr", "beta"), [(0.5, 0.0), (1.0, 0.9), (0.3, 0.5)])
def test_u8_server_steps_over_two_rounds(lr: float, beta: float) -> None:
    """v_1 = mean_1 - w_0, w_1 = w_0 + lr v_1; v_2 = beta v_1 + mean_2 - w_1, w_2 = w_1 + lr v_2. D
    is averaged all the same.
    """
    for fed in (
        FedUad(server_lr=lr, server_momentum=beta),
        FedUfo(server_lr=lr, server_momentum=beta, dynamic="off"),
    ):
        _, server, s = game(fed)
        wire, sizes = Wire(server), dict(enumerate(SIZES))
        w, v = s.w, {k: torch.zeros_like(x) for k, x in s.w.items()}
        for t in (1, 2):
            s = rounds(fed, server, s, 1, first=t)
            mean = mean_of({k: r.theta for k, r in wire.replies(t).items()}, sizes)
            v = {k: beta * v[k] + mean[k] - w[k] for k in w}
            w = {k: w[k] + lr * v[k] for k in w}
            assert_near(s.w, w, 1e-6)
            assert_near(s.D, mean_of({k: r.D for k, r in wire.replies(t).items()}, sizes), 1e-6)
            assert distance(s.w, mean) > 1e-4 or (t == 1 and lr == 1)


def test_u8_by_numbers_and_buffers_are_averaged() -> None:
    """w = 1, mean 3, v = 0.5, beta = 0.8, lr = 0.1: v = 0.4 + 2, w = 1.24; a running mean goes to
    the mean itself.
    """
    w, mean = (
        {"a": torch.tensor([1.0]), "~m": torch.tensor([1.0])},
        {"a": torch.tensor([3.0]), "~m": torch.tensor([7.0])},
    )
    new, v = momentum_step(w, mean, {"a": torch.tensor([0.5])}, 0.1, 0.8)
    assert v["a"].item() == pytest.approx(2.4)
    assert new["a"].item() == pytest.approx(1.24)
    assert new["~m"].item() == 7.0
    assert momentum_step(w, mean, {}, 1.0, 0.0) == (mean, {})


# --- BatchNorm that stays at the party


def test_eq7_with_private_batchnorm_the_own_prior_is_the_trained_one() -> None:
    """bn=none, a group of one: the target is softmax(softmax(h(x; prior))), with the prior's own
    BatchNorm.
    """
    task = task_of(BATCHNORM, IMAGE, CLASSES)
    task = replace(task, private=task.norm_names)
    data = samples(12, IMAGE, CLASSES, seed=4)
    fed, how = FedUfo(uad=False, cgl=False), Training(lr=0.1, batch=6, epochs=5, min_batch=2)
    party = party_of(task, data, how)
    w, key = task.init(Key(1)), Key(2)
    own = {k: v for k, v in w.items() if k in task.private}
    message = Both({k: v for k, v in w.items() if k not in own}, {})
    state, _ = run_call(fed.prior(FedUadState(own, {}, None, {}), message, party, key))
    prior = fit(task.loss, w, data, key, how).theta
    target = task.logits(prior, data.x).softmax(1).softmax(1)
    batch = _teaching_batch(fed, state, party)
    theta = {k: v.clone() for k, v in w.items()}
    value = fed.objective(task, theta, task.features(theta, data.x, train=True), batch)
    theta = {k: v.clone() for k, v in w.items()}
    y_hat = task.head(theta, task.features(theta, data.x, train=True), train=True).softmax(1)
    expected = F.cross_entropy(y_hat.log(), data.y) + divergence(y_hat, target)
    assert value.item() == pytest.approx(expected.item(), abs=1e-5)


# --- section 5 and spec 2.1: bytes

S_L, S_D, COUNTS = (
    4 * ((6 + 1) * 5 + (5 + 1) * 5 + (5 + 1) * 3),
    4 * ((5 + 1) * 5 + (5 + 1) * 4),
    4 * 3,
)
BYTES: list[tuple[str, dict[str, Any], int, int, int, bool]] = [
    # method, options, up and down of each in the group in S_L and S_D, 4-byte figures up, whether
    # priors are swapped
    ("feduad", {}, 1, 1, 0, True),
    ("feduad", {"disc_state": "local"}, 1, 0, 0, True),
    ("feduad", {"disc_state": "fresh"}, 1, 0, 0, True),
    ("feduad", {"outputs": "group"}, 1, 0, 0, True),
    ("feduad", {"alternate": "batch", "disc_steps": 3}, 1, 1, 0, True),
    ("feduad", {"server_lr": 0.5, "server_momentum": 0.9}, 1, 1, 0, True),
    ("fedufo", {}, 1, 1, 1, True),
    ("fedufo", {"dynamic": "off"}, 1, 1, 0, True),
    ("fedufo", {"cgr": False, "cgl": False}, 1, 1, 0, True),
    ("fedufo", {"uad": False}, 1, 0, 1, True),
    ("fedufo", {"uad": False, "cgl": False}, 1, 0, 0, True),
    ("fedufo", {"uad": False, "cgr": False, "dynamic": "off"}, 1, 0, 0, False),
    ("fedufo", {"uad": False, "cgr": False}, 1, 0, 1, False),
    ("fedufo", {"disc_state": "local"}, 1, 0, 1, True),
    ("fedufo", {"outputs": "group", "dynamic": "off"}, 1, 0, 0, True),
    ("fedufo", {"stage_one": 1.0}, 1, 1, 1, True),
    ("fedufo", {"target": "l1", "direction": "forward", "lam": 1.0}, 1, 1, 1, True),
]  # fmt: skip


def _bytes_by_kind(result: comity.Result, t: int) -> Counter[str]:
    by_kind: Counter[str] = Counter()
    for row in result.ledger:
        if row.round == t and row.kind in ("up", "down", "peer"):
            by_kind[row.kind] += row.bytes
    return by_kind


@pytest.mark.sweep("disc_state=local", "fedufo(uad=false)")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "models", "discs", "figures", "swap"),
    BYTES,
    ids=[text(name, o) for name, o, *_ in BYTES],
)
@pytest.mark.parametrize(("participation", "K_c"), [(1.0, 4), (0.5, 2)])
def test_bytes_of_a_round(
    method: str,
    settings: dict[str, Any],
    models: int,
    discs: int,
    figures: int,
    swap: bool,
    participation: float,
    K_c: int,
) -> None:
    """K_c (2 S_L + 2 S_D + (K_c - 1)(S_L + 4 C + 4)), 4 K_c more with dynamic sampling; FedAvg's 2
    K_c S_L for CGL alone.

    The last 4 names one of the group, for whom a prior is sealed.
    """
    result = run_method(text(method, settings), participation=participation, rounds=2)
    _, traffic_by_round = plan.traffic(result.job)
    for t in (1, 2):
        down = K_c * (models * S_L + discs * S_D)
        expected = {"up": down + 4 * figures * K_c, "down": down}
        if swap:
            expected["peer"] = K_c * (K_c - 1) * (S_L + COUNTS)
            expected["down"] += 4 * K_c * (K_c - 1)
        assert _bytes_by_kind(result, t) == expected
        assert vars(traffic_by_round[t - 1]) == {"peer": 0} | expected


@pytest.mark.parametrize(
    "settings", [{}, {"uad": False, "cgr": False}, {"disc_state": "local"}], ids=option_text
)
@pytest.mark.parametrize(("participation", "K_c"), [(1.0, 4), (0.5, 2)])
def test_bytes_of_fresh_looks(settings: dict[str, Any], participation: float, K_c: int) -> None:
    """U10: all K = 4 get w and answer a figure, so (K - K_c) S_L down and 4 K up come to a round."""
    exchange, D = settings.get("cgr", True), S_D if settings == {} else 0
    result = run_method(
        text("fedufo", {"dynamic": "fresh", "stage_one": 0.0, **settings}),
        participation=participation,
        rounds=2,
    )
    _, traffic_by_round = plan.traffic(result.job)
    for t in (1, 2):
        expected = {"up": K_c * (S_L + D) + 4 * 4, "down": 4 * S_L + K_c * D}
        if exchange:
            expected["peer"] = K_c * (K_c - 1) * (S_L + COUNTS)
            expected["down"] += 4 * K_c * (K_c - 1)
        assert _bytes_by_kind(result, t) == expected
        assert vars(traffic_by_round[t - 1]) == {"peer": 0} | expected


def test_bytes_of_cgl_alone_are_fedavgs() -> None:
    """Section 5: no extra communication cost."""
    ours, theirs = (
        run_method("fedufo(uad=false,cgr=false,dynamic=off)", participation=0.5),
        run_method("fedavg", participation=0.5),
    )
    assert ours.ledger == theirs.ledger
    assert _bytes_by_kind(ours, 1) == {"up": 2 * S_L, "down": 2 * S_L}
    assert not same(ours.model("p0").theta, theirs.model("p0").theta)


def test_bytes_of_five_parties_are_six_models_each() -> None:
    """N = K_c = 5: a model down with the names of four others, one up, four to them; 4 C bytes of
    each sealed message are counts.
    """
    result = run_method("fedufo(disc_state=local,dynamic=off)", parties=5)
    for t in (1, 2, 3, 4):
        rows = [
            row for row in result.ledger if row.round == t and row.kind in ("up", "down", "peer")
        ]
        for name in result.job.info.names:
            its = [row for row in rows if row.src == name or (row.kind, row.dst) == ("down", name)]
            more = {"up": 0, "down": 4 * 4, "peer": COUNTS}
            assert [row.bytes - more[row.kind] for row in its] == [S_L] * 6
        assert sum(row.bytes for row in rows) == 5 * 6 * S_L + 5 * 4 * (COUNTS + 4)


@pytest.mark.parametrize(
    ("disc", "size"), [("linear", 24), ("shallow", 30 + 24), ("mlp", 30 + 30 + 24)]
)
def test_bytes_of_each_discriminator(disc: str, size: int) -> None:
    """5 values, 4 parties: (5 + 1) 5 a hidden layer and (5 + 1) 4 for the last."""
    assert _bytes_by_kind(run_method(f"feduad(disc={disc})"), 1)["up"] == 4 * (S_L + 4 * size)


# --- section 4.1.1 iii: P_acc


@pytest.mark.parametrize("method", ["feduad", "fedufo"])
def test_pacc_is_the_global_models_accuracy_on_pooled_data(method: str) -> None:
    """A row for each evaluation; the last is of the deployed model, which all parties share."""
    result = run_method(method)
    rows = [row for row in result.metrics if row.split == "pooled"]
    assert [(row.round, row.party, row.metric) for row in rows] == [
        (t, "server", "accuracy") for t in range(5)
    ]
    models = all_weights(result)
    assert all(same(model, models[0]) for model in models)
    parties: list[Party] = result.job.parties
    x, y = (torch.cat([getattr(p.data.test, part) for p in parties]) for part in ("x", "y"))
    right = (model_logits(models[0], x).argmax(1) == y).double().mean().item()
    assert rows[-1].value == pytest.approx(right, abs=1e-6)


# --- engines and resuming

STATEFUL = [
    "fedufo(begin=prior,reduction=mean,cgr_weight=0.5)",
    "fedufo(dynamic=fresh)",
    "fedufo(disc_state=local)",
    "fedufo(server_lr=0.7,server_momentum=0.5)",
]
HALF: dict[str, Any] = {"participation": 0.5, "rounds": 4}


def _tables(result: comity.Result) -> list[bytes]:
    return [
        (result.folder / name).read_bytes()
        for name in ("metrics.csv", "ledger.csv", "outcomes.csv")
    ]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("method", STATEFUL[:3])
def test_process_equals_loop(method: str, tmp_path: Path) -> None:
    ours, theirs = (
        run_method(method, BATCHNORM, engine="process", workers=2, out=tmp_path, **HALF),
        run_method(method, BATCHNORM, **HALF),
    )
    assert _tables(ours) == _tables(theirs)
    assert all(map(same, all_weights(ours), all_weights(theirs)))


class Stop(Quiet):
    """Stops a run in round `during`, when so many parties have answered."""

    def __init__(self, during: int, answers: int) -> None:
        self.now, self.during, self.replies_left, self.first = 0, during, answers, -1

    def begin(self, job: Any, first_round: int) -> None:
        self.first = first_round

    def add_replies(self, count: int) -> None:
        self.replies_left -= count if self.now == self.during else 0
        if self.replies_left <= 0:
            raise KeyboardInterrupt

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        self.now = t + 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("answers", [1, 3])
@pytest.mark.parametrize("method", STATEFUL)
def test_resumed_equals_straight(
    method: str, answers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in round 3 of 4, among the replies to the first or second call: accuracies, local Ds
    and velocity are states.
    """
    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run_method(method, BATCHNORM, out=tmp_path, progress=Stop(3, answers), **HALF)
    assert json.loads((tmp_path / "checkpoints" / "manifest.json").read_text())["round"] == 2
    watch = Stop(99, 1)
    ours, theirs = (
        run_method(method, BATCHNORM, out=tmp_path, resume=True, progress=watch, **HALF),
        run_method(method, BATCHNORM, **HALF),
    )
    assert watch.first == 2
    assert _tables(ours) == _tables(theirs)
    assert all(map(same, all_weights(ours), all_weights(theirs)))
    assert ours.summary["steps"] == theirs.summary["steps"]
