"""Every method, with every option that changes its computation, runs on a fake device whose tensors
cannot be mixed with tensors on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import (
    FAKE_DEVICE,
    FakeDeviceTensor,
    MixedDevicesError,
    fake_device,
    small_federation,
)
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


def run_small(text: str, folder: Path, **settings: Any) -> comity.Result:
    usual: dict[str, Any] = {
        "model": "mlp2(width=8)",
        "rounds": 2,
        "newcomers": 1,
        "engine": "loop",
        "batch": 10,
    }
    return comity.run(
        text,
        small_federation(),
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
    with fake_device(monkeypatch):
        run_small(text, tmp_path)


@pytest.mark.parametrize("text", over_methods(OPTIONS))
def test_options_of_methods_keep_to_one_device(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_device(monkeypatch):
        run_small(text, tmp_path, **OPTIONS[text])


@pytest.mark.sweep("adcol", "fedavg")
@pytest.mark.parametrize("text", ["fedavg", "adcol(hidden=8)", "fed-sps(attack_steps=2)"])
def test_results_on_the_fake_device_equal_those_on_the_cpu(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are equal, and all tensors of a party are on the fake device."""
    cpu_run = run_small(text, tmp_path / "here", model=BATCHNORM)
    tensors: list[torch.Tensor] = []
    end = Site.end

    def end_and_collect(site: Site, running: Any) -> Any:
        tensors.extend(
            leaf
            for leaf in leaves([site.party.data.train.x, running.result])
            if isinstance(leaf, torch.Tensor)
        )
        return end(site, running)

    monkeypatch.setattr(Site, "end", end_and_collect)
    with fake_device(monkeypatch):
        device_run = run_small(text, tmp_path / "far", model=BATCHNORM)
    assert tables(device_run.folder) == tables(cpu_run.folder)
    assert len(tensors) > 10
    assert all(isinstance(tensor, FakeDeviceTensor) for tensor in tensors)


# --- the fake device itself


def test_fake_device_refuses_mixed_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_device(monkeypatch):
        on_cpu, index = torch.arange(4.0), torch.tensor([0, 1])
        on_device = on_cpu.to(FAKE_DEVICE)
        assert on_device.device == FAKE_DEVICE
        for operation in (
            lambda: on_device + on_cpu,
            lambda: on_cpu + on_device.sum(),
            lambda: torch.cat([on_device, on_cpu]),
            lambda: on_cpu[index.to(FAKE_DEVICE)],
            lambda: on_device.index_select(0, index),
            lambda: torch._foreach_add([on_device], [on_cpu]),
            lambda: torch.nn.functional.cross_entropy(on_device[None], torch.tensor(0).expand(1)),
            lambda: on_device.index_put((index,), on_cpu[:2]),
            lambda: torch.randn(3, generator=torch.Generator(), device=FAKE_DEVICE),
        ):
            with pytest.raises(MixedDevicesError):
                operation()
        with pytest.raises(TypeError):
            on_device.numpy()


def test_operations_that_the_fake_device_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_device(monkeypatch):
        on_cpu = torch.arange(4.0)
        on_device = torch.tensor([0.0, 1.0, 2.0, 3.0], device=FAKE_DEVICE)
        results = [
            on_device + torch.tensor(1.0),
            2 * on_device,
            on_device[torch.tensor([0, 1])],
            on_device[[0, 1]],
            torch.zeros(2, device=FAKE_DEVICE),
            on_device.new_ones(2),
        ]
        assert all(
            isinstance(tensor, FakeDeviceTensor) and tensor.device == FAKE_DEVICE
            for tensor in results
        )
        assert on_device.tolist() == on_cpu.tolist()
        assert on_device.sum().item() == 6
        assert torch.equal(on_device.cpu(), on_cpu)
        weight = on_device.clone().requires_grad_()
        (slope,) = torch.autograd.grad((weight * on_device).sum(), [weight])
        assert isinstance(slope, FakeDeviceTensor)
        weight.detach().copy_(on_cpu)
