"""Parties' states on disk: the numbers of a run never depend on how much memory there is for
states.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matrix import GOSSIP, ragged, run, tables, weights

from comity.base.key import Key
from comity.base.record import leaves
from comity.engines.site_store import STATE_BYTES_VARIABLE, SiteStore
from comity.engines.versions import SpillFile
from comity.engines.workers import assign_parties
from comity.errors import UsageError
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.server_run import Quiet

MORE = ["ditto", "fedavg+dbe", "fed-sps", "scaffold"]
SMALL = {"model": "mlp2(width=6)", "rounds": 3, "participation": 0.5}


@pytest.mark.sweep("adcol-process", "gossip.py-loop", "fedper-stacked")
@pytest.mark.parametrize("engine", ["loop", "process", "stacked"])
@pytest.mark.parametrize(
    "text", ["fedper", "adcol", GOSSIP, *(pytest.param(text, marks=pytest.mark.long) for text in MORE)],
    ids=lambda text: Path(text).name,
)  # fmt: skip
def test_spilling_changes_nothing(
    text: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for all states, for none, or for some: equal tables and equal weights, after a resume
    too.
    """
    right = run(
        text, tmp_path / "room", engine=engine, workers=None if engine == "loop" else 2, **SMALL
    )
    for bytes_ in (0, 3000):
        monkeypatch.setenv(STATE_BYTES_VARIABLE, str(bytes_))
        ours = run(
            text,
            tmp_path / str(bytes_),
            engine=engine,
            workers=None if engine == "loop" else 2,
            **SMALL,
        )
        assert tables(ours.folder) == tables(right.folder)
        for name, theta in weights(right).items():
            assert all(torch.equal(v, weights(ours)[name][k]) for k, v in theta.items())


def test_only_those_who_keep_something_stay() -> None:
    """FedAvg's parties keep nothing, however many have worked; FedPer's keep their heads."""
    for text, staying in (("fedavg", 0), ("fedper", 4)):
        job = prepare(
            config.experiment({"algorithm": text, "model": "mlp2(width=6)", "engine": "loop"}),
            ragged(),
        )
        engine = job.engine()
        server = job.server(engine, Quiet())
        server.begin(1)
        job.algorithm.round(job.algorithm.init_server(job.root.fold("init"), job.info), server, 1)
        assert len(engine.sites._sites) == staying  # type: ignore[attr-defined]


def test_the_first_state_is_not_kept() -> None:
    """Looking at a party's state before it ever worked makes no state: it is the one that every run
    begins with.
    """
    job = prepare(
        config.experiment({"algorithm": "fedper", "model": "mlp2(width=6)", "engine": "loop"}),
        ragged(),
    )
    sites = SiteStore(job.algorithm, job.parties, Key(0))
    before = sites[2].mine
    assert leaves(before)
    assert sites.release([2]) == []
    assert all(a is b for a, b in zip(leaves(sites[2].mine), leaves(before), strict=True))


def test_a_place_in_a_spill_file_is_used_again() -> None:
    file = SpillFile()
    places = [file.write(blob) for blob in (b"one", b"two, longer", b"", b"six")]
    assert [file.read(place) for place in places] == [b"one", b"two, longer", b"", b"six"]
    file.free(places[0])
    assert file.write(b"new") == places[0]
    assert file.write(b"end") not in places
    assert [file.read(place) for place in places] == [b"new", b"two, longer", b"", b"six"]


def test_a_room_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_BYTES_VARIABLE, "much")
    with pytest.raises(
        UsageError, match="COMITY_STATE_BYTES must be a number of bytes, not 'much'"
    ):
        prepare(config.experiment({"algorithm": "solo", "engine": "loop"}), ragged()).engine()


def test_parties_go_home_and_the_others_where_least_is_to_do() -> None:
    loads = {0: 5, 1: 3, 2: 3, 3: 1, 7: 4}
    assert assign_parties(loads, 2, {}) == [[0, 2], [1, 3, 7]]
    assert assign_parties(loads, 2, {0: 1, 7: 1}) == [[1, 2, 3], [0, 7]]
    assert assign_parties({}, 2, {0: 1}) == [[], []]
