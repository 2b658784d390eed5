"""A curious site against the noise of a trusted server (`dp` with level=party): means of different
parties never have the same noise, and each one that was sent is charged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from in_process_sites import Handed, Sites, ended
from malicious_server import SIZES

from comity.algorithms.adcol import Adcol
from comity.base.key import Key
from comity.base.record import Params
from comity.core import FitRequest, Samples, Training
from comity.core.aggregate import NoisyAveraging
from comity.deploy import site_results
from comity.deploy.messages import REQUESTS, RunCall, unpack
from comity.runs.folder import RunFolder
from comity.runs.run_warnings import warning_texts
from comity.training.descent import train
from comity.training.requests import Fitted
from comity.wire.codec import decode

NOISE = 2.0
METHOD = f"fedavg+dp(level=party,noise={NOISE},clip=1.0,amplify=false)"
SETTINGS: dict[str, Any] = {
    "model": "linear", "rounds": 3, "steps": 2, "batch": 16, "lr": 0.1, "test": "official",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "1000")


class Stopped(BaseException):
    """The server's process ends here."""


def received(transport: Handed, lost: set[str], stop_in: int) -> dict[int, Params]:
    """What north is sent in each round; sites in `lost` are offline in all rounds."""
    messages: dict[int, Params] = {}

    def hook(name: str, request: bytes) -> str:
        head, body = unpack(request, REQUESTS, 1 << 30)
        if not isinstance(head, RunCall):
            return ""
        if head.call[2] == stop_in:
            raise Stopped
        if name == "north":
            messages[head.call[2]] = decode(body).theta
        return "offline" if name in lost else ""

    transport.lost = hook
    return messages


def test_a_restart_with_another_site_has_other_noise(tmp_path: Path) -> None:
    """North is sent the mean of round 1 twice: with east's model in it, and without. The difference
    would be east's model, if both had the same noise.
    """
    sites = Sites(tmp_path / "sites", SIZES | {"south": (40, 12)})
    first = sites.transport()
    with_all = received(first, set(), stop_in=3)
    with pytest.raises(Stopped):
        sites.run(METHOD, "restart", first, **SETTINGS)
    second = sites.transport()
    without_east = received(second, {"east"}, stop_in=99)
    folder = sites.run(METHOD, "restart", second, **SETTINGS)
    summary = ended(folder)
    assert all(torch.equal(with_all[1][name], value) for name, value in without_east[1].items())
    difference = torch.cat(
        [(with_all[2][name] - value).flatten() for name, value in without_east[2].items()]
    )
    spread = NOISE * (1 / 3**2 + 1 / 2**2) ** 0.5
    assert difference.std() > 0.8 * spread
    rows = [row for row in RunFolder(folder).read_privacy() if row.against == "parties"]
    assert len([row for row in rows if row.party == "north" and row.round == 1]) == 2
    assert any("count twice" in text for text in warning_texts(summary, "during"))


def test_the_same_replies_have_the_same_noise_and_others_do_not() -> None:
    key = Key.root(3, b"secret", binds=True)

    def noisy(value: float) -> torch.Tensor:
        averaging = NoisyAveraging(key, lambda count: 1.0)
        averaging.add({"w": torch.full((1000,), value)}, 1.0)
        return averaging.value()["w"] - value

    assert torch.equal(noisy(1.0), noisy(1.0))
    assert (noisy(1.0) - noisy(2.0)).std() > 1.2


class Trainer:
    """The part of a server that trains."""

    def fit(self, loss: Any, theta: Params, samples: Samples, *others: Any, **more: Any) -> Fitted:
        key, aux = others
        return train(FitRequest(loss, theta, samples, key, more.pop("training"), aux=aux, **more))


def test_discriminators_of_other_rows_have_other_noise() -> None:
    """A trusted server that restarts with other rows would otherwise show their difference."""
    noise, rows = 5.0, 40
    method = Adcol(disc_noise=noise, disc="linear")
    task = method.discriminator(300, 2)
    theta = task.init(Key(1))
    how = Training(lr=1.0, batch=rows, steps=1)
    key = Key.root(3, b"secret", binds=True)

    def trained(value: float) -> torch.Tensor:
        data = Samples(torch.full((rows, 300), value), torch.zeros(rows, dtype=torch.int64))
        weights = method.fit_on_server(cast(Any, Trainer()), task, theta, data, key, how)
        return torch.cat([weight.flatten() for weight in weights.values()])

    assert torch.equal(trained(0.0), trained(0.0))
    assert (trained(0.0) - trained(0.01)).std() > 1.2 * noise / rows


def test_a_simulation_keeps_its_noise() -> None:
    """There nobody else chooses what is averaged, and results of earlier versions stay the same."""
    key = Key.root(3, b"secret")
    assert key.bind(b"inputs") is key
