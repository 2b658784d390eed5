"""What is done per block of parties instead of per party, and that dropped sites are freed."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity.base.finite import FiniteRows, not_finite
from comity.core.server import Server
from comity.engines.engine import Engine
from comity.engines.site import Site
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.evaluation import Evaluations, evaluate
from comity.runs.server_run import Quiet
from comity.wire.codec import encode

PARTIES = 70


def run_of(method: str, engine: str) -> SimulatedRun:
    draw = torch.Generator().manual_seed(1)

    def samples(count: int) -> tuple[Tensor, Tensor]:
        return torch.randn(count, 4, generator=draw), torch.arange(count) % 3

    parties = {f"party {i}": (samples(3 + i % 2), samples(2 + i % 5)) for i in range(PARTIES)}
    federation = comity.Federation.from_arrays(parties, validation=0.0, classes=3)
    settings = {"algorithm": method, "model": "linear", "batch": 3, "engine": engine, "workers": 1}
    return prepare(config.experiment(settings), federation)


def after_a_round(job: SimulatedRun) -> tuple[Server, Engine, Any]:
    engine = job.engine()
    server = job.server(engine, Quiet())
    server.begin(1)
    state = job.algorithm.init_server(job.root.fold("init"), job.info)
    return server, engine, job.algorithm.round(state, server, 1)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
@pytest.mark.parametrize("final", [False, True])
def test_parties_evaluated_in_blocks_have_the_results_of_each_alone(
    method: str, final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run_of(method, "loop")

    def evaluations() -> Evaluations:
        return evaluate(job, server, engine, state, final=final)

    server, engine, state = after_a_round(job)
    together = evaluations().by_party
    monkeypatch.setattr("comity.engines.evaluation.BLOCK_PARTIES", 1)
    alone = evaluations().by_party
    assert len(together) == PARTIES
    assert {i: encode(e) for i, e in together.items()} == {i: encode(e) for i, e in alone.items()}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_sites_without_states_are_freed_when_they_are_dropped(engine: str) -> None:
    """A collection of cyclic garbage costs more than these sites."""
    job = run_of("fedavg", engine)
    gc.collect()
    of_other_tests = _sites()
    gc.disable()
    try:
        server, running, state = after_a_round(job)
        evaluate(job, server, running, state, final=True)
        left = _sites()
    finally:
        gc.enable()
    assert not [site for site in left if all(site is not other for other in of_other_tests)]


def _sites() -> list[Site]:
    """All sites that there are in this process."""
    return [thing for thing in gc.get_objects() if type(thing) is Site]


def test_rows_of_a_stacked_tensor_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Tensor] = []

    def check(tensor: Tensor) -> bool:
        checked.append(tensor)
        return bool(tensor.isfinite().all())

    monkeypatch.setattr("comity.base.finite.has_finite_values", check)
    stacked = torch.ones(8, 3)
    rows = FiniteRows()
    assert not any(rows.not_finite({"theta": stacked[i]}) for i in range(8))
    assert len(checked) == 1


def test_rows_that_are_not_finite_are_found_also_after_a_check() -> None:
    stacked = torch.ones(3, 2)
    stacked[1, 0] = math.nan
    rows = FiniteRows()
    found = [rows.not_finite({"theta": stacked[i]}) for i in range(3)]
    assert found == ["", "theta", ""]
    stacked, rows = torch.ones(3, 2), FiniteRows()
    assert rows.not_finite(stacked[0]) == ""
    stacked[2].fill_(math.inf)  # as a party function that writes to its own weights
    assert [rows.not_finite(stacked[i]) for i in range(3)] == ["", "", not_finite(stacked[2])]


def test_whole_tensors_and_other_views_are_checked_by_themselves() -> None:
    whole = torch.ones(4, 2)
    whole[3] = math.nan
    rows = FiniteRows()
    assert rows.not_finite(whole[:2]) == ""
    assert rows.not_finite(whole) != ""
    assert rows.not_finite(whole[3, 0]) != ""
