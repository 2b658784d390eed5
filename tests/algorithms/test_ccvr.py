"""CCVR (Luo et al. 2021): class statistics against numpy, and whole runs against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from plain import Trainer, features, first, head, stream
from torch import Tensor
from toys import assert_near, federation, noise, task_of

import comity
from comity.algorithms.ccvr import Ccvr, Gaussians, class_statistics, pooled, square_root
from comity.core import Batch, Key, Params, Samples, Training, batches

pytestmark = pytest.mark.quick

SIZES = (9, 14, 6)
HOW: dict[str, Any] = {"model": "mlp2(width=7)", "rounds": 3, "lr": 0.1, "batch": 4}
IN_HEAD: dict[str, Any] = {"model": "fedbn-cnn(scale=0.03)", "cut": "conv1"}  # BatchNorm after it
SGD = partial(torch.optim.SGD, lr=0.1)


def run(method: str, **settings: Any) -> comity.Result:
    return comity.run(method, federation(SIZES), **{"engine": "loop"} | HOW | settings)


def rows_by_class(z: Tensor, y: Tensor, c: int) -> np.ndarray:
    return z[y == c].double().numpy()


def test_section4_a_partys_statistics_are_numpys() -> None:
    z, y = noise(40, 5) + 3, torch.arange(40) % 4
    statistics = class_statistics(z, y, 4)
    for c in range(4):
        rows = rows_by_class(z, y, c)
        assert statistics.counts[c] == len(rows)
        np.testing.assert_allclose(statistics.means[c], rows.mean(0), rtol=1e-6)
        np.testing.assert_allclose(statistics.covariances[c], np.cov(rows.T), atol=1e-6)


def test_section4_pooled_statistics_are_those_of_all_samples_together() -> None:
    """Parties of different sizes and means, one without class 2; class 3 has one sample in all."""
    labels = [torch.arange(30) % 3, torch.arange(17) % 2, torch.tensor([0, 0, 1, 2, 3])]
    parts = [noise(len(y), 4, seed=k) + 10 * k for k, y in enumerate(labels)]
    replies = [class_statistics(z, y, 5) for z, y in zip(parts, labels, strict=True)]
    pooled_statistics = pooled(replies, classes=5, width=4)
    z, y = torch.cat(parts), torch.cat(labels)
    assert pooled_statistics.counts.tolist() == torch.bincount(y, minlength=5).tolist()
    for c in range(3):
        rows = rows_by_class(z, y, c)
        np.testing.assert_allclose(pooled_statistics.means[c], rows.mean(0), rtol=1e-6)
        np.testing.assert_allclose(
            pooled_statistics.covariances[c], np.cov(rows.T), rtol=1e-5, atol=1e-5
        )
    torch.testing.assert_close(
        pooled_statistics.means[3], z[y == 3][0].double(), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        pooled_statistics.covariances[3], torch.zeros(4, 4).double(), atol=1e-5, rtol=0
    )
    assert not pooled_statistics.means[4].any()
    assert not pooled_statistics.covariances[4].any()


def test_a_square_root_gives_the_covariance_back_also_where_it_is_singular() -> None:
    wide = noise(3, 6).double()
    covariance = wide.T @ wide  # of rank 3
    root = square_root(covariance)
    torch.testing.assert_close(root @ root.T, covariance, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(root, root.T, rtol=1e-9, atol=1e-9)


def test_algorithm1_virtual_features_have_each_class_own_mean_and_covariance() -> None:
    task = task_of("mlp2(width=3)", (6,), 3)
    root = noise(3, 3, 3).double()
    gaussians = Gaussians(
        torch.tensor([5.0, 0.0, 2.0]), 10 * noise(3, 3, seed=1).double(), root @ root.mT
    )
    virtual = Ccvr(virtual=20_000).virtual_features(gaussians, task, Key.root(3))
    assert torch.bincount(virtual.y).tolist() == [20_000, 0, 20_000]  # no party has class 1
    for c in (0, 2):
        z = virtual.x[virtual.y == c].double()
        torch.testing.assert_close(z.mean(0), gaussians.means[c], rtol=0, atol=0.08)
        torch.testing.assert_close(z.T.cov(), gaussians.covariances[c], rtol=0, atol=0.15)


def fedavg_in_plain_torch(result: comity.Result) -> Params:
    theta, sizes = first(result), result.job.info.sizes
    for t in range(1, result.job.experiment.rounds + 1):
        local_weights = [
            Trainer(theta, SGD).train(stream(result, k, t, "local")) for k in range(len(sizes))
        ]
        weights = torch.tensor(sizes) / sum(sizes)
        theta = {
            n: torch.einsum("k,k...->...", weights, torch.stack([w[n] for w in local_weights]))
            for n in theta
        }
    return theta


def calibrated_in_plain_torch(result: comity.Result, virtual: int, epochs: int) -> Params:
    """All samples' features in one place, torch.cov, a root by SVD, and torch's SGD on the head."""
    theta = fedavg_in_plain_torch(result)
    x = torch.cat([party.data.train.x for party in result.job.parties])
    y = torch.cat([party.data.train.y for party in result.job.parties])
    root = Key.root(result.job.experiment.seed)
    noise_key, batch_key = (
        root.fold("server", result.job.experiment.rounds, part) for part in ("virtual", "calibrate")
    )
    xs, ys = [], []
    for c in y.unique().tolist():
        z = features(theta, x[y == c]).double()
        u, s, _ = torch.linalg.svd(z.T.cov())
        draws = torch.randn(
            virtual,
            z.shape[1],
            dtype=torch.float64,
            generator=noise_key.fold(c).generator(),
        )
        xs.append(z.mean(0) + draws @ (u @ s.sqrt().diag() @ u.T))
        ys.append(torch.full((virtual,), c))
    data = Samples(torch.cat(xs).float(), torch.cat(ys))
    how = Training(lr=0.1, batch=4, epochs=epochs)

    def on_features(w: Params, batch: Batch) -> Tensor:
        return F.cross_entropy(head(w, batch.x), batch.y)

    trainer = Trainer(theta, SGD, only=lambda name: name.startswith("fc3"))
    return trainer.train(batches(data, batch_key, how), on_features)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_whole_run_is_that_of_plain_pytorch(engine: str) -> None:
    result = run("ccvr(virtual=12,calibration_epochs=3)", engine=engine)
    expected = calibrated_in_plain_torch(result, 12, 3)
    for name in result.job.info.names:
        assert_near(result.model(name).theta, expected, atol=1e-6)


def test_without_calibration_epochs_it_is_fedavg() -> None:
    """Bit for bit, although it makes additional calls."""
    fed = federation((9, 21, 14, 6))
    how = HOW | {"engine": "loop"}
    ours, theirs = (
        comity.run(method, fed, **how) for method in ("ccvr(calibration_epochs=0)", "fedavg")
    )
    for name in theirs.job.info.names:
        assert_near(ours.model(name).theta, theirs.model(name).theta, atol=0)
    assert ours.summary["bytes"]["up"] > theirs.summary["bytes"]["up"]


def test_only_the_head_changes_and_all_parties_get_it() -> None:
    ours, before = run("ccvr"), run("fedavg")
    thetas = [ours.model(name).theta for name in ours.job.info.names]
    for name, value in before.model("p0").theta.items():
        assert torch.equal(thetas[0][name], value) == (not name.startswith("fc3"))
        assert all(torch.equal(theta[name], thetas[0][name]) for theta in thetas)


def test_it_reports_the_accuracy_before_and_after() -> None:
    assert run("ccvr").summary["accuracy"]["unfinished"] == pytest.approx(
        run("fedavg").summary["accuracy"]["mean"]
    )


def test_it_mends_the_head_under_label_skew() -> None:
    """Digits, where each party has two classes: what the paper is about."""
    accuracy = {
        method: comity.run(
            method,
            data="digits",
            partition="pathological(classes=2)",
            parties=5,
            rounds=8,
            model="mlp2(width=64)",
            test="common(0.25)",
            engine="loop",
        ).summary["accuracy"]["mean"]
        for method in ("fedavg", "ccvr")
    }
    assert accuracy["ccvr"] > accuracy["fedavg"] + 0.1


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "a number to predict": (
        "ccvr draws virtual features of each class",
        lambda: comity.run("ccvr", amounts(), rounds=1),
    ),
    "an offset before the head": (
        r"dbe is not supported with ccvr: ccvr trains one head for all parties .* Use ccvr\+mr",
        lambda: run("ccvr+dbe"),
    ),
    "an offset alone": ("prbm is not supported with ccvr", lambda: run("ccvr+prbm")),
    "a head that stays at parties": (
        "ccvr trains the head at the server, but .*bn.* stays at the parties",
        lambda: comity.run(
            "ccvr", federation((8, 8), shape=(1, 8, 8)), rounds=1, bn="none", **IN_HEAD
        ),
    ),
    "private training": (
        r"dp is not supported with ccvr: .*how many samples there are of each class",
        lambda: run("ccvr+dp(noise=1)"),
    ),
}


def amounts() -> comity.Federation:
    x = noise(40, 5).numpy()
    return comity.Federation.from_arrays(
        {"north": (x[:20], x[:20, 0]), "south": (x[20:], x[20:, 0])}, classes=0
    )


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_settings_are_refused(case: str) -> None:
    words, attempt = REFUSED[case]
    with pytest.raises(comity.UsageError, match=words):
        attempt()


def test_it_runs_within_mr_which_leaves_the_head_alone() -> None:
    with_mr, alone = run("ccvr+mr(kappa=0)"), run("ccvr")
    assert_near(with_mr.model("p1").theta, alone.model("p1").theta, atol=0)
