"""dp with level=party and secure aggregation: each site adds a share of the noise, the server learns
a noisy sum, and the account is against the server.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import succeed
from in_process_sites import OPEN, Sites, ended
from secure_sites import lose, server_tensors

import comity
from comity.core.release import Release
from comity.deploy import site_results
from comity.deploy.messages import SecureCall
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.secure_terms import PartyNoise, SecureRun, layout_of
from comity.deploy.server import FAILURE
from comity.errors import UsageError
from comity.privacy.composition import epsilon
from comity.privacy.secagg import Encoding, Layout
from comity.privacy.secagg.masks import Ring
from comity.runs import config
from comity.runs.context import PartyInfo
from comity.runs.folder import RunFolder

SIZES = {"north": (31, 12), "east": (23, 9), "south": (26, 7), "west": (40, 9)}
CLIP, NOISE = 0.5, 3.0
THRESHOLD, COLLUDERS = 3, 1  # of four sites, by the policies as they come
STILL: dict[str, Any] = {
    "model": "linear", "rounds": 1, "test": "official", "lr": 1e-12, "batch": 16,
}  # fmt: skip
"""A run in which no model moves, so that all that the server sees is noise."""
SECURE = {"secure_aggregation": True}


def method(noise: float = NOISE, clip: float = CLIP) -> str:
    return f"fedavg+dp(level=party,noise={noise:g},clip={clip:g})"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


def final_model(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in server_tensors(folder)])


@pytest.fixture(scope="module")
def first_model(sites: Sites, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The model before the first round, which does not move without noise."""
    return final_model(sites.pooled("fedavg", tmp_path_factory.mktemp("still"), **STILL).folder)


@pytest.mark.parametrize("survivors", [4, 3])
def test_the_noise_on_a_sum(sites: Sites, first_model: torch.Tensor, survivors: int) -> None:
    """Each of m survivors adds variance (σC)² / (t − c) to the sum. The honest ones among the
    fewest, t − c, add (σC)² together.
    """
    transport = sites.transport()
    if survivors == 3:
        lose(transport, "west", "masked", "offline")
    folder = sites.run(method(), f"noise{survivors}", transport, **STILL | SECURE)
    ended(folder)
    on_sum = (final_model(folder) - first_model) * survivors
    share = NOISE * CLIP / math.sqrt(THRESHOLD - COLLUDERS)
    expected = share * math.sqrt(survivors)
    assert on_sum.std() == pytest.approx(expected, rel=0.12)  # 650 values: 4 standard errors
    assert abs(on_sum.mean()) < 5 * expected / math.sqrt(len(on_sum))
    kurtosis = ((on_sum - on_sum.mean()) / on_sum.std()).pow(4).mean()
    assert kurtosis == pytest.approx(3, abs=1)
    assert share * math.sqrt(THRESHOLD - COLLUDERS) == pytest.approx(NOISE * CLIP)


def test_what_remains_if_colluders_tell_their_noise(
    sites: Sites, first_model: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server learns the sum of what the sites have added, and of that it can subtract the noise
    of one site that colludes. The noise of any two others has the whole variance.
    """
    shares: list[torch.Tensor] = []
    add_noise = Encoding.add_noise

    def adding(self: Encoding, vector: Ring, *args: Any) -> None:
        before = vector.copy()
        add_noise(self, vector, *args)
        steps = (vector - before)[:-1].view("<i4")
        shares.append(torch.from_numpy(steps / self.scale))

    monkeypatch.setattr(Encoding, "add_noise", adding)
    transport = sites.transport()
    lose(transport, "west", "masked", "offline")
    folder = sites.run(method(), "colluding", transport, **STILL | SECURE)
    ended(folder)
    assert len(shares) == THRESHOLD
    on_sum = (final_model(folder) - first_model) * THRESHOLD
    # A sum has the tensors in the order of their names, a model in that of its layers.
    added = torch.stack(shares).sum(0).float()
    assert (on_sum.sort().values - added.sort().values).abs().max() < 1e-3
    for colluder in range(THRESHOLD):
        others = torch.stack([share for k, share in enumerate(shares) if k != colluder]).sum(0)
        assert others.std() == pytest.approx(NOISE * CLIP, rel=0.12)
    assert torch.corrcoef(torch.stack(shares)).fill_diagonal_(0).abs().max() < 0.2


def test_two_runs_have_different_noise(sites: Sites, first_model: torch.Tensor) -> None:
    noises = [
        final_model(sites.run(method(), f"again{k}", **STILL | SECURE)) - first_model
        for k in range(2)
    ]
    correlation = torch.corrcoef(torch.stack(noises))[0, 1]
    assert abs(correlation) < 0.2


def test_the_account_is_against_the_server(sites: Sites) -> None:
    run = sites.run(method(), "account", **STILL | SECURE | {"rounds": 3})
    privacy = ended(run)["privacy"]
    release = Release("party", "discrete gaussian", CLIP, NOISE * CLIP)
    expected = epsilon({release: 3}, DELTA)
    assert privacy["unit"] == "party"
    assert privacy["trusted_server"] is None
    assert privacy["unprotected"] == []
    for name in sites.names:
        assert privacy["parties"][name] == pytest.approx(expected, abs=1e-6)
        rows = [row for row in ReleaseLedger(sites.site(name)).rows() if row.run == "account"]
        assert Counter(row.charge.to_release() for row in rows) == {release: 3}


def test_discrete_noise_is_accounted_for_by_renyi_divergences() -> None:
    """The (ε, δ) of concentrated differential privacy, ρ = k / 2σ², which is proven for it, and not
    the smaller one of the continuous Gaussian.
    """
    history = {Release("party", "discrete gaussian", 2.0, 2.0 * NOISE): 4}
    rho = 4 / (2 * NOISE**2)
    stated = epsilon(history, DELTA)
    simple = rho + 2 * math.sqrt(rho * math.log(1 / DELTA))  # Bun and Steinke 2016
    continuous = epsilon({Release("party", "gaussian", 2.0, 2.0 * NOISE): 4}, DELTA)
    assert continuous <= stated <= simple
    orders = [order / 100 for order in range(101, 20000)]
    best = min(rho * a + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a in orders)
    assert stated == pytest.approx(best, rel=0.02)


def test_the_mean_is_that_of_a_trusted_server(sites: Sites) -> None:
    """But for noise: the changes are clipped and all sites count alike."""
    moving = STILL | {"lr": 0.5, "rounds": 2}
    plain = final_model(sites.run(method(0), "plain", **moving))
    secure = final_model(sites.run(method(0.001), "secure", **moving | SECURE))
    spread = 0.001 * CLIP * math.sqrt(4 / (THRESHOLD - COLLUDERS)) / 4
    assert (plain - secure).abs().max() < 10 * spread
    still = final_model(sites.run(method(0.001), "moved", **STILL | SECURE))
    assert (secure - still).norm() > 0.2 * CLIP


def test_a_change_is_clipped_at_the_site(sites: Sites, first_model: torch.Tensor) -> None:
    settings = STILL | {"lr": 50.0} | SECURE
    moved = final_model(sites.run(method(0.001), "clipped", **settings)) - first_model
    assert 0.1 * CLIP < moved.norm() <= CLIP * 1.02


def test_a_budget_of_a_site_covers_it(tmp_path: Path) -> None:
    budget = OPEN | {'epsilon = "inf"': "epsilon = 2.0"}
    sites = Sites(tmp_path / "sites", SIZES, budget)
    ended(sites.run(method(noise=8), "within", **STILL | SECURE))
    spent = epsilon(ReleaseLedger(sites.site("north")).history(), DELTA)
    assert 0 < spent <= 2
    beyond = sites.run(method(noise=1), "beyond", **STILL | SECURE)
    assert "(budget: epsilon)" in (beyond / FAILURE).read_text()
    trusting = sites.run(method(noise=8), "trusting", **STILL)
    assert "(budget: epsilon)" in (trusting / FAILURE).read_text()  # the server would see replies


def test_sites_with_noise_accept_no_weights() -> None:
    """A weight of the server's choice would change the sensitivity."""
    settings = config.experiment({"algorithm": method(), **STILL, **SECURE})
    info = PartyInfo(20, 0, 10, [], False)
    parties = dict.fromkeys("abcd", info)
    run = SecureRun("run", settings, parties, tuple("abcd"), PartyNoise(NOISE, CLIP))
    head = SecureCall("run", ("local", 1, 1, 0), None, False, THRESHOLD, COLLUDERS, True)
    with pytest.raises(UsageError, match="count alike"):
        run.terms(head, b"", layout_of({"theta/w": [3]}))


@pytest.mark.parametrize("size", [1, 650, 10**6, 10**8])
@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("sites", [3, 10, 200])
def test_the_scale_fits(size: int, noise: float, sites: int) -> None:
    """Nothing overflows, the noise can be drawn, and rounding adds little to the sensitivity."""
    if (size, noise) == (10**8, 20.0):
        return  # refused, below
    threshold = sites // 2 + 2 if sites > 3 else 3
    scale = Encoding.scale_with_noise(CLIP, noise, size, sites, threshold, COLLUDERS)
    encoding = Encoding(Layout((("w", (size,)),)), CLIP, scale, noise=noise)
    encoding.check(sites, threshold, COLLUDERS)
    share = encoding.sigma(threshold, COLLUDERS)
    assert share * math.sqrt(threshold - COLLUDERS) == pytest.approx(noise * encoding.sensitivity)
    inflation = encoding.sensitivity / (scale * CLIP)
    assert inflation <= 1.01 or size * noise**2 > 10**6  # then less than that would overflow


def test_noise_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(UsageError, match="less noise or a smaller model"):
        Encoding.scale_with_noise(CLIP, 20.0, 10**8, 3, 3, 1)


def test_the_plan_says_that_no_server_is_trusted() -> None:
    words = (
        "plan", method(), "--data", "digits", "--parties", "4", "--model", "linear",
        "--rounds", "3", "--batch", "16",
    )  # fmt: skip
    plain, secure = succeed(*words).out, succeed(*words, "--secure-aggregation").out
    assert "if the server is trusted: epsilon" in plain
    release = Release("party", "discrete gaussian", CLIP, NOISE * CLIP)
    text = " ".join(secure.split())
    assert f"privacy: epsilon {epsilon({release: 3}, DELTA):.3g}" in text
    assert "for all that a party has" in text
    assert "trusted" not in text


def test_the_disclosure_says_that_sites_add_the_noise(sites: Sites) -> None:
    server = sites.run(method(), "disclosed", **STILL | SECURE)
    ended(server)
    for folder in (server, sites.site("north") / "runs" / "disclosed"):
        page = html.unescape(comity.disclose(folder, "north")[0].read_text(encoding="utf-8"))
        assert "discrete Gaussian), of which each site adds a share" in page
        assert "The unit of protection is the party" in page
        assert "All that the method had this party send is behind noise" in page
        assert RunFolder(folder).read_privacy()
