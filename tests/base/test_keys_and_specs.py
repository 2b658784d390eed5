"""Keys: positions in a tree of names. Specs: the grammar of names with options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comity import algorithms
from comity.base.key import BatchKey
from comity.core import Key
from comity.errors import UsageError
from comity.spec import Spec, call, parse, split

pytestmark = pytest.mark.quick

paths = st.lists(st.integers(0, 9) | st.text("abc", max_size=2), min_size=1, max_size=3)


@given(paths, paths)
def test_different_paths_are_different_keys(a, b):
    assert (Key.root(0).fold(*a) == Key.root(0).fold(*b)) == (a == b)


def test_number_and_text_give_different_keys():
    assert Key(1).fold(3) != Key(1).fold("3")


def test_draws_depend_on_the_key_only():
    key = Key.root(7).fold("noise")
    first = torch.rand(3, generator=key.generator())
    torch.rand(5, generator=Key.root(7).fold("other").generator())
    assert torch.equal(first, torch.rand(3, generator=key.generator()))


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_choose_draws_without_replacement(n, seed):
    indices = Key(seed).choose(n // 2, n)
    assert len(set(indices)) == n // 2
    assert indices == sorted(indices)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("iid", Spec("iid")),
        ("own(0.25)", Spec("own", (0.25,))),
        ("dirichlet(alpha=0.1,min=10)", Spec("dirichlet", (), {"alpha": 0.1, "min": 10})),
        (
            "shift(kinds=rotate,invert, noise)",
            Spec("shift", (), {"kinds": ("rotate", "invert", "noise")}),
        ),
        ("x(a=true,b=1e-5)", Spec("x", (), {"a": True, "b": 1e-5})),
    ],
)
def test_parse(text, spec):
    assert parse(text) == spec
    assert parse(str(spec)) == spec


@pytest.mark.parametrize("text", ["", "(x)", "f(", "f(a=1", "f(a=1,a=2)", "f(,)", "f)x("])
def test_invalid_specs_are_refused(text):
    with pytest.raises(UsageError):
        [parse(part) for part in split(text, "|")]


def test_split_leaves_parentheses_alone():
    assert split("fedprox(mu=1e+2)+dbe(kappa=5)", "+") == ["fedprox(mu=1e+2)", "dbe(kappa=5)"]


def test_call_checks_names_kinds_and_missing_values():
    def f(alpha: float, count: int = 3, flag: bool = False) -> tuple[float, int, bool]:
        return alpha, count, flag

    assert call(parse("f(1)"), f) == (1.0, 3, False)
    assert call(parse("f(alpha=2,flag=true)"), f) == (2.0, 3, True)
    wrong = {
        "f": "needs alpha",
        "f(1,beta=2)": "beta",
        "f(x)": "a number",
        "f(1,2.5)": "whole number",
    }
    for text, word in (wrong | {"f(1,flag=3)": "true or false"}).items():
        with pytest.raises(UsageError, match=word):
            call(parse(text), f)


def test_ambiguous_options_of_compositions_are_refused():
    algorithm: Any = algorithms.compose("fedprox+dbe", {"dbe.mu": 0.5, "kappa": 2})
    assert (algorithm.mu, algorithm.kappa, algorithm.host.mu) == (0.5, 2.0, 0.01)
    with pytest.raises(UsageError, match=r"fedprox\.mu and dbe\.mu"):
        algorithms.compose("fedprox+dbe", {"mu": 1})
    with pytest.raises(UsageError, match="Did you mean 'kappa'"):
        algorithms.compose("fedavg+dbe", {"kapa": 1})


def test_batch_key_differs_by_batch() -> None:
    """Everything derived from it differs by batch, even a draw that does not fold the batch
    number.
    """
    first, second, again = BatchKey(5, 0), BatchKey(5, 1), BatchKey(5, 0)
    assert first.fold("noise") == Key(5).fold("noise", 0) == again.fold("noise")
    assert first.fold("noise") != second.fold("noise")
    assert (
        first.generator().initial_seed()
        == again.generator().initial_seed()
        != second.generator().initial_seed()
    )
    assert (
        first.numpy().integers(2**60)
        == again.numpy().integers(2**60)
        != second.numpy().integers(2**60)
    )
    assert first.choose(5, 50) == again.choose(5, 50) != second.choose(5, 50)
