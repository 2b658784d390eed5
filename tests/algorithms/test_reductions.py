"""A method with its extra switched off is its parent, bit for bit, even if the extra makes
additional calls.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from toys import federation

import comity
from comity.algorithms.dbe import OFFSET
from comity.wire.ledger import Charge

pytestmark = pytest.mark.quick

FLAT, IMAGE = (6,), (1, 8, 8)
MODELS = {"mlp2": ("mlp2(width=7)", FLAT), "batchnorm": ("fedbn-cnn(scale=0.03)", IMAGE)}
SIZES = (9, 21, 14, 6)

PAIRS = {
    "fedprox, mu = 0": ("fedprox(mu=0)", "fedavg"),
    "adcol, mu = 0": ("adcol(mu=0,hidden=8)", "solo"),
    "adcol, mu = 0, sampling": ("adcol(mu=0,hidden=8,sampling=0.4)", "solo"),
    "dbe off": ("fedavg+dbe(kappa=0,train_offset=false)", "fedavg"),
    "dbe off, noise": ("fedavg+dbe(kappa=0,train_offset=false,noise_s=1)", "fedavg"),
    "dbe off on scaffold": ("scaffold+dbe(kappa=0,train_offset=false)", "scaffold"),
    "dbe off on fedprox": ("fedprox(mu=0.1)+dbe(kappa=0,train_offset=false)", "fedprox(mu=0.1)"),
    "dbe off on fedbn": ("fedbn+dbe(kappa=0,train_offset=false)", "fedbn"),
    "mr off": ("fedavg+mr(kappa=0)", "fedavg"),
    "mr off on fedper": ("fedper+mr(kappa=0)", "fedper"),
    "prbm off": ("fedavg+prbm(train_offset=false)", "fedavg"),
    "dbe without regulariser": ("fedavg+dbe(kappa=0)", "fedavg+prbm"),
    "fedprox, mu = 0, in dbe": ("fedprox(mu=0)+dbe", "fedavg+dbe"),
}


@cache
def run_method(
    text: str, model: str, participation: float, optimizer: str = "sgd", bn: Any = "all"
) -> comity.Result:
    name, shape = MODELS[model]
    fed = federation(SIZES, shape=shape)
    return comity.run(
        text,
        fed,
        model=name,
        rounds=3,
        batch=4,
        lr=0.1,
        participation=participation,
        optimizer=optimizer,
        bn=bn,
        engine="loop",
    )


def assert_same(child: comity.Result, parent: comity.Result) -> None:
    """Equal weights at every party, and equal accuracies and losses in every round."""
    for party in parent.job.info.names:
        ours, theirs = child.model(party).theta, parent.model(party).theta
        for name, value in theirs.items():
            assert torch.equal(ours[name], value), f"{name} of {party}"
        for name in set(ours) - set(theirs):
            assert name == OFFSET
            assert not ours[name].any(), "a frozen offset stays at 0"
    rows = [
        [row for row in run.metrics if row.metric in ("accuracy", "loss") and row.party != "server"]
        for run in (child, parent)
    ]
    assert len(rows[1]) == 4 * len(SIZES) * 2  # rounds 0 to 3, two figures each
    assert rows[0] == rows[1]


@pytest.mark.sweep("-batchnorm-0.5")
@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pair", PAIRS)
def test_reduces_to_its_parent(pair: str, model: str, participation: float) -> None:
    child, parent = PAIRS[pair]
    assert_same(run_method(child, model, participation), run_method(parent, model, participation))


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedbn_without_batchnorm_is_fedavg(participation: float) -> None:
    assert_same(
        run_method("fedbn", "mlp2", participation), run_method("fedavg", "mlp2", participation)
    )


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedbn_is_fedavg_with_the_policy_none(participation: float) -> None:
    """Half the parties a round: those that stay away keep their own BatchNorm and take the new
    rest.
    """
    assert_same(
        run_method("fedbn", "batchnorm", participation),
        run_method("fedavg", "batchnorm", participation, bn="none"),
    )


@pytest.mark.sweep("-adam")
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd(momentum=0.9,decay=0.01)", "adam"])
@pytest.mark.parametrize(
    "pair", ["fedprox, mu = 0", "adcol, mu = 0", "dbe off", "mr off on fedper"]
)
def test_reduces_to_its_parent_under_other_optimizers(pair: str, optimizer: str) -> None:
    child, parent = PAIRS[pair]
    assert_same(
        run_method(child, "batchnorm", 0.5, optimizer),
        run_method(parent, "batchnorm", 0.5, optimizer),
    )


@pytest.mark.sweep("-none")
@pytest.mark.slow
@pytest.mark.parametrize("bn", ["params_only", "none"])
@pytest.mark.parametrize(
    "pair", ["fedprox, mu = 0", "dbe off", "dbe off on scaffold", "mr off on fedper"]
)
def test_reduces_to_its_parent_under_other_batchnorm_policies(pair: str, bn: str) -> None:
    child, parent = PAIRS[pair]
    assert_same(
        run_method(child, "batchnorm", 0.5, bn=bn), run_method(parent, "batchnorm", 0.5, bn=bn)
    )


def _without_eval(rows: list[Charge], first: int) -> list[Charge]:
    return [row for row in rows if row.kind not in ("eval", "setup") and row.round >= first]


@pytest.mark.parametrize("pair", ["dbe off", "dbe off on scaffold", "mr off on fedper"])
def test_the_extra_makes_additional_calls(pair: str) -> None:
    """Otherwise the comparison would show nothing: the child exchanges means before round 1, and
    its parent's messages after.
    """
    child, parent = (run_method(text, "mlp2", 0.5) for text in PAIRS[pair])
    assert {row.call for row in child.ledger if row.round == 0 and row.kind == "up"} == {"mean"}
    assert _without_eval(child.ledger, 1) == _without_eval(parent.ledger, 0)


@pytest.mark.parametrize(
    ("on", "off"),
    [("fedprox(mu=1)", "fedavg"), ("adcol(mu=1,hidden=8)", "solo"), ("fedavg+dbe", "fedavg"), ("fedavg+mr", "fedavg"),
     ("fedavg+prbm", "fedavg"), ("fedper+mr", "fedper"), ("scaffold+dbe", "scaffold"), ("scaffold", "fedavg")],
)  # fmt: skip
def test_with_its_extra_on_a_method_is_not_its_parent(on: str, off: str) -> None:
    child, parent = run_method(on, "mlp2", 1.0), run_method(off, "mlp2", 1.0)
    assert not torch.equal(
        child.model("p0").theta["fc1.weight"], parent.model("p0").theta["fc1.weight"]
    )
