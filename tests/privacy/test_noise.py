"""Noise from a cipher's stream: that it is normal, throughout and in its tails, and that nothing
but its key decides on it.
"""

from __future__ import annotations

import math
import threading

import pytest
import torch

from comity.base.noise import BLOCK, gaussian
from comity.core import Key


@pytest.mark.parametrize("count", [1, 2, 7, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK + 3])
def test_it_is_normal_whatever_number_there_is_of_it(count: int) -> None:
    made = torch.cat([gaussian(Key(n), [count], 3.0) for n in range(-(-20_000 // count))]) / 3
    n = len(made)
    assert made.isfinite().all()
    assert abs(made.mean().item()) < 5 / math.sqrt(n)
    assert made.std().item() == pytest.approx(1, abs=5 / math.sqrt(n))
    for far in (0.5, 1.0, 2.0, 3.0):  # both tails
        chance = math.erfc(far / math.sqrt(2)) / 2
        for beyond in (made > far, made < -far):
            assert abs(beyond.double().mean().item() - chance) < 5 * math.sqrt(chance / n)


def test_no_number_comes_twice_between_blocks() -> None:
    made = gaussian(Key(1), [6 * BLOCK])
    first, second, third = made.split(2 * BLOCK)
    for one, other in (
        (first, second),
        (second, third),
        (first[:BLOCK], first[BLOCK:]),
        (first[:-1], first[1:]),
    ):
        assert abs((one * other).mean().item()) < 5 / math.sqrt(len(one))


def test_where_it_is_made_does_not_matter() -> None:
    """In memory of its own or in what is given, after other noise, and in other threads at the same
    time: it is the key's.
    """
    alone = gaussian(Key(1), [3 * BLOCK])
    out = torch.full([3 * BLOCK], torch.nan)
    gaussian(Key(2), [17])
    assert torch.equal(gaussian(Key(1), [3 * BLOCK], 1.0, out), alone)
    assert torch.equal(out, alone)
    found: dict[int, torch.Tensor] = {}

    def draw(n: int) -> None:
        for _ in range(5):
            found[n] = gaussian(Key(n), [3 * BLOCK])

    threads = [threading.Thread(target=draw, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(found[1], alone)
    assert not torch.equal(found[2], alone)
