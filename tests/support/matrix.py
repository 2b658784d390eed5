"""The matrix: every algorithm there is, four ragged parties with small images, and what a run
leaves behind.
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
# A generator's thousand steps show nothing that five do not, nor do ten epochs of a head that two
# do not. Noise is to be given: less of ldp's takes a second to account for, with more the classes
# of these few samples are not told. Four parties are too few to spare one by Krum.
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
STEEP = ("feduad", "fedufo", "fd")  # with steps of 0.1 on a dozen samples these run away
BATCHNORM = "fedbn-cnn(scale=0.06)"
TABLES = ("metrics.csv", "ledger.csv", "outcomes.csv", "privacy.csv")
VARIANTS: dict[
    str, dict[str, Any]
] = {  # settings under which a method has other states or other calls
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
    """Every algorithm that stands alone."""
    return [
        BRIEF.get(name, name)
        for name in algorithms.names()
        if not issubclass(algorithms.find(name), Wrapper)
    ]


@cache
def wrappers() -> list[str]:
    """Every algorithm that goes around another."""
    return [
        BRIEF.get(name, name)
        for name in algorithms.names()
        if issubclass(algorithms.find(name), Wrapper)
    ]


def accepted(text: str) -> bool:
    """Whether a composition makes sense."""
    try:
        algorithms.compose(text)
    except UsageError:
        return False
    return True


@cache
def compositions() -> list[str]:
    """Every method alone, every wrapper around the usual hosts or around whichever it accepts: new
    files come by themselves.
    """
    made = [*methods()]
    for wrapper in wrappers():
        alike = issubclass(
            algorithms.find(parse(wrapper).name), AsHost
        )  # what it does it does to any host
        hosts = HOSTS[:2] if alike else HOSTS
        usual = [f"{host}+{wrapper}" for host in hosts if accepted(f"{host}+{wrapper}")]
        made += usual or [
            f"{host}+{wrapper}" for host in methods() if accepted(f"{host}+{wrapper}")
        ]
    return made


def wrapped(wrapper: str) -> str:
    """A wrapper around a method that it can go around."""
    return f"relay+{wrapper}" if wrapper.startswith("ldp") else f"fedavg+{wrapper}"


def short(text: str) -> str:
    """A name for a test."""
    return text if text != GOSSIP else "gossip.py"


@cache
def ragged() -> comity.Federation:
    """North has the most samples and west the fewest; one training part leaves a last batch of one."""
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
    """What is trained: with BatchNorm, wherever that can be."""
    return "lenet5(width=8)" if "+dp" in text else BATCHNORM


def run(text: str, out: Path, **settings: Any) -> comity.Result:
    """A small run in a folder."""
    gentle = text.startswith(STEEP)
    usual: dict[str, Any] = {
        "model": network(text),
        "rounds": 2,
        "lr": 0.02 if gentle else 0.1,
        "engine": "loop",
    }
    return comity.run(text, ragged(), out=out, **(usual | settings))


def tables(folder: Path) -> dict[str, bytes]:
    """All that may not vary between equal runs."""
    return {name: (folder / name).read_bytes() for name in TABLES if (folder / name).exists()}


def weights(result: comity.Result) -> dict[str, Params]:
    """What each party would deploy."""
    return {name: result.model(name).theta for name in result.job.info.names}
