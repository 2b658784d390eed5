"""What leaves by a new site's law, and what a run is without what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Sites, ended, figures, watched

from comity.deploy import site_results, site_store
from comity.deploy.data import SiteSplit, site_federation
from comity.deploy.messages import REPLIES, REQUESTS, Done, RunCall, unpack
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
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_results, "export", lambda *_: []
    )  # it takes seconds, and has a test of its own
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture
def strict(tmp_path: Path) -> Sites:
    """Whose laws are those of new sites."""
    return Sites(tmp_path / "strict", SIZES, {})


def labels(sites: Sites, name: str) -> list[bytes]:
    """A site's labels of its training and test samples, as any number that a tensor may hold them
    in.
    """
    data = site_federation(
        name,
        sites.site(name) / "data",
        SiteSplit.of(config.experiment({"test": "official", "partition": "natural"})),
    )
    own = data.parties[name]
    kinds = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32)
    return [part.y.to(kind).numpy().tobytes() for part in (own.test, own.train) for kind in kinds]


def test_labels_answers_and_class_counts_stay_at_home(strict: Sites) -> None:
    transport = strict.transport()
    seen = watched(transport)
    folder = strict.run("fedavg", "quiet", transport, **USUAL)
    summary = ended(folder)
    carried = b"".join(message for _, message in seen)
    for name in strict.names:
        assert not any(own in carried for own in labels(strict, name)), name
        said = json.loads((folder / "parties.json").read_text())[name]
        assert said["said"]["counts"] is None
    for _, message in seen:
        with_body = [kinds for kinds in (REQUESTS, REPLIES) if _reads(message, kinds)]
        head, body = unpack(message, with_body[0], 1 << 30)
        if isinstance(head, Done) and body:
            assert decode(body).answers is None
    assert (folder / "outcomes.csv").read_text().splitlines()[1:] == []
    assert summary["accuracy"]["mean"] is not None
    own = RunFolder(strict.site("north") / "runs" / "quiet")
    assert (
        len((own.path / "outcomes.csv").read_text().splitlines()) == 1 + SIZES["north"][1]
    )  # at home they are kept


def _reads(message: bytes, kinds: frozenset[type]) -> bool:
    try:
        unpack(message, kinds, 1 << 30)
    except CorruptedFile:
        return False
    return True


def test_what_is_not_known_is_told(strict: Sites) -> None:
    """Whether labels differ, where nobody tells class counts."""
    for name in strict.names:
        strict.change(name, {"single_records = []": 'single_records = ["representations"]'})
    summary = ended(strict.run("adcol(hidden=4)", "skew", **USUAL))
    assert any(
        "is not known, because a party does not reveal" in text
        for text in warning_texts(summary, "before")
    )


def test_figures_of_few_samples_are_withheld_and_all_else_goes_on(strict: Sites) -> None:
    """East has seven test samples, and all have few to validate with: one accuracy less, and no
    mean that hides it.
    """
    folder = strict.run("fedavg", "few", **USUAL)
    summary = ended(folder)
    assert summary["rounds"] == 3
    assert figures(folder, "east", "test") == []
    assert len(figures(folder, "north", "test")) == 4
    assert all(figures(folder, name, "validation") == [] for name in strict.names)
    assert figures(folder, "server", "pooled") == []  # it would be that of the others
    assert summary["accuracy"]["per_party"]["east"] is None
    assert summary["accuracy"]["as_of"] == {"east": None}
    assert (
        len(figures(strict.site("east") / "runs" / "few", "east", "test")) == 4
    )  # the site itself knows
    assert summary["withheld"] == ["east"]


def test_nobodys_figures_are_told(strict: Sites) -> None:
    """Then a run is refused before anybody trains for it; and if the laws come to that in its
    midst, no figure is made up.
    """
    for name in strict.names:
        strict.change(name, {"records = 10\n": "records = 25\n"})
    folder = strict.run("fedavg", "none", **USUAL)
    assert (
        (folder / FAILURE).read_text().startswith("No site would send a score of its test samples")
    )
    for name in strict.names:
        strict.change(name, {"records = 25\n": "records = 5\n"})
    transport = strict.transport()

    def lost(who: str, request: bytes) -> str:
        head = unpack(request, REQUESTS, 1 << 30)[0]
        if isinstance(head, RunCall) and (head.call[2], who) == (1, "south"):
            for name in strict.names:
                strict.change(name, {"records = 5\n": "records = 25\n"})
        return ""

    transport.lost = lost
    summary = ended(strict.run("fedavg", "later", transport, patience=1, **USUAL))
    assert summary["rounds"] == 3  # no figure is not the same figure again
    assert summary["accuracy"]["as_of"] == dict.fromkeys(strict.names, 0)


def test_rounds_that_are_judged_on_test_samples_for_want_of_others(strict: Sites) -> None:
    summary = ended(strict.run("fedavg", "stops", patience=1, **USUAL))
    assert (
        "All have withheld figures of their validation samples: when to end was judged on test"
        " samples." in warning_texts(summary, "during")
    )


def test_outcomes_do_not_leave_where_their_figure_does_not(strict: Sites) -> None:
    for name in strict.names:
        strict.change(name, {"outcomes = false": "outcomes = true"})
    folder = strict.run("fedavg", "outcomes", **USUAL)
    ended(folder)
    told = (folder / "outcomes.csv").read_text()
    assert "north" in told
    assert "east" not in told  # of whose seven test samples no figure may leave


def test_a_method_that_tells_class_counts_is_refused_by_all(strict: Sites) -> None:
    folder = strict.run("relay", "relay", **USUAL)
    why = (folder / FAILURE).read_text()
    assert why.startswith("No site takes part.")
    assert why.count("(kinds: class counts)") == 3


def test_means_of_classes_with_few_samples(strict: Sites) -> None:
    for name in strict.names:
        strict.change(name, {'"gradients"]': '"gradients", "class counts"]'})
    for name in ("north", "south"):
        strict.change(name, {"records = 10\n": "records = 1\n"})
    folder = strict.run("relay", "means", **USUAL)
    warnings = warning_texts(ended(folder), "during")
    assert sum("east lets values of 10 records or more leave" in text for text in warnings) == 1


def test_bytes_of_a_run_and_of_all_runs(strict: Sites) -> None:
    """A site that has sent what it may is not heard any more; the others go on, and it is said why."""
    once = sum(
        r.bytes
        for r in RunFolder(strict.run("fedavg", "one", **USUAL)).read_ledger()
        if r.src == "north"
    )
    strict.change("north", {'bytes = "10 GB"': f"bytes = {once // 2}"})
    folder = strict.run("fedavg", "two", **USUAL)
    assert any(
        "north was not heard" in text and "(bytes)" in text
        for text in warning_texts(ended(folder), "during")
    )
    rows = [r for r in RunFolder(folder).read_ledger() if r.src == "north" and r.kind != "setup"]
    assert 0 < sum(r.bytes for r in rows) <= once // 2
    sent = site_store.bytes_sent(strict.site("north"), "north")
    strict.change(
        "north",
        {f"bytes = {once // 2}": 'bytes = "10 GB"', 'bytes = "100 GB"': f"bytes = {sent + 100}"},
    )
    folder = strict.run("fedavg", "three", **USUAL)
    assert any("(budget: bytes)" in text for text in warning_texts(ended(folder), "during"))
    assert site_store.bytes_sent(strict.site("north"), "north") <= sent + 100


def test_the_largest_message_that_may_leave(strict: Sites) -> None:
    """Under a policy that lets the request in, but not the reply out."""
    for name in strict.names:
        strict.change(name, {"single_records = []": 'single_records = ["representations"]'})
    wide = USUAL | {"model": "mlp2(width=40)"}
    largest = {"in": 0, "out": 0}
    transport = strict.transport()

    def lost(who: str, request: bytes) -> str:
        largest["in"] = max(largest["in"], len(request))
        return ""

    def changed(who: str, answer: bytes) -> bytes:
        largest["out"] = max(largest["out"], len(answer))
        return answer

    transport.lost, transport.changed = lost, changed
    strict.run("adcol(hidden=4)", "small", transport, **wide)
    assert largest["in"] + 200 < largest["out"]
    for run, most, words in (
        ("whole", largest["out"] - 100, "north sends no message of"),
        ("payload", largest["in"] + 100, "The reply of local weighs"),
    ):
        policy = (strict.site("north") / "site.toml").read_text()
        strict.change("north", {'message = "1 GB"': f"message = {most}"})
        transport = strict.transport()
        seen = watched(transport)
        folder = strict.run("adcol(hidden=4)", run, transport, **wide)
        assert any(
            text.startswith(f"north was not heard in round 1: {words}")
            for text in warning_texts(ended(folder), "during")
        )
        assert max(len(message) for name, message in seen if name == "north") <= most
        assert not [
            row
            for row in RunFolder(strict.site("north") / "runs" / run).read_ledger()
            if row.kind == "up"
        ]
        (strict.site("north") / "site.toml").write_text(policy)
