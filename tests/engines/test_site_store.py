"""Storage of party states: the memory limit for states does not change the results of a run."""

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

LONG_METHODS = ["ditto", "fedavg+dbe", "fed-sps", "scaffold"]
SMALL = {"model": "mlp2(width=6)", "rounds": 3, "participation": 0.5}


@pytest.mark.sweep("adcol-process", "gossip.py-loop", "fedper-stacked")
@pytest.mark.parametrize("engine", ["loop", "process", "stacked"])
@pytest.mark.parametrize(
    "text", ["fedper", "adcol", GOSSIP, *(pytest.param(text, marks=pytest.mark.long) for text in LONG_METHODS)],
    ids=lambda text: Path(text).name,
)  # fmt: skip
def test_spilling_states_does_not_change_a_run(
    text: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for all states, for none, or for some gives equal tables and equal weights."""
    expected = run(
        text, tmp_path / "room", engine=engine, workers=None if engine == "loop" else 2, **SMALL
    )
    for bytes_ in (0, 3000):
        monkeypatch.setenv(STATE_BYTES_VARIABLE, str(bytes_))
        result = run(
            text,
            tmp_path / str(bytes_),
            engine=engine,
            workers=None if engine == "loop" else 2,
            **SMALL,
        )
        assert tables(result.folder) == tables(expected.folder)
        for name, theta in weights(expected).items():
            assert all(torch.equal(v, weights(result)[name][k]) for k, v in theta.items())


def test_only_sites_with_a_state_stay_in_memory() -> None:
    """FedAvg's parties have no state; FedPer's keep their heads."""
    for text, site_count in (("fedavg", 0), ("fedper", 4)):
        job = prepare(
            config.experiment({"algorithm": text, "model": "mlp2(width=6)", "engine": "loop"}),
            ragged(),
        )
        engine = job.engine()
        server = job.server(engine, Quiet())
        server.begin(1)
        job.algorithm.round(job.algorithm.init_server(job.root.fold("init"), job.info), server, 1)
        assert len(engine.sites._sites) == site_count  # type: ignore[attr-defined]


def test_initial_state_is_not_stored() -> None:
    """Reading a party's state before its first call stores nothing: it is the initial state."""
    job = prepare(
        config.experiment({"algorithm": "fedper", "model": "mlp2(width=6)", "engine": "loop"}),
        ragged(),
    )
    sites = SiteStore(job.algorithm, job.parties, Key(0))
    before = sites[2].mine
    assert leaves(before)
    assert sites.release([2]) == []
    assert all(a is b for a, b in zip(leaves(sites[2].mine), leaves(before), strict=True))


def test_free_space_in_a_spill_file_is_reused() -> None:
    file = SpillFile()
    places = [file.write(blob) for blob in (b"one", b"two, longer", b"", b"six")]
    assert [file.read(place) for place in places] == [b"one", b"two, longer", b"", b"six"]
    file.free(places[0])
    assert file.write(b"new") == places[0]
    assert file.write(b"end") not in places
    assert [file.read(place) for place in places] == [b"new", b"two, longer", b"", b"six"]


def test_invalid_state_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_BYTES_VARIABLE, "much")
    with pytest.raises(
        UsageError, match="COMITY_STATE_BYTES must be a number of bytes, not 'much'"
    ):
        prepare(config.experiment({"algorithm": "solo", "engine": "loop"}), ragged()).engine()


def test_parties_with_states_keep_their_worker_and_others_balance_the_load() -> None:
    loads = {0: 5, 1: 3, 2: 3, 3: 1, 7: 4}
    assert assign_parties(loads, 2, {}) == [[0, 2], [1, 3, 7]]
    assert assign_parties(loads, 2, {0: 1, 7: 1}) == [[1, 2, 3], [0, 7]]
    assert assign_parties({}, 2, {0: 1}) == [[], []]
