"""The matrix of tests over methods: every algorithm, four parties of different sizes with small
images, and the results of a run.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import comity
from comity import algorithms
from comity.core import Params, UsageError, Wrapper
from comity.core.wrapper import AsHost
from comity.spec import parse

GOSSIP = str(Path(__file__).with_name("gossip.py"))
TUNED = str(Path(__file__).with_name("tuned.py"))
HOSTS = ("fedavg", "scaffold", "fedprox", "fedper", "fedgen(gen_steps=5)")
# Fewer steps and epochs, to save time. `dp` and `ldp` need a noise level: with less noise the
# accounting of `ldp` takes a second, with more noise the few samples are not classified. Krum
# cannot discard one of four parties.
BRIEF = {
    "ccvr": "ccvr(virtual=5,calibration_epochs=2)",
    "dp": "dp(noise=1)",
    "fed-sps": "fed-sps(attack_steps=2)",
    "fedbabu": "fedbabu(finetune_epochs=2)",
    "fedgen": "fedgen(gen_steps=5)",
    "fedrep": "fedrep(head_epochs=2)",
    "fedtgp": "fedtgp(server_epochs=5)",
    "krum": "krum(f=0)",
    "ldp": "ldp(noise=0.4)",
}
STEEP = ("feduad", "fedufo", "fd")  # these diverge with a learning rate of 0.1 on a dozen samples
BATCHNORM = "fedbn-cnn(scale=0.06)"
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv", "privacy.csv")
VARIANTS: dict[str, dict[str, Any]] = {  # settings that change a method's states or calls
    "adcol(slots=cohort,hidden=8)": {"participation": 0.5},
    "adcol(past=3,hidden=8)": {},
    "adcol(aggregate=predictor,hidden=8)": {},
    "adcol(objective=simsiam,hidden=8)": {},
    "apple(downloads=1)": {"participation": 0.5},
    "fada(target=each,hidden=8)": {"participation": 0.5},
    "fedavg+dbe(kappa=auto,pilot_rounds=1)": {"participation": 0.5},
    "fed-mtl(relation=surrogate)": {"participation": 0.5},
    "fml(deploy=global)": {"participation": 0.5},
    "fedbn+dp(noise=1,level=party)": {"participation": 0.5, "model": BATCHNORM},
    "fedrep(head_epochs=2)+dp(noise=1)": {},
    "fedprox+prbm+dp(noise=1)": {},
    "relay+ldp(noise=0.4)+dp(noise=1)": {},
    "relay-p2p+ldp(noise=1,level=party)": {},
}


@cache
def methods() -> list[str]:
    """Every algorithm that is not a wrapper."""
    return [
        BRIEF.get(name, name)
        for name in algorithms.names()
        if not issubclass(algorithms.find(name), Wrapper)
    ]


@cache
def wrappers() -> list[str]:
    """Every wrapper."""
    return [
        BRIEF.get(name, name)
        for name in algorithms.names()
        if issubclass(algorithms.find(name), Wrapper)
    ]


def is_valid(text: str) -> bool:
    """Whether a composition is valid."""
    try:
        algorithms.compose(text)
    except UsageError:
        return False
    return True


@cache
def compositions() -> list[str]:
    """Every method alone, and every wrapper around the usual hosts, or around all hosts that it
    accepts if it accepts none of those. New methods are included automatically.
    """
    texts = [*methods()]
    for wrapper in wrappers():
        accepts_any_host = issubclass(
            algorithms.find(parse(wrapper).name), AsHost
        )  # its effect does not depend on the host
        hosts = HOSTS[:2] if accepts_any_host else HOSTS
        usual = [f"{host}+{wrapper}" for host in hosts if is_valid(f"{host}+{wrapper}")]
        texts += usual or [
            f"{host}+{wrapper}" for host in methods() if is_valid(f"{host}+{wrapper}")
        ]
    return texts


def wrapped(wrapper: str) -> str:
    """A wrapper around a host that it accepts."""
    return f"relay+{wrapper}" if wrapper.startswith("ldp") else f"fedavg+{wrapper}"


def short(text: str) -> str:
    """The id of a test."""
    return text if text != GOSSIP else "gossip.py"


@cache
def ragged() -> comity.Federation:
    """Four parties of different sizes; the last batch of one party has a single sample."""
    digits = comity.load("digits")
    parties, at = {}, 0
    for name, learn, test in (
        ("north", 47, 12),
        ("east", 23, 9),
        ("south", 34, 17),
        ("west", 12, 5),
    ):
        x, y = digits.x[at : at + learn + test], digits.y[at : at + learn + test]
        parties[name] = ((x[:learn], y[:learn]), (x[learn:], y[learn:]))
        at += learn + test
    fed = comity.Federation.from_arrays(parties, classes=10)
    assert len(set(fed.sizes)) == 4
    assert any(size % 10 == 1 for size in fed.sizes)
    return fed


def network(text: str) -> str:
    """The model of a run: with BatchNorm, unless the method does not allow it."""
    return "lenet5(width=8)" if "+dp" in text else BATCHNORM


def run(text: str, out: Path, **settings: Any) -> comity.Result:
    """Do a small run in a folder."""
    gentle = text.startswith(STEEP)
    usual: dict[str, Any] = {
        "model": network(text),
        "rounds": 2,
        "lr": 0.02 if gentle else 0.1,
        "engine": "loop",
    }
    return comity.run(text, ragged(), out=out, **(usual | settings))


def tables(folder: Path) -> dict[str, bytes]:
    """The tables that must be equal in equal runs."""
    return {name: (folder / name).read_bytes() for name in TABLES if (folder / name).exists()}


def weights(result: comity.Result) -> dict[str, Params]:
    """The deployed weights of each party."""
    return {name: result.model(name).theta for name in result.job.info.names}
