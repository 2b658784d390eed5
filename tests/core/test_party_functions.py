"""Party functions are marked by `@on_party`: no other function can be called by name at a party,
and the mark changes nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

import comity
from comity.algorithms import compose
from comity.algorithms.fedavg import FedAvg
from comity.core import Key, Model, Params, Party, UsageError, algorithm, on_party
from comity.core.wrapper import check_party_function, is_party_function, party_function

pytestmark = pytest.mark.quick


@algorithm
class Overriding(FedAvg):
    """Its `local` overrides a party function; its `other` is not one."""

    async def local(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        return state, m

    async def other(self, state: Params, m: Model, party: Party, key: Key) -> tuple[Params, Model]:
        return state, m


def test_on_party_returns_the_function_unchanged() -> None:
    async def local(
        self: Any, state: Params, m: Model, party: Party, key: Key
    ) -> tuple[Params, Model]:
        """A docstring."""
        return state, m

    before = (
        local.__name__,
        local.__doc__,
        inspect.signature(local),
        inspect.iscoroutinefunction(local),
    )
    assert on_party(local) is local
    assert (
        local.__name__,
        local.__doc__,
        inspect.signature(local),
        inspect.iscoroutinefunction(local),
    ) == before


def test_party_functions_of_a_composition_and_of_a_subclass() -> None:
    dbe = compose("fedavg+dbe")
    assert [
        is_party_function(dbe, 0, name)
        for name in ("mean", "agree", "weigh", "judge", "warm_up", "local")
    ] == [True] * 5 + [False]
    assert [is_party_function(dbe, 1, name) for name in ("local", "warm_up", "mean")] == [
        True,
        True,
        False,
    ]
    assert is_party_function(Overriding(), 0, "local")


NO_PARTY_FUNCTIONS = (
    "init_party",
    "init_server",
    "round",
    "message_for",
    "deployed_model",
    "trained",
    "averaged",
    "__init__",
    "__class__",
    "shares",
    "",
    "nothing",
)


@pytest.mark.parametrize("name", NO_PARTY_FUNCTIONS)
def test_unmarked_names_are_refused(name: str) -> None:
    with pytest.raises(
        UsageError, match=f"FedAvg has no party function {name!r}: .* needs @on_party above it"
    ):
        check_party_function(compose("fedavg+dbe"), 1, name)


@pytest.mark.parametrize("name", [None, 3, ["local"], b"local", ("local",)])
def test_names_that_are_no_text_are_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="FedAvg has no party function"):
        check_party_function(compose("fedavg"), 0, name)


@pytest.mark.parametrize("depth", [-1, -2, 2, 10**30, True, 0.0, None, "0"])
def test_unknown_depths_are_refused(depth: Any) -> None:
    with pytest.raises(
        UsageError, match=r"There is no algorithm at depth .*: there are 2 of them, from 0"
    ):
        check_party_function(compose("fedavg+dbe"), depth, "local")


def test_unmarked_function_runs_in_one_process(tmp_path: Path) -> None:
    """Users' files without marks run in one process."""
    old = tmp_path / "old.py"
    old.write_text(
        "from comity.core import *\n"
        "from comity.algorithms.solo import Solo\n"
        "@algorithm\n"
        "class Old(Solo):\n"
        "    def round(self, s, server, t):\n"
        "        server.call(self.learn, {i: Empty() for i in server.sample(t)})\n"
        "        return s\n"
        "    async def learn(self, state, m, party, key):\n"
        "        return (await party.fit(plain, state, key)).theta, Empty()\n"
    )
    data = (torch.randn(20, 4), torch.arange(20) % 2)
    fed = comity.Federation.from_arrays(
        {f"p{i}": (data, data) for i in range(2)}, validation=0.0, classes=2
    )
    result = comity.run(
        str(old), fed, model="linear", rounds=1, engine="loop", out=tmp_path / "run"
    )
    assert result.summary["rounds"] == 1
    with pytest.raises(UsageError, match="Old has no party function 'learn'"):
        check_party_function(result.job.algorithm, 0, "learn")


def test_wrapped_party_function_keeps_its_name() -> None:
    """The mark is looked up at the owner, not at the wrapping function."""
    dbe = compose("fedavg+dbe")

    def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(inner)
        async def call_inner(*args: Any) -> Any:
            return await inner(*args)

        return call_inner

    object.__setattr__(dbe, "wrap_work", wrap)
    assert party_function(dbe, 1, "local").__name__ == "local"
    assert is_party_function(dbe, 1, "local")
