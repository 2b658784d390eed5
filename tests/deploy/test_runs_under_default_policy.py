"""Runs under the default site policy: which values leave a site, and how a run works without the
others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Sites, ended, figures, watched

from comity.deploy import site_results
from comity.deploy.data import SiteSplit, site_federation
from comity.deploy.messages import REPLIES, REQUESTS, Done, RunCall, unpack
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.server import FAILURE
from comity.errors import CorruptedFile
from comity.runs import config
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.wire.codec import decode

MODEL = "mlp2(width=8)"
SIZES = {"north": (40, 23), "east": (30, 7), "south": (34, 17)}
USUAL: dict[str, Any] = {"model": MODEL, "rounds": 3, "test": "official", "lr": 0.05}


@pytest.fixture(autouse=True)
def _without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_results, "export", lambda *_: []
    )  # it takes seconds, and is tested elsewhere
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture
def default_sites(tmp_path: Path) -> Sites:
    """Sites with the policy of a new site."""
    return Sites(tmp_path / "strict", SIZES, {})


def labels(sites: Sites, name: str) -> list[bytes]:
    """The bytes of a site's training and test labels, in each dtype that a tensor may have."""
    data = site_federation(
        name,
        sites.site(name) / "data",
        SiteSplit.of(config.experiment({"test": "official", "partition": "natural"})),
    )
    party = data.parties[name]
    kinds = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32)
    return [
        part.y.to(kind).numpy().tobytes() for part in (party.test, party.train) for kind in kinds
    ]


def test_labels_outcomes_and_class_counts_stay_at_the_sites(default_sites: Sites) -> None:
    transport = default_sites.transport()
    traffic = watched(transport)
    folder = default_sites.run("fedavg", "quiet", transport, **USUAL)
    summary = ended(folder)
    all_traffic = b"".join(message for _, message in traffic)
    for name in default_sites.names:
        assert not any(label_bytes in all_traffic for label_bytes in labels(default_sites, name)), (
            name
        )
        introduction = json.loads((folder / "parties.json").read_text())[name]
        assert introduction["said"]["counts"] is None
    for _, message in traffic:
        with_body = [kinds for kinds in (REQUESTS, REPLIES) if _reads(message, kinds)]
        head, body = unpack(message, with_body[0], 1 << 30)
        if isinstance(head, Done) and body:
            assert decode(body).answers is None
    assert (folder / "outcomes.csv").read_text().splitlines()[1:] == []
    assert summary["accuracy"]["mean"] is not None
    label_bytes = RunFolder(default_sites.site("north") / "runs" / "quiet")
    assert (
        len((label_bytes.path / "outcomes.csv").read_text().splitlines()) == 1 + SIZES["north"][1]
    )  # the site keeps them


def _reads(message: bytes, kinds: frozenset[type]) -> bool:
    try:
        unpack(message, kinds, 1 << 30)
    except CorruptedFile:
        return False
    return True


def test_unknown_label_skew_is_a_warning(default_sites: Sites) -> None:
    """Without class counts, it is unknown whether labels differ between parties."""
    for name in default_sites.names:
        default_sites.change(name, {"single_records = []": 'single_records = ["representations"]'})
    summary = ended(default_sites.run("adcol(hidden=4)", "skew", **USUAL))
    assert any(
        "is not known, because a party does not reveal" in text
        for text in warning_texts(summary, "before")
    )


def test_metrics_of_few_samples_are_withheld(default_sites: Sites) -> None:
    """East has seven test samples, and all sites have few validation samples: their metrics are
    withheld, and no mean reveals them.
    """
    folder = default_sites.run("fedavg", "few", **USUAL)
    summary = ended(folder)
    assert summary["rounds"] == 3
    assert figures(folder, "east", "test") == []
    assert len(figures(folder, "north", "test")) == 4
    assert all(figures(folder, name, "validation") == [] for name in default_sites.names)
    assert figures(folder, "server", "pooled") == []  # the pooled metric would reveal that of east
    assert summary["accuracy"]["per_party"]["east"] is None
    assert summary["accuracy"]["as_of"] == {"east": None}
    assert (
        len(figures(default_sites.site("east") / "runs" / "few", "east", "test")) == 4
    )  # the site itself has its metrics
    assert summary["withheld"] == ["east"]


def test_run_without_any_metrics(default_sites: Sites) -> None:
    """A run without any metrics is refused before training. If policies change during a run,
    metrics end, and the run continues.
    """
    for name in default_sites.names:
        default_sites.change(name, {"records = 10\n": "records = 25\n"})
    folder = default_sites.run("fedavg", "none", **USUAL)
    assert (
        (folder / FAILURE).read_text().startswith("No site would send a score of its test samples")
    )
    for name in default_sites.names:
        default_sites.change(name, {"records = 25\n": "records = 5\n"})
    transport = default_sites.transport()

    def tighten_policies(who: str, request: bytes) -> str:
        head = unpack(request, REQUESTS, 1 << 30)[0]
        if isinstance(head, RunCall) and (head.call[2], who) == (1, "south"):
            for name in default_sites.names:
                default_sites.change(name, {"records = 5\n": "records = 25\n"})
        return ""

    transport.lost = tighten_policies
    summary = ended(default_sites.run("fedavg", "later", transport, patience=1, **USUAL))
    assert summary["rounds"] == 3  # missing metrics do not count as no improvement
    assert summary["accuracy"]["as_of"] == dict.fromkeys(default_sites.names, 0)


def test_patience_uses_test_metrics_when_validation_is_withheld(default_sites: Sites) -> None:
    summary = ended(default_sites.run("fedavg", "stops", patience=1, **USUAL))
    assert (
        "All have withheld figures of their validation samples: when to end was judged on test"
        " samples." in warning_texts(summary, "during")
    )


def test_outcomes_are_withheld_with_their_metric(default_sites: Sites) -> None:
    for name in default_sites.names:
        default_sites.change(name, {"outcomes = false": "outcomes = true"})
    folder = default_sites.run("fedavg", "outcomes", **USUAL)
    ended(folder)
    outcomes = (folder / "outcomes.csv").read_text()
    assert "north" in outcomes
    assert "east" not in outcomes  # its metric of seven test samples is withheld


def test_method_that_sends_class_counts_is_refused(default_sites: Sites) -> None:
    folder = default_sites.run("relay", "relay", **USUAL)
    why = (folder / FAILURE).read_text()
    assert why.startswith("No site takes part.")
    assert why.count("(kinds: class counts)") == 3


def test_class_means_of_few_samples_are_withheld(default_sites: Sites) -> None:
    for name in default_sites.names:
        default_sites.change(name, {'"gradients"]': '"gradients", "class counts"]'})
    for name in ("north", "south"):
        default_sites.change(name, {"records = 10\n": "records = 1\n"})
    folder = default_sites.run("relay", "means", **USUAL)
    warnings = warning_texts(ended(folder), "during")
    expected = "east takes no part: it lets values of 10 records or more leave"
    assert sum(text.startswith(expected) for text in warnings) == 1


def test_limits_of_bytes_per_run_and_in_total(default_sites: Sites) -> None:
    """A site that has reached its limit misses further calls, with a warning; the others continue."""
    bytes_of_a_run = sum(
        r.bytes
        for r in RunFolder(default_sites.run("fedavg", "one", **USUAL)).read_ledger()
        if r.src == "north"
    )
    default_sites.change("north", {'bytes = "10 GB"': f"bytes = {bytes_of_a_run // 2}"})
    folder = default_sites.run("fedavg", "two", **USUAL)
    assert any(
        "north was not heard" in text and "(bytes)" in text
        for text in warning_texts(ended(folder), "during")
    )
    rows = [r for r in RunFolder(folder).read_ledger() if r.src == "north" and r.kind != "setup"]
    assert 0 < sum(r.bytes for r in rows) <= bytes_of_a_run // 2
    bytes_sent = SentLedger(default_sites.site("north"), "north").total()
    default_sites.change(
        "north",
        {
            f"bytes = {bytes_of_a_run // 2}": 'bytes = "10 GB"',
            'bytes = "100 GB"': f"bytes = {bytes_sent + 100}",
        },
    )
    folder = default_sites.run("fedavg", "three", **USUAL)
    assert any("(budget: bytes)" in text for text in warning_texts(ended(folder), "during"))
    assert SentLedger(default_sites.site("north"), "north").total() <= bytes_sent + 100


def test_limit_of_the_size_of_a_message(default_sites: Sites) -> None:
    """The policy allows the request, and refuses the larger reply."""
    for name in default_sites.names:
        default_sites.change(name, {"single_records = []": 'single_records = ["representations"]'})
    settings = USUAL | {"model": "mlp2(width=40)"}
    largest = {"in": 0, "out": 0}
    transport = default_sites.transport()

    def measure_request(who: str, request: bytes) -> str:
        largest["in"] = max(largest["in"], len(request))
        return ""

    def measure_reply(who: str, answer: bytes) -> bytes:
        largest["out"] = max(largest["out"], len(answer))
        return answer

    transport.lost, transport.changed = measure_request, measure_reply
    default_sites.run("adcol(hidden=4)", "small", transport, **settings)
    assert largest["in"] + 200 < largest["out"]
    for run, limit, words in (
        ("whole", largest["out"] - 100, "north sends no message of"),
        ("payload", largest["in"] + 100, "The reply of local weighs"),
    ):
        policy = (default_sites.site("north") / "site.toml").read_text()
        default_sites.change("north", {'message = "1 GB"': f"message = {limit}"})
        transport = default_sites.transport()
        traffic = watched(transport)
        folder = default_sites.run("adcol(hidden=4)", run, transport, **settings)
        assert any(
            text.startswith(f"north was not heard in round 1: {words}")
            for text in warning_texts(ended(folder), "during")
        )
        assert max(len(message) for name, message in traffic if name == "north") <= limit
        assert not [
            row
            for row in RunFolder(default_sites.site("north") / "runs" / run).read_ledger()
            if row.kind == "up"
        ]
        (default_sites.site("north") / "site.toml").write_text(policy)
