"""The same bytes on a cluster of two nodes as in a loop, whoever dies on the way."""

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
    async def local(self, mine, m, party, key):
        raise ValueError(f"nothing works at {party.name}")
"""


@pytest.fixture(scope="module", autouse=True)
def _kept(two_nodes: Any) -> Iterator[None]:
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
def test_ray_equals_loop_when_half_take_part(text: str, tmp_path: Path) -> None:
    half = {"participation": 0.5, "rounds": 4}
    assert tables(on_ray(text, tmp_path, **half)) == on_loop(text, tuple(half.items()))


def test_ray_equals_loop_with_newcomers_absences_and_a_share_of_evaluations(tmp_path: Path) -> None:
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
    seen: list[list[tuple[str, int]]] = []
    close = RayEngine.close

    def looked(engine: RayEngine) -> None:
        if engine._cluster:
            seen.append(list(engine._cluster.places))
        close(engine)

    monkeypatch.setattr(RayEngine, "close", looked)
    comity.compare(["fedavg", "solo"], out=tmp_path, engine="ray", workers=2, **SMALL)
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len({node for node, _ in seen[0]}) == 2


def test_parcels_are_locked_where_the_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    function = RayEngine.run

    def looked(engine: RayEngine, *args: Any) -> Iterator[Any]:
        for i, answer in function(engine, *args):
            found.extend(sealed_in(answer.reply))
            yield i, answer

    monkeypatch.setattr(RayEngine, "run", looked)
    on_ray("fed-sps", tmp_path, rounds=1)
    assert found
    assert all(isinstance(unseal(sealed), Cipher) for sealed in found)


class Killing:
    """Kills the run's second worker after a round, once."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.begun: list[int] = []

    def begin(self, job: Any, first_round: int) -> None:
        self.begun.append(first_round)

    def add_replies(self, count: int) -> None:
        pass

    def round(self, t: int, figure: float | None, ledger: Any) -> None:
        if t == self.after and len(self.begun) == 1:
            os.kill(KILLED[-1], signal.SIGKILL)

    def end(self) -> None:
        pass


KILLED: list[int] = []


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of each run's second worker, as it begins."""
    begin = RayEngine._begin

    def began(engine: RayEngine) -> None:
        begin(engine)
        assert engine._cluster
        KILLED.append(engine._cluster.places[1][1])

    monkeypatch.setattr(RayEngine, "_begin", began)


@pytest.mark.usefixtures("noted")
def test_a_dead_worker_that_held_nothing_is_replaced(tmp_path: Path) -> None:
    killing = Killing(after=1)
    with pytest.warns(UserWarning, match="had no states and is replaced"):
        result = on_ray("fedavg", tmp_path, progress=killing, rounds=4)
    assert tables(result) == on_loop("fedavg", (("rounds", 4),))
    assert killing.begun == [0], "nobody went back"


@pytest.mark.usefixtures("noted")
def test_all_go_back_to_the_checkpoint_when_states_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    killing = Killing(after=2)
    with pytest.warns(UserWarning, match="went on from its last checkpoint"):
        result = on_ray("scaffold", tmp_path, progress=killing, rounds=4)
    assert tables(result) == on_loop("scaffold", (("rounds", 4),))
    assert killing.begun == [0, 2]
    assert any(
        "went on from its last checkpoint" in warning
        for warning in warning_texts(result.summary, "during")
    )


@pytest.mark.usefixtures("noted")
def test_all_begin_again_when_there_is_no_checkpoint_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "3600")
    killing = Killing(after=1)
    with pytest.warns(UserWarning, match="went on from its last checkpoint"):
        result = on_ray("scaffold", tmp_path, progress=killing, rounds=3)
    assert tables(result) == on_loop("scaffold", (("rounds", 3),))


SUMS = {"partial_sums": True, "rounds": 4}


def with_sums(text: str, out: Path, **settings: Any) -> dict[str, bytes]:
    """The same in two processes: parties are dealt to workers alike, and so are the sums."""
    return tables(
        comity.run(text, out=out, engine="process", workers=2, **(SMALL | SUMS | settings))
    )


@pytest.mark.parametrize("text", ["fedavg", "scaffold", "fedavg+dbe"])
def test_partial_sums_are_those_of_processes(text: str, tmp_path: Path) -> None:
    """To the bit; how far that may be from a loop is in tests/engines/test_partial_sums.py."""
    more: dict[str, Any] = {"absent": "random(offline=0.2,lost=0.2)", "participation": 0.75}
    found = on_ray(text, tmp_path / "ray", **SUMS | more)
    assert SUMMED in warning_texts(found.summary, "during")
    assert tables(found) == with_sums(text, tmp_path / "process", **more)
    assert (
        tables(found)["ledger.csv"] == on_loop(text, (("rounds", 4), *more.items()))["ledger.csv"]
    )


@pytest.mark.usefixtures("noted")
def test_a_dead_worker_that_held_nothing_is_asked_again_for_its_sum(tmp_path: Path) -> None:
    killing = Killing(after=1)
    with pytest.warns(UserWarning, match="had no states and is replaced"):
        result = on_ray("fedavg", tmp_path / "ray", progress=killing, **SUMS)
    assert tables(result) == with_sums("fedavg", tmp_path / "process")
    assert killing.begun == [0], "nobody went back"


@pytest.mark.usefixtures("noted")
def test_sums_after_states_died_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    killing = Killing(after=2)
    with pytest.warns(UserWarning, match="went on from its last checkpoint"):
        result = on_ray("scaffold", tmp_path / "ray", progress=killing, **SUMS)
    assert tables(result) == with_sums("scaffold", tmp_path / "process")
    assert killing.begun == [0, 2]


def test_what_goes_wrong_at_a_worker_is_said_in_one_sentence(tmp_path: Path) -> None:
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
