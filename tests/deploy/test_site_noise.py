"""Noise is drawn from a site's secret, so that a party that knows the seed cannot remove it."""

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
def _without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), {"north": (31, 12), "east": (23, 9)})


def test_secrets_change_only_the_noise() -> None:
    public_key, first_key, second_key = (
        Key.root(3),
        Key.root(3, b"one"),
        Key.root(3, b"other"),
    )
    for path in [("party", 0, 1, "local", 0), ("batches", 2), ("a",)]:
        keys = [key.fold(*path) for key in (public_key, first_key, second_key)]
        assert len({key.bits for key in keys}) == 1
        assert len({tuple(key.permutation(20).tolist()) for key in keys}) == 1
        assert len({key.numpy().random() for key in keys}) == 1
        assert len({torch.rand(1, generator=key.generator()).item() for key in keys}) == 1
        assert len({key.noise() for key in keys}) == 3
    folded_key = first_key.fold("a", 1).fold("b")
    assert folded_key.bits == public_key.fold("a", 1).fold("b").bits
    assert folded_key.noise() != public_key.fold("a", 1).fold("b").noise()
    assert (
        folded_key.noise() == first_key.fold("a", 1).fold("b").noise()
    )  # new noise at each repetition could be averaged out
    assert first_key.fold("a").noise() != first_key.fold("b").noise()
    assert b"one" not in folded_key.noise()


def record_replies(transport: Handed) -> dict[tuple[str, Any], Any]:
    """Record the replies of sites, by site and call."""
    last_requests: dict[str, Any] = {}
    replies_by_call: dict[tuple[str, Any], Any] = {}

    def record_request(name: str, request: bytes) -> str:
        last_requests[name] = unpack(request, REQUESTS, 1 << 30)[0]
        return ""

    def record_reply(name: str, answer: bytes) -> bytes:
        if isinstance(last_requests[name], RunCall):
            replies_by_call[name, last_requests[name].call] = decode(
                unpack(answer, REPLIES, 1 << 30)[1]
            )
        return answer

    transport.lost, transport.changed = record_request, record_reply
    return replies_by_call


FIRST_NOISY_FUNCTION = {
    "adcol(noise=lap_l1,hidden=4)": "local",
    "adcol(noise=gauss_l2,hidden=4)": "local",
    "fedavg+dbe(noise_s=0.5)": "mean",
}


@pytest.mark.parametrize("method", FIRST_NOISY_FUNCTION)
def test_noise_at_sites_differs_from_a_simulation(
    method: str, sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first noisy reply of each site differs from the simulation's, although the messages are
    equal.
    """
    transport = sites.transport()
    site_replies = record_replies(transport)
    name = "".join(c for c in method if c.isalnum())
    ended(sites.run(method, name, transport, **USUAL))
    loop_replies: dict[tuple[str, Any], Any] = {}
    accept = Server._accept

    def accept_and_record(self: Server, participation: Any, item: Any) -> Any:
        loop_replies[self.info.name(item[0]), tuple(participation.call)] = item[1].reply
        return accept(self, participation, item)

    monkeypatch.setattr(Server, "_accept", accept_and_record)
    sites.pooled(method, tmp_path / "pooled", **USUAL)
    calls = [(who, call) for who, call in site_replies if call[0] == FIRST_NOISY_FUNCTION[method]]
    first_calls = [
        (who, call) for who, call in calls if call[2] == min(call[2] for _, call in calls)
    ]
    assert len(first_calls) == 2
    for call_key in first_calls:
        site_tensors, loop_tensors = leaves(site_replies[call_key]), leaves(loop_replies[call_key])
        assert [tensor.shape for tensor in site_tensors] == [
            tensor.shape for tensor in loop_tensors
        ]
        assert not any(
            torch.equal(tensor, loop_tensor)
            for tensor, loop_tensor in zip(site_tensors, loop_tensors, strict=True)
            if tensor.numel() > 1
        )


def test_runs_with_different_names_have_different_noise(sites: Sites) -> None:
    """Two runs have equal settings and messages, and different names."""
    replies_by_run = []
    for run in ("asked1", "asked2"):
        transport = sites.transport()
        run_replies = record_replies(transport)
        method = "adcol(noise=lap_l1,hidden=4)"
        ended(sites.run(method, run, transport, **(USUAL | {"rounds": 1})))
        replies_by_run.append(run_replies)
    [call] = {
        call
        for _, call in replies_by_run[0]
        if call[2] == 1 and leaves(replies_by_run[0]["north", call])
    }
    first, second = (leaves(run_replies["north", call])[0] for run_replies in replies_by_run)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_noise_at_the_server_differs_from_a_simulation(sites: Sites, tmp_path: Path) -> None:
    """DP-SGD on the discriminator protects rows against other parties, which also know the seed."""
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
