"""Device discipline: all methods, and the options that compute something else, where no tensor may
meet one of the CPU's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from far_device import FAR, Apart, Far, far_device, few
from matrix import BATCHNORM, STEEP, methods, tables, wrapped, wrappers
from sweeps import over_methods

import comity
from comity.base.record import leaves
from comity.engines.site import Site

OPTIONS: dict[str, dict[str, Any]] = {
    "adcol(slots=cohort,hidden=8)": {"participation": 0.9},
    "adcol(slots=cohort,disc_carry=keep,hidden=8)": {"participation": 0.9},
    "adcol(slots=cohort,disc_carry=reinit,hidden=8)": {"participation": 0.9},
    "adcol(past=3,hidden=8,sampling=0.5)": {},
    "adcol(aggregate=predictor,hidden=8,rep_mode=last_epoch)": {},
    "adcol(aggregate=model,disc=conv)": {},
    "adcol(objective=simsiam,hidden=8)": {"model": BATCHNORM},
    "adcol(objective=ntxent,hidden=8)": {},
    "feduad(outputs=group)": {"participation": 0.9},
    "feduad(disc_state=fresh)": {},
    "feduad(disc_state=local,alternate=batch)": {},
    "feduad(server_momentum=0.9,begin=prior)": {},
    "fedufo(stage_one=0,dynamic=fresh)": {"participation": 0.9},
    "fedufo(stage_one=0,target=l1,direction=forward)": {},
    "fedufo(stage_one=0,target=logits,reduction=mean)": {},
    "fed-sps(attack_steps=2,mode=samples,peers=1)": {},
    "fed-sps(attack_steps=2,peers=1,score=overlap,collab_steps=2,tune=end)": {},
    "fed-sps(attack_steps=2,peers=1,code_compat=true,units=pixel)": {},
    "fed-sps(attack=wasserstein,attack_steps=2,clamp=none)": {},
    "relay(disc=external,begin=random)": {},
    "relay(m_up=2,m_down=2,negatives=marginal,aggregate=model)": {},
    "relay(guarded=0.2,secret=0.2,exclude_self=true,age_decay=0.5)": {"participation": 0.9},
    "relay-p2p(m_up=2,running=0.5)": {},
    "fd(exclude_self=true,distance=ce)": {},
    "fedgen(gen_steps=2,hidden=8,noise=8,diversity=1)": {},
    "fedavg+dbe(mu=0.5,ema_debias=true,noise_s=0.1,noise_q=0.1)": {},
    "fedavg+dbe(init_mean=ema,mu=0.5)": {},
    "fedavg+dbe(init_mean=batch,init_epochs=2)": {},
    "fedavg+dbe(kappa=auto,pilot_rounds=1)": {},
    "apfl(adaptive=false)": {},
    "fedprox": {"optimizer": "adam", "lr": 0.001, "opt_state": "keep"},
    "scaffold+dbe": {},
    "ditto": {"optimizer": "sgd(momentum=0.9,decay=0.01)"},
    "fedavg": {"model": BATCHNORM, "bn": "none", "init": "own"},
    "fedavg+mr": {"model": "vit(patch=4,width=8,rank=2,adapt=all)"},
}
SMALL = {
    "adcol": "adcol(hidden=8)",
    "fedgen(gen_steps=5)": "fedgen(gen_steps=2,hidden=8,noise=8)",
}


def go(text: str, folder: Path, **settings: Any) -> comity.Result:
    usual: dict[str, Any] = {
        "model": "mlp2(width=8)",
        "rounds": 2,
        "newcomers": 1,
        "engine": "loop",
        "batch": 10,
    }
    return comity.run(
        text,
        few(),
        out=folder,
        **usual | {"lr": 0.02 if text.startswith(STEEP) else 0.1} | settings,
    )


@pytest.mark.parametrize(
    "text",
    over_methods([*(SMALL.get(text, text) for text in methods()), *map(wrapped, wrappers())]),
)
def test_methods_keep_to_one_device(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with far_device(monkeypatch):
        go(text, tmp_path)


@pytest.mark.parametrize("text", over_methods(OPTIONS))
def test_so_do_their_options(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with far_device(monkeypatch):
        go(text, tmp_path, **OPTIONS[text])


@pytest.mark.sweep("adcol", "fedavg")
@pytest.mark.parametrize("text", ["fedavg", "adcol(hidden=8)", "fed-sps(attack_steps=2)"])
def test_far_away_all_is_the_same(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same arithmetic, and whatever a party works with is far."""
    here = go(text, tmp_path / "here", model=BATCHNORM)
    seen: list[torch.Tensor] = []
    end = Site.end

    def ended(site: Site, running: Any) -> Any:
        seen.extend(
            leaf
            for leaf in leaves([site.party.data.train.x, running.result])
            if isinstance(leaf, torch.Tensor)
        )
        return end(site, running)

    monkeypatch.setattr(Site, "end", ended)
    with far_device(monkeypatch):
        far = go(text, tmp_path / "far", model=BATCHNORM)
    assert tables(far.folder) == tables(here.folder)
    assert len(seen) > 10
    assert all(isinstance(tensor, Far) for tensor in seen)


# --- the device itself


def test_what_the_far_device_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with far_device(monkeypatch):
        near, index = torch.arange(4.0), torch.tensor([0, 1])
        far = near.to(FAR)
        assert far.device == FAR
        for wrong in (
            lambda: far + near,
            lambda: near + far.sum(),
            lambda: torch.cat([far, near]),
            lambda: near[index.to(FAR)],
            lambda: far.index_select(0, index),
            lambda: torch._foreach_add([far], [near]),
            lambda: torch.nn.functional.cross_entropy(far[None], torch.tensor(0).expand(1)),
            lambda: far.index_put((index,), near[:2]),
            lambda: torch.randn(3, generator=torch.Generator(), device=FAR),
        ):
            with pytest.raises(Apart):
                wrong()
        with pytest.raises(TypeError):
            far.numpy()


def test_what_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    with far_device(monkeypatch):
        near = torch.arange(4.0)
        far = torch.tensor([0.0, 1.0, 2.0, 3.0], device=FAR)
        made = [
            far + torch.tensor(1.0),
            2 * far,
            far[torch.tensor([0, 1])],
            far[[0, 1]],
            torch.zeros(2, device=FAR),
            far.new_ones(2),
        ]
        assert all(isinstance(tensor, Far) and tensor.device == FAR for tensor in made)
        assert far.tolist() == near.tolist()
        assert far.sum().item() == 6
        assert torch.equal(far.cpu(), near)
        weight = far.clone().requires_grad_()
        (slope,) = torch.autograd.grad((weight * far).sum(), [weight])
        assert isinstance(slope, Far)
        weight.detach().copy_(near)
