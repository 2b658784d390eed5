"""A plan of more rounds than can be counted one by one: exact where all rounds cost the same,
otherwise estimated and labelled so.
"""

from __future__ import annotations

import pytest

from comity.core.party import Traffic
from comity.runs import run_cost
from comity.runs.build import SimulatedRun, federation_of, prepare
from comity.runs.config import experiment
from comity.studies import plan


def job(**settings: object) -> SimulatedRun:
    chosen_experiment = experiment(
        {"model": "mlp2(width=8)", "parties": 4, "partition": "dirichlet(alpha=0.5)", **settings}
    )
    return prepare(chosen_experiment, federation_of(chosen_experiment))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cost, "COUNTED_ROUNDS", 50)
    monkeypatch.setattr(run_cost, "COUNTED_DRAWS", 0)


@pytest.mark.parametrize("method", ["fedavg", "fedbabu"])
def test_rounds_that_are_alike_are_exact(method: str, few: None) -> None:
    prepared = job(algorithm=method, rounds=777)
    round_plan = plan.plan(prepared)
    start, traffic_by_round = plan.traffic(prepared)
    assert round_plan.counted_rounds == 50
    assert round_plan.total == sum(traffic_by_round, start)
    assert round_plan.steps == 777 * job(algorithm=method, rounds=1).cost.steps()


def test_other_rounds_are_scaled(few: None) -> None:
    prepared = job(rounds=2000, participation=0.5)
    round_plan = plan.plan(prepared)
    true = sum(plan.traffic(prepared)[1], Traffic())
    steps_by_party = [p.training.steps_for(len(p.data.train)) for p in prepared.parties]
    steps = sum(steps_by_party[i] for t in range(1, 2001) for i in prepared.cohort(t))
    assert (
        round_plan.total == true
    )  # two of four parties each time, and the model weighs the same to all
    assert round_plan.steps == pytest.approx(steps, rel=0.15)
    assert round_plan.steps != steps
    assert (min(prepared.cost.counted_cohorts), max(prepared.cost.counted_cohorts)) == (1, 2000)


def test_the_largest_number_of_rounds() -> None:
    round_plan = plan.plan(job(rounds=10**9, participation=0.5))
    assert round_plan.counted_rounds < 10**5
    assert round_plan.steps > 10**9
