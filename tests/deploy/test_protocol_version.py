"""The protocol between server and sites: who can take part with another version of Comity."""

from __future__ import annotations

from dataclasses import fields
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import OPEN, Sites, ended

from comity.deploy import session, site_run
from comity.deploy.messages import REPLIES, REQUESTS
from comity.deploy.server import FAILURE
from comity.deploy.session import PROTOCOL
from comity.runs.run_warnings import warning_texts

SIZES = {"north": (30, 12), "south": (24, 12)}
SETTINGS: dict[str, Any] = {"model": "linear", "rounds": 1}
DIGESTS = {1: "bdecb5e139f18f62"}
"""The fields of all messages, by protocol. If a message changes, `PROTOCOL` grows, and this table
gets a row.
"""


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sites:
    monkeypatch.setattr("comity.deploy.site_results._write_page", lambda run: [])
    return Sites(tmp_path, SIZES, OPEN | {"export = true": "export = false"})


def test_messages_of_a_protocol_do_not_change() -> None:
    text = "\n".join(
        f"{kind.__name__}({', '.join(f'{f.name}: {f.type}' for f in fields(kind))})"
        for kind in sorted(REQUESTS | REPLIES, key=lambda kind: kind.__name__)
    )
    digest = sha256(text.encode()).hexdigest()[:16]
    assert DIGESTS.get(PROTOCOL) == digest, f"the messages of protocol {PROTOCOL} are now:\n{text}"


def test_site_with_another_protocol_is_told_which(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is newer. What follows the number may look like anything."""
    handlers = sites.transport()
    monkeypatch.setattr("in_process_sites.content_of", lambda request: request)
    monkeypatch.setattr(
        session.AuthenticatedTransport,
        "wrap",
        lambda self, name, request: session.SIGNED + (7).to_bytes(4, "little") + b"another form",
    )
    folder = sites.run("fedavg", "newer", handlers, **SETTINGS)
    message = (folder / FAILURE).read_text()
    assert (
        f"north speaks protocol {PROTOCOL} (Comity {version('comity')}), the server protocol 7:"
        " install a newer Comity where the number is smaller." in message
    )
    assert "refused" in message.splitlines()


def test_site_with_another_version_takes_part(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_run, "version", lambda name: "9.9.9")
    summary = ended(sites.run("fedavg", "other", **SETTINGS))
    (north, south) = (text for text in warning_texts(summary) if "has Comity" in text)
    assert north.startswith(
        f"north has Comity 9.9.9, the server {version('comity')}: they understand each other, but"
    )
    assert south.startswith("south has Comity 9.9.9")
