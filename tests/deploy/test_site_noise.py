"""Noise that hides something is drawn from a site's own secret: who knows the seed, which all do,
cannot take it away again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from in_process_sites import Handed, Sites, ended

from comity.base.key import Key
from comity.base.record import leaves
from comity.core.server import Server
from comity.deploy import site_results
from comity.deploy.messages import REPLIES, REQUESTS, RunCall, unpack
from comity.wire.codec import decode

USUAL: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official", "lr": 0.05}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), {"north": (31, 12), "east": (23, 9)})


def test_all_but_the_noise_is_everybodys() -> None:
    public, one, other = (
        Key.root(3),
        Key.root(3, b"one"),
        Key.root(3, b"other"),
    )
    for path in [("party", 0, 1, "local", 0), ("batches", 2), ("a",)]:
        keys = [key.fold(*path) for key in (public, one, other)]
        assert len({key.bits for key in keys}) == 1
        assert len({tuple(key.permutation(20).tolist()) for key in keys}) == 1
        assert len({key.numpy().random() for key in keys}) == 1
        assert len({torch.rand(1, generator=key.generator()).item() for key in keys}) == 1
        assert len({key.noise() for key in keys}) == 3
    deep = one.fold("a", 1).fold("b")
    assert deep.bits == public.fold("a", 1).fold("b").bits
    assert deep.noise() != public.fold("a", 1).fold("b").noise()
    assert deep.noise() == one.fold("a", 1).fold("b").noise()  # asking again would average it away
    assert one.fold("a").noise() != one.fold("b").noise()
    assert b"one" not in deep.noise()


def replies(transport: Handed) -> dict[tuple[str, Any], Any]:
    """What sites answer to works, by name and call."""
    asked: dict[str, Any] = {}
    found: dict[tuple[str, Any], Any] = {}

    def lost(name: str, request: bytes) -> str:
        asked[name] = unpack(request, REQUESTS, 1 << 30)[0]
        return ""

    def changed(name: str, answer: bytes) -> bytes:
        if isinstance(asked[name], RunCall):
            found[name, asked[name].call] = decode(unpack(answer, REPLIES, 1 << 30)[1])
        return answer

    transport.lost, transport.changed = lost, changed
    return found


NOISED = {
    "adcol(noise=lap_l1,hidden=4)": "local",
    "adcol(noise=gauss_l2,hidden=4)": "local",
    "fedavg+dbe(noise_s=0.5)": "mean",
}


@pytest.mark.parametrize("method", NOISED)
def test_noise_between_sites_is_not_that_of_a_loop(
    method: str, sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reply that has noise in it is another, from a letter that is the same; a second run
    of that name has the same.
    """
    transport = sites.transport()
    found = replies(transport)
    name = "".join(c for c in method if c.isalnum())
    ended(sites.run(method, name, transport, **USUAL))
    seen: dict[tuple[str, Any], Any] = {}
    accept = Server._accept

    def listening(self: Server, participation: Any, item: Any) -> Any:
        seen[self.info.name(item[0]), tuple(participation.call)] = item[1].reply
        return accept(self, participation, item)

    monkeypatch.setattr(Server, "_accept", listening)
    sites.pooled(method, tmp_path / "pooled", **USUAL)
    works = [(who, call) for who, call in found if call[0] == NOISED[method]]
    noisy = [(who, call) for who, call in works if call[2] == min(call[2] for _, call in works)]
    assert len(noisy) == 2
    for place in noisy:
        here, there = leaves(found[place]), leaves(seen[place])
        assert [one.shape for one in here] == [one.shape for one in there]
        assert not any(
            torch.equal(one, other)
            for one, other in zip(here, there, strict=True)
            if one.numel() > 1
        )


def test_noise_of_another_run_is_another(sites: Sites) -> None:
    """The same settings and messages under another name of the run."""
    found = []
    for run in ("asked1", "asked2"):
        transport = sites.transport()
        got = replies(transport)
        method = "adcol(noise=lap_l1,hidden=4)"
        ended(sites.run(method, run, transport, **(USUAL | {"rounds": 1})))
        found.append(got)
    [call] = {call for _, call in found[0] if call[2] == 1 and leaves(found[0]["north", call])}
    first, second = (leaves(got["north", call])[0] for got in found)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_noise_at_the_server_is_its_own(sites: Sites, tmp_path: Path) -> None:
    """DP-SGD on the discriminator hides parties' rows from other parties, who know the seed as
    well.
    """
    method = "adcol(disc_noise=1.0,hidden=4)"
    folder = sites.run(method, "trusted", **USUAL)
    ended(folder)
    pooled = sites.pooled(method, tmp_path / "pooled", **USUAL)
    assert (folder / "metrics.csv").read_text() != (pooled.folder / "metrics.csv").read_text()
    assert (folder / "ledger.csv").read_text() == (pooled.folder / "ledger.csv").read_text()
    plain = "adcol(disc_noise=0.0,hidden=4)"
    folder, pooled = (
        sites.run(plain, "plain", **USUAL),
        sites.pooled(plain, tmp_path / "plain", **USUAL),
    )
    assert (folder / "metrics.csv").read_text() == (pooled.folder / "metrics.csv").read_text()
