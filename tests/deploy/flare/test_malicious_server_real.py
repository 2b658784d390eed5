"""A malicious server over a real job of NVIDIA FLARE: the site refuses or charges every attack, and
its own ledger and log say so. `tests/adversary` has the attacks one by one, within one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from comity.deploy.handler import LOG
from comity.deploy.release_ledger import ReleaseLedger

pytest.importorskip("nvflare")

from attacking_server import ATTACKED, ATTACKS
from malicious_server import METHOD, SETTINGS, SIZES
from real_sites import RealSites

RUN = "attacked"
REFUSED = {
    "unsigned beginning": "does not come from the server",
    "other settings": "another run than the submitter has signed",
    "round 0": "not in the plan",
    "a round too many": "asked for round 4",
    "another occurrence": "not in the plan",
    "another function": "not in the plan",
    "unsigned call": "does not come from the server",
    "changed on the way": "does not come from the server",
    "replayed": "answered once",
    "alone": "reports no model of its own data alone",
    "after the end": "has ended",
}


class Outcome:
    """What the server got, and what the site wrote."""

    def __init__(self, real: RealSites) -> None:
        lines = (real.hub / ATTACKS).read_text(encoding="utf-8").splitlines()
        results: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.refused = {row["attack"]: row["refused"] for row in results}
        self.values = {
            row["attack"]: torch.tensor(row["values"]) for row in results if "values" in row
        }
        self.site = real.site(ATTACKED)
        self.log = (self.site / LOG).read_text(encoding="utf-8")
        self.rows = [row for row in ReleaseLedger(self.site).rows() if row.run == RUN]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    real = RealSites(tmp_path_factory.mktemp("attacked") / "real", SIZES)
    for name in real.names:
        real.sites.change(name, {'epsilon = "inf"': "epsilon = 5.0"})
    try:
        real.start("server", handler="attacking_server")
        real.start(*real.names)
        settings = {"algorithm": METHOD, "data": "sites", "partition": "natural", **SETTINGS}
        with real.jobs() as jobs:
            real.wait_for(jobs)
            job = jobs.submit({"run": RUN, "settings": settings, "sites": list(real.names)})
            assert jobs.wait(job, seconds=180) == "FINISHED:COMPLETED", real.output("server")
        yield Outcome(real)
    finally:
        real.close()


def test_the_site_took_part(outcome: Outcome) -> None:
    """The run itself is in order, so that refusals are due to the attacks."""
    for step in ("begin", "call", "end"):
        assert outcome.refused[step] == ""


@pytest.mark.parametrize("attack", REFUSED)
def test_the_attack_is_refused(outcome: Outcome, attack: str) -> None:
    assert REFUSED[attack] in outcome.refused[attack]
    assert f"refused: {outcome.refused[attack]}" in outcome.log


def test_all_attacks_were_made(outcome: Outcome) -> None:
    answered = {"begin", "call", "the same call", "another message", "end"}
    assert outcome.refused.keys() == REFUSED.keys() | answered


def test_the_same_request_gets_the_same_reply(outcome: Outcome) -> None:
    assert torch.equal(outcome.values["call"], outcome.values["the same call"])


def test_another_message_gets_other_noise_and_is_charged(outcome: Outcome) -> None:
    """The ledger has two releases of one call, each with the digest of its request, and nothing of
    any other attack.
    """
    difference = outcome.values["another message"] - outcome.values["call"]
    assert difference.std() > outcome.values["call"].std()  # √2 times, if the noise is independent
    assert len({row.digest for row in outcome.rows}) == 2
    assert {(row.charge.round, row.charge.call) for row in outcome.rows} == {(1, "local")}
    assert all(row.charge.to_release() for row in outcome.rows)
