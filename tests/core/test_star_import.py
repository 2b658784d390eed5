"""`from comity.core import *` in a method's file replaces no name that the author imported."""

from __future__ import annotations

import builtins

import pytest
import torch

import comity.core


@pytest.mark.parametrize(
    "module",
    [torch, torch.nn, torch.nn.functional, builtins],
    ids=lambda module: module.__name__,
)
def test_no_name_is_one_of_torch_or_python(module: object) -> None:
    assert set(comity.core.__all__) & set(dir(module)) == set()
