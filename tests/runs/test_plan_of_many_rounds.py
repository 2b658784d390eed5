"""A plan of more rounds than can be counted one by one: exact where rounds are alike, else scaled,
and said to be.
"""

from __future__ import annotations

import pytest

from comity.core.party import Traffic
from comity.runs import run_cost
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.config import experiment
from comity.studies import plan


def job(**settings: object) -> SimulatedRun:
    asked = experiment(
        {"model": "mlp2(width=8)", "parties": 4, "partition": "dirichlet(alpha=0.5)", **settings}
    )
    return prepare(asked, federation_of(asked))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cost, "COUNTED_ROUNDS", 50)
    monkeypatch.setattr(run_cost, "COUNTED_DRAWS", 0)


@pytest.mark.parametrize("method", ["fedavg", "fedbabu"])
def test_rounds_that_are_alike_are_exact(method: str, few: None) -> None:
    made = job(algorithm=method, rounds=777)
    planned = plan.plan(made)
    start, each = plan.traffic(made)
    assert planned.counted_rounds == 50
    assert planned.total == sum(each, start)
    assert planned.steps == 777 * job(algorithm=method, rounds=1).cost.steps()


def test_other_rounds_are_scaled(few: None) -> None:
    made = job(rounds=2000, participation=0.5)
    planned = plan.plan(made)
    true = sum(plan.traffic(made)[1], Traffic())
    each = [p.training.steps_for(len(p.data.train)) for p in made.parties]
    steps = sum(each[i] for t in range(1, 2001) for i in made.cohort(t))
    assert (
        planned.total == true
    )  # two of four parties each time, and the model weighs the same to all
    assert planned.steps == pytest.approx(steps, rel=0.15)
    assert planned.steps != steps
    assert (min(made.cost.counted_cohorts), max(made.cost.counted_cohorts)) == (1, 2000)


def test_as_many_as_there_can_be() -> None:
    planned = plan.plan(job(rounds=10**9, participation=0.5))
    assert planned.counted_rounds < 10**5
    assert planned.steps > 10**9
