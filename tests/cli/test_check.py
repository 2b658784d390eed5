"""`comity check`: a method that breaks a rule is told which, with the line where there is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import comity, succeed

PROPERTIES = [
    "purity", "repeatability", "resume", "engines", "bytes", "absences", "newcomers", "messages",
]  # fmt: skip
MINE = '''"""Mine: FedAvg with a fault.

Idea: an example.
"""

import random

import numpy as np
import torch

from comity.algorithms.fedavg import FedAvg
from comity.core import *

CALLS = []
NAMES = {{f"n{{k}}" for k in range(30)}}


@algorithm
class Mine(FedAvg):
{}
'''
FAULTS = {
    "server": (
        """
    def round(self, s, server, t):
        torch.randn(2)  # here
        return super().round(s, server, t)
""",
        "purity",
    ),
    "set": (
        """
    async def train_locally(self, theta, m, party, key):
        total = sum(k * int(name[1:]) for k, name in enumerate(NAMES))
        done = await party.fit(plain, theta, key)
        return {k: v + 1e-5 * total for k, v in done.theta.items()}
""",
        "repeatability",
    ),
    "module": (
        """
    async def train_locally(self, theta, m, party, key):
        CALLS.append(party.id)
        done = await party.fit(plain, theta, key)
        return {k: v / (1 + 0.01 * (len(CALLS) > 4)) for k, v in done.theta.items()}
""",
        "resume",
    ),
    "reply": (
        """
    def init_party(self, key, party):
        return {"own": torch.zeros(10)}

    def deployed_model(self, state, m, party):
        return dict(m.theta)

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        theta = (await party.fit(plain, m.theta, key)).theta
        theta["fc3.bias"] = theta["fc3.bias"] + state["own"]
        return {"own": theta["fc3.bias"]}, Model(theta)

    def round(self, theta, server, t):
        replies = server.call(self.local, {i: Model(theta) for i in server.sample(t)})
        for reply in replies.values():
            reply.theta["fc3.bias"].mul_(0.5)
        return next(iter(replies.values())).theta
""",
        "engines",
    ),
    "traffic": (
        """
    def message_for(self, theta, i):
        return Model(theta | {k + "x": v for k, v in theta.items()})

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        theta = {k: v for k, v in m.theta.items() if not k.endswith("x")}
        return await super().local(state, Model(theta), party, key)

    def deployed_model(self, state, m, party):
        return {k: v for k, v in m.theta.items() if not k.endswith("x")}
""",
        "bytes",
    ),
}


def verdicts(out: str) -> dict[str, str]:
    """The mark of each property."""
    return {name: mark for mark, name in re.findall(r"^([✓✗-]) (\w+)", out, re.MULTILINE)}


def test_method_that_keeps_all_rules_passes() -> None:
    result = succeed("check", "scaffold")
    assert verdicts(result.out) == dict.fromkeys(PROPERTIES, "✓")
    assert "passes all checks" in result.out


@pytest.mark.sweep("server", "module", "traffic")
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(fault: str, tmp_path: Path) -> None:
    body, broken = FAULTS[fault]
    file = tmp_path / f"mine_{fault}.py"
    file.write_text(MINE.format(body), encoding="utf-8")
    result = comity("check", file)
    assert result.code == 1
    assert verdicts(result.out)[broken] == "✗", result.out
    assert broken in result.err
    if fault == "traffic":  # more than the declared weights
        assert verdicts(result.out)["messages"] == "-"
        assert "simulations only" in result.out
    if fault == "server":
        line = file.read_text(encoding="utf-8").splitlines().index("        torch.randn(2)  # here")
        assert f"(round, mine_server.py:{line + 1})" in result.out


TRAINED = """
    def init_party(self, key, party):
        return {"own": torch.ones(2)}

    @on_party
    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        theta = (await party.fit(plain, m.theta, key)).theta
        BODY
        return {"own": state["own"].clone()}, Model(theta)

    def deployed_model(self, state, m, party):
        return dict(m.theta)
"""
WRITES = {
    "data": ('m.theta["fc3.bias"].data.add_(1)  # here', "its message, theta['fc3.bias']"),
    "numpy": ('state["own"].numpy()[0] = 3  # here', "its state, ['own']"),
    "samples": ("party.data.train.x.data.mul_(0.5)  # here", "its samples, ['train.x']"),
    "counted": ("party.data.train.x.mul_(0.5)  # here", "its samples, ['train.x']"),
}
UNSEEDED = {
    "default_rng": "np.random.default_rng().random()",
    "random_state": "np.random.RandomState().rand()",
    "python": "random.Random().random()",
    "system": "random.SystemRandom().random()",
    "torch": "torch.rand(1, generator=(g := torch.Generator(), g.seed())[0])",
}


def line_of(file: Path) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    (number,) = (k for k, line in enumerate(lines, 1) if "# here" in line)
    return f"{file.name}:{number}"


@pytest.mark.sweep("numpy", "samples")
@pytest.mark.parametrize("kind", WRITES)
def test_write_past_the_version_counters_is_found(kind: str, tmp_path: Path) -> None:
    body, value = WRITES[kind]
    file = tmp_path / f"mine_writes_{kind}.py"
    file.write_text(MINE.format(TRAINED.replace("BODY", body)), encoding="utf-8")
    result = comity("check", file)
    assert result.code == 1
    assert verdicts(result.out) == {"purity": "✗"}
    out = " ".join(result.out.split())
    assert f"local wrote to {value} (local, {line_of(file)})" in out


@pytest.mark.sweep("random_state", "python", "system", "torch")
@pytest.mark.parametrize("kind", UNSEEDED)
def test_generator_without_a_seed_is_named(kind: str, tmp_path: Path) -> None:
    body = f"""theta["fc3.bias"] = theta["fc3.bias"] + 0.1 * {UNSEEDED[kind]}  # here"""
    file = tmp_path / f"mine_unseeded_{kind}.py"
    file.write_text(MINE.format(TRAINED.replace("BODY", body)), encoding="utf-8")
    result = comity("check", file)
    assert result.code == 1
    assert verdicts(result.out)["repeatability"] == "✗"
    out = " ".join(result.out.split())
    assert f"a random generator gets no seed (local, {line_of(file)})" in out


def test_generator_whose_draws_do_not_matter_passes(tmp_path: Path) -> None:
    body = "np.random.default_rng().random()"
    file = tmp_path / "mine_harmless.py"
    file.write_text(MINE.format(TRAINED.replace("BODY", body)), encoding="utf-8")
    assert verdicts(comity("check", file).out)["repeatability"] == "✓"
