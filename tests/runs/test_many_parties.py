"""Thousands of parties: preparing is linear, a share evaluates, and the ledger adds up."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity.data import Dataset
from comity.errors import UsageError
from comity.reporting import report
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.evaluation import SHARE
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet
from comity.wire import ledger as ledgers
from comity.wire.ledger import ADDED_UP, EVERYBODY, Charge, Ledger

SMALL: dict[str, Any] = {
    "data": "digits",
    "parties": 8,
    "model": "mlp2(width=6)",
    "engine": "loop",
    "rounds": 6,
}


def federation(parties: int) -> comity.Federation:
    count = 3 * parties
    dataset = Dataset("many", torch.arange(2.0 * count).view(count, 2), torch.arange(count) % 2, 2)
    return dataset.partition("iid", parties=parties, validation=0)


def preparation_cost(parties: int) -> tuple[int, float]:
    """Function calls and seconds that preparing a run of so many parties takes (best of three)."""
    fed = federation(parties)
    experiment = config.experiment(
        {"model": "linear", "engine": "loop", "participation": 0.01, "newcomers": 2}
    )
    calls = 0

    def count_calls(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        prepare(experiment, fed)
    finally:
        sys.setprofile(None)
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        prepare(experiment, fed)
        seconds.append(time.process_time() - begin)
    return calls, min(seconds)


@pytest.mark.long
def test_preparing_is_linear() -> None:
    """Function calls are counted. Work inside one call (such as a slice of all names) shows only in
    seconds, which have a wide margin.
    """
    few, many = preparation_cost(500), preparation_cost(4_000)
    assert many[0] < 8.5 * few[0]
    assert many[1] < 24 * few[1]


def test_a_share_evaluates_and_in_the_end_all_do(tmp_path: Path) -> None:
    result = comity.run("scaffold", out=tmp_path / "run", eval_share=0.25, **SMALL)
    evaluations_by_round = Counter(
        row.round for row in result.metrics if row.metric == "accuracy" and row.split == "test"
    )
    assert evaluations_by_round == {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 8}
    parties_by_round = {
        t: {row.party for row in result.metrics if row.round == t and row.split == "test"}
        for t in range(6)
    }
    assert len(set().union(*parties_by_round.values())) > 4, "a new sample each time"
    assert result.summary["accuracy"]["best_round"]["round"] == 6, (
        "in other rounds not all parties were evaluated"
    )
    assert result.summary["accuracy"]["as_of"] == {}
    assert SHARE in warning_texts(result.summary, "during")
    assert len([row for row in result.metrics if row.split == "pooled"]) <= 1
    evaluated = Counter(
        row.round for row in result.ledger if row.kind == "eval" and row.dst == "server"
    )
    assert evaluated == evaluations_by_round


def test_a_share_changes_nothing_but_who_evaluates(tmp_path: Path) -> None:
    whole = comity.run("scaffold", out=tmp_path / "whole", **SMALL)
    share = comity.run("scaffold", out=tmp_path / "share", eval_share=0.5, **SMALL)
    assert set(share.metrics) < set(whole.metrics)
    assert [row for row in whole.metrics if row.round == 6] == [
        row for row in share.metrics if row.round == 6
    ]
    assert [row for row in whole.ledger if row.kind != "eval"] == [
        row for row in share.ledger if row.kind != "eval"
    ]
    assert SHARE not in warning_texts(whole.summary, "during")


def test_who_evaluates_does_not_depend_on_who_is_left_out(tmp_path: Path) -> None:
    all_ = comity.run("solo", out=tmp_path / "all", eval_share=0.5, **SMALL)
    less = comity.run("solo", out=tmp_path / "less", eval_share=0.5, without=("p0", "p3"), **SMALL)
    expected = {
        (row.round, row.party) for row in all_.metrics if row.party not in ("p0", "p3", "server")
    }
    assert {(row.round, row.party) for row in less.metrics if row.party != "server"} == expected


def test_patience_needs_everybody() -> None:
    with pytest.raises(UsageError, match="either patience or eval_share"):
        config.experiment({"patience": 3, "eval_share": 0.5})


def test_a_ledger_of_many_adds_up() -> None:
    apart, summed = Ledger(), Ledger(summed=True)
    for ledger in (apart, summed):
        for i in range(3):
            ledger.charge(1, "local", "server", f"p{i}", "down", 100)
        for i in range(3):
            ledger.charge(1, "local", f"p{i}", "server", "up", 10 + i)
        ledger.charge(1, "swap", "p0", "p2", "peer", 7)
        ledger.charge(1, "swap", "p1", "p2", "peer", 0)
    assert summed.take() == [
        Charge(1, "local", "server", EVERYBODY, "down", 300),
        Charge(1, "local", EVERYBODY, "server", "up", 33),
        Charge(1, "swap", EVERYBODY, EVERYBODY, "peer", 7),
    ]
    assert summed.take() == []
    assert summed.total == apart.total
    assert not Ledger.for_parties(ledgers.MAX_PARTY_ROWS).summed
    assert Ledger.for_parties(ledgers.MAX_PARTY_ROWS + 1).summed


@pytest.mark.parametrize("text", ["fed-sps", "fedavg"])
def test_a_run_of_many_has_the_same_totals_and_a_report(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = comity.run(text, out=tmp_path / "apart", **SMALL | {"rounds": 2})
    monkeypatch.setattr(ledgers, "MAX_PARTY_ROWS", 7)
    together = comity.run(text, out=tmp_path / "together", **SMALL | {"rounds": 2})
    assert together.summary["bytes"] == apart.summary["bytes"]
    for round_, kind in {(row.round, row.kind) for row in apart.ledger}:
        sums = [
            sum(row.bytes for row in run.ledger if (row.round, row.kind) == (round_, kind))
            for run in (apart, together)
        ]
        assert sums[0] == sums[1]
    assert {end for row in together.ledger for end in (row.src, row.dst)} == {"server", EVERYBODY}
    assert warning_texts(together.summary, "during") == [
        *warning_texts(apart.summary, "during"),
        ADDED_UP,
    ]
    page = Path(report(together.folder, quick=True)).read_text(encoding="utf-8")
    assert "bytes-by-round" in page
    assert "bytes-by-party" not in page


def test_a_resumed_ledger_of_many_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "MAX_PARTY_ROWS", 7)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    whole = comity.run("scaffold", out=tmp_path / "whole", **SMALL)

    class Impatient(Quiet):
        def round(self, t: int, figure: float | None, ledger: Ledger) -> None:
            if t == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comity.run("scaffold", out=tmp_path / "half", progress=Impatient(), **SMALL)
    again = comity.run("scaffold", out=tmp_path / "half", resume=True, **SMALL)
    assert (again.folder / "ledger.csv").read_bytes() == (whole.folder / "ledger.csv").read_bytes()


def test_a_party_named_parties_is_refused() -> None:
    x, y = torch.rand(20, 3), torch.arange(20) % 2
    with pytest.raises(UsageError, match="stands for all parties together"):
        comity.Federation.from_arrays({"Parties": (x, y), "b": (x, y)})
