"""Gaussian noise from a stream cipher: it is normal, also in its tails, and depends only on its
key.
"""

from __future__ import annotations

import math
import threading

import pytest
import torch

from comity.base.noise import BLOCK, gaussian
from comity.core import Key


@pytest.mark.parametrize("count", [1, 2, 7, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK + 3])
def test_noise_is_normal_for_any_count(count: int) -> None:
    samples = torch.cat([gaussian(Key(n), [count], 3.0) for n in range(-(-20_000 // count))]) / 3
    n = len(samples)
    assert samples.isfinite().all()
    assert abs(samples.mean().item()) < 5 / math.sqrt(n)
    assert samples.std().item() == pytest.approx(1, abs=5 / math.sqrt(n))
    for threshold in (0.5, 1.0, 2.0, 3.0):  # both tails
        chance = math.erfc(threshold / math.sqrt(2)) / 2
        for in_tail in (samples > threshold, samples < -threshold):
            assert abs(in_tail.double().mean().item() - chance) < 5 * math.sqrt(chance / n)


def test_blocks_are_uncorrelated() -> None:
    samples = gaussian(Key(1), [6 * BLOCK])
    first, second, third = samples.split(2 * BLOCK)
    for left_part, right_part in (
        (first, second),
        (second, third),
        (first[:BLOCK], first[BLOCK:]),
        (first[:-1], first[1:]),
    ):
        assert abs((left_part * right_part).mean().item()) < 5 / math.sqrt(len(left_part))


def test_noise_depends_only_on_its_key() -> None:
    """The same with or without an output tensor, after other noise, and in concurrent threads."""
    expected = gaussian(Key(1), [3 * BLOCK])
    out = torch.full([3 * BLOCK], torch.nan)
    gaussian(Key(2), [17])
    assert torch.equal(gaussian(Key(1), [3 * BLOCK], 1.0, out), expected)
    assert torch.equal(out, expected)
    samples_by_thread: dict[int, torch.Tensor] = {}

    def draw(n: int) -> None:
        for _ in range(5):
            samples_by_thread[n] = gaussian(Key(n), [3 * BLOCK])

    threads = [threading.Thread(target=draw, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(samples_by_thread[1], expected)
    assert not torch.equal(samples_by_thread[2], expected)
