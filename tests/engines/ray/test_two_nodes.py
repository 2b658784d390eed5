"""A cluster of two nodes writes the same bytes as the loop engine, also when workers are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from small import SMALL

import comity
from comity.base.record import Cipher, sealed_in, unseal
from comity.core.runner import SUMMED
from comity.engines import ray_cluster
from comity.engines.ray_cluster import Cluster, keep_actors
from comity.engines.ray_engine import RayEngine
from comity.errors import ComityError
from comity.runs.run_warnings import warning_texts

TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv")
METHODS = ["fedavg", "scaffold", "adcol", "fedavg+dbe", "fedufo", "fed-sps", "relay"]
FAILING = """
from comity.algorithms.fedavg import FedAvg
from comity.core import *

@algorithm
class Failing(FedAvg):
    async def local(self, state, m, party, key):
        raise ValueError(f"nothing works at {party.name}")
"""


@pytest.fixture(scope="module", autouse=True)
def _keep_actors(two_nodes: Any) -> Iterator[None]:
    with keep_actors():
        yield


@cache
def on_loop(text: str, settings: tuple[tuple[str, Any], ...] = ()) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        return tables(
            comity.run(text, out=Path(folder) / "run", engine="loop", **(SMALL | dict(settings)))
        )


def tables(result: comity.Result) -> dict[str, bytes]:
    return {name: (result.folder / name).read_bytes() for name in TABLES}


def on_ray(text: str, out: Path, **settings: Any) -> comity.Result:
    return comity.run(text, out=out, engine="ray", workers=2, **(SMALL | settings))


@pytest.mark.parametrize("text", METHODS)
def test_ray_equals_loop(text: str, tmp_path: Path) -> None:
    assert tables(on_ray(text, tmp_path)) == on_loop(text)


@pytest.mark.parametrize("text", ["scaffold", "fed-sps"])
def test_ray_equals_loop_with_half_the_parties(text: str, tmp_path: Path) -> None:
    half = {"participation": 0.5, "rounds": 4}
    assert tables(on_ray(text, tmp_path, **half)) == on_loop(text, tuple(half.items()))


def test_ray_equals_loop_with_newcomers_absences_and_partial_evaluation(tmp_path: Path) -> None:
    more = {
        "newcomers": 1,
        "absent": "random(offline=0.2,lost=0.2)",
        "eval_share": 0.5,
        "rounds": 4,
        "join_epochs": 1,
    }
    assert tables(on_ray("scaffold", tmp_path, **more)) == on_loop("scaffold", tuple(more.items()))


def test_workers_are_on_both_nodes_and_stay_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[list[tuple[str, int]]] = []
    close = RayEngine.close

    def close_and_record(engine: RayEngine) -> None:
        if engine._cluster:
            places.append(list(engine._cluster.places))
        close(engine)

    monkeypatch.setattr(RayEngine, "close", close_and_record)
    comity.compare(["fedavg", "solo"], out=tmp_path, engine="ray", workers=2, **SMALL)
    assert len(places) == 2
    assert places[0] == places[1]
    assert len({node for node, _ in places[0]}) == 2


def test_sealed_messages_are_encrypted_at_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed_messages = []
    function = RayEngine.run

    def run_and_collect(engine: RayEngine, *args: Any) -> Iterator[Any]:
        for i, result in function(engine, *args):
            sealed_messages.extend(sealed_in(result.reply))
            yield i, result

    monkeypatch.setattr(RayEngine, "run", run_and_collect)
    on_ray("fed-sps", tmp_path, rounds=1)
    assert sealed_messages
    assert all(isinstance(unseal(sealed), Cipher) for sealed in sealed_messages)


class KillWorker:
    """Kills the second worker of a run after a round, once."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.first_rounds: list[int] = []

    def begin(self, job: Any, first_round: int) -> None:
        self.first_rounds.append(first_round)

    def add_replies(self, count: int) -> None:
        pass

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == self.after and len(self.first_rounds) == 1:
            os.kill(SECOND_WORKERS[-1], signal.SIGKILL)

    def end(self) -> None:
        pass


SECOND_WORKERS: list[int] = []


@pytest.fixture
def record_second_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the process id of each run's second worker when the run begins."""
    begin = RayEngine._begin

    def begin_and_record(engine: RayEngine) -> None:
        begin(engine)
        assert engine._cluster
        SECOND_WORKERS.append(engine._cluster.places[1][1])

    monkeypatch.setattr(RayEngine, "_begin", begin_and_record)


@pytest.mark.usefixtures("record_second_worker")
def test_lost_worker_without_states_is_replaced(tmp_path: Path) -> None:
    killer = KillWorker(after=1)
    with pytest.warns(UserWarning, match="had no states and is replaced"):
        result = on_ray("fedavg", tmp_path, progress=killer, rounds=4)
    assert tables(result) == on_loop("fedavg", (("rounds", 4),))
    assert killer.first_rounds == [0], "the run went back to a checkpoint"


@pytest.mark.usefixtures("record_second_worker")
def test_run_resumes_from_the_checkpoint_when_states_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    killer = KillWorker(after=2)
    with pytest.warns(UserWarning, match="went on from its last checkpoint"):
        result = on_ray("scaffold", tmp_path, progress=killer, rounds=4)
    assert tables(result) == on_loop("scaffold", (("rounds", 4),))
    assert killer.first_rounds == [0, 2]
    assert any(
        "went on from its last checkpoint" in warning
        for warning in warning_texts(result.summary, "during")
    )


@pytest.mark.usefixtures("record_second_worker")
def test_run_restarts_when_states_are_lost_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "3600")
    killer = KillWorker(after=1)
    with pytest.warns(UserWarning, match="went on from its last checkpoint"):
        result = on_ray("scaffold", tmp_path, progress=killer, rounds=3)
    assert tables(result) == on_loop("scaffold", (("rounds", 3),))


SUMS = {"partial_sums": True, "rounds": 4}


def with_sums(text: str, out: Path, **settings: Any) -> dict[str, bytes]:
    """Tables of the same run on two processes, which assign parties to workers in the same way."""
    return tables(
        comity.run(text, out=out, engine="process", workers=2, **(SMALL | SUMS | settings))
    )


@pytest.mark.parametrize("text", ["fedavg", "scaffold", "fedavg+dbe"])
def test_partial_sums_are_those_of_processes(text: str, tmp_path: Path) -> None:
    """Equal to the bit; tests/engines/test_partial_sums.py bounds the difference from loop."""
    more: dict[str, Any] = {"absent": "random(offline=0.2,lost=0.2)", "participation": 0.75}
    result = on_ray(text, tmp_path / "ray", **SUMS | more)
    assert SUMMED in warning_texts(result.summary, "during")
    assert tables(result) == with_sums(text, tmp_path / "process", **more)
    assert (
        tables(result)["ledger.csv"] == on_loop(text, (("rounds", 4), *more.items()))["ledger.csv"]
    )


@pytest.mark.usefixtures("record_second_worker")
def test_lost_worker_without_states_repeats_its_sum(tmp_path: Path) -> None:
    killer = KillWorker(after=1)
    with pytest.warns(UserWarning, match="had no states and is replaced"):
        result = on_ray("fedavg", tmp_path / "ray", progress=killer, **SUMS)
    assert tables(result) == with_sums("fedavg", tmp_path / "process")
    assert killer.first_rounds == [0], "the run went back to a checkpoint"


@pytest.mark.usefixtures("record_second_worker")
def test_sums_are_the_same_when_states_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    killer = KillWorker(after=2)
    with pytest.warns(UserWarning, match="went on from its last checkpoint"):
        result = on_ray("scaffold", tmp_path / "ray", progress=killer, **SUMS)
    assert tables(result) == with_sums("scaffold", tmp_path / "process")
    assert killer.first_rounds == [0, 2]


def test_error_at_a_worker_is_one_sentence(tmp_path: Path) -> None:
    method = tmp_path / "failing.py"
    method.write_text(FAILING)
    with pytest.raises(
        ComityError, match=r"^ValueError in local \(failing\.py:8\): nothing works at "
    ):
        on_ray(str(method), tmp_path / "run")


def test_more_workers_than_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="has 2 CPUs, fewer than 3 workers"):
        comity.run("fedavg", out=tmp_path, engine="ray", workers=3, **SMALL)


def test_a_worker_with_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "installed_versions", lambda: ["0.0.1", "2.13.0"])
    with pytest.raises(
        ComityError, match=r"but here are 0\.0\.1 and 2\.13\.0: install the same everywhere"
    ):
        Cluster(1)
