"""Noise that hides something: drawn from a cipher's key stream, of which nobody can guess the next bits from those before.

Torch's own generators could be worked out from a few hundred of their numbers. Here a key of 32 bytes (`Key.noise`) makes a
stream of ChaCha20, and pairs of its 32-bit numbers are made normal by Box and Muller's formula. Floating point is what it is:
noise has gaps in its lowest bits, through which somebody who knows everything else may look (Mironov 2012); nothing is done
against that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from comity.core.key import Key

NONCE = bytes(16)  # a key is used for one stream only


def _bits(key: Key, count: int) -> Tensor:
    """So many whole numbers of 32 bits, with their signs."""
    made = bytearray(4 * count)
    Cipher(algorithms.ChaCha20(key.noise(), NONCE), mode=None).encryptor().update_into(bytes(4 * count), made)
    return torch.frombuffer(made, dtype=torch.int32) if count else torch.zeros(0, dtype=torch.int32)


def uniform(key: Key, shape: Sequence[int]) -> Tensor:
    """Numbers between 0 and 1, neither of which occurs, in 64-bit floating point."""
    flat = _bits(key, math.prod(shape)).double()
    return flat.mul_(2.0**-32).add_(0.5 + 2.0**-33).reshape(list(shape))


def gaussian(key: Key, shape: Sequence[int], spread: float = 1.0) -> Tensor:
    """Normal numbers with that standard deviation."""
    count = math.prod(shape)
    half = (count + 1) // 2
    flat = _bits(key, 2 * half).float()
    # Of (0, 1], in whose lowest part numbers lie closer: 0 would be infinitely far out.
    far = flat[:half].mul_(2.0**-32).add_(0.5).clamp_(min=2.0**-33).log_().mul_(-2 * spread * spread).sqrt_()
    angle = flat[half:].mul_(math.pi * 2.0**-31)
    made = torch.empty(2 * half)
    torch.mul(far, angle.cos(), out=made[:half])
    torch.mul(far, angle.sin_(), out=made[half:])
    return made[:count].reshape(list(shape))


def laplace(key: Key, shape: Sequence[int], scale: float) -> Tensor:
    """Laplace's distribution of that scale."""
    middle = uniform(key, shape).sub_(0.5)
    return (-middle.sign() * torch.log1p(-2 * middle.abs()) * scale).float()
