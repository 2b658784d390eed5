"""Noise that hides something: drawn from a cipher's key stream, of which nobody can guess the next
bits from those before.

Torch's own generators could be worked out from a few hundred of their numbers. Here a key of 32
bytes (`Key.noise`) makes a stream of ChaCha20, and pairs of its 32-bit numbers are made normal by
Box and Muller's formula. Floating point is what it is: noise has gaps in its lowest bits, through
which somebody who knows everything else may look (Mironov 2012); nothing is done against that.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from torch import Tensor

from comity.base.key import Key

NONCE = bytes(16)  # a key is used for one stream only
BLOCK = 2**16
"""How many pairs of normal numbers are made at a time: what they are made in stays in a processor's
cache.
"""


class _Room(threading.local):
    """Where a block is made, again and again: fresh memory for each would take as long as the
    numbers.
    """

    def __init__(self) -> None:
        self.zeros = bytes(8 * BLOCK)
        self.bits = torch.empty(2 * BLOCK, dtype=torch.int32)
        self.bytes = memoryview(self.bits.numpy().data).cast("B")
        self.floats = torch.empty(2 * BLOCK)


ROOM = _Room()


def _stream(key: Key) -> CipherContext:
    return Cipher(algorithms.ChaCha20(key.noise(), NONCE), mode=None).encryptor()


def _bits(key: Key, count: int) -> Tensor:
    """So many whole numbers of 32 bits, with their signs."""
    made = bytearray(4 * count)
    _stream(key).update_into(bytes(4 * count), made)
    return torch.frombuffer(made, dtype=torch.int32) if count else torch.zeros(0, dtype=torch.int32)


def uniform(key: Key, shape: Sequence[int]) -> Tensor:
    """Numbers between 0 and 1, neither of which occurs, in 64-bit floating point."""
    flat = _bits(key, math.prod(shape)).double()
    return flat.mul_(2.0**-32).add_(0.5 + 2.0**-33).reshape(list(shape))


def gaussian(
    key: Key, shape: Sequence[int], spread: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """Normal numbers with that standard deviation, in `out` if that is given: a flat tensor of as
    many, on the processor.
    """
    count = math.prod(shape)
    made = torch.empty(count) if out is None else out
    stream = _stream(key)
    for begin in range(0, count, 2 * BLOCK):
        block = made[begin : begin + 2 * BLOCK]
        half = (len(block) + 1) // 2
        room = memoryview(ROOM.zeros)[: 8 * half], ROOM.bytes[: 8 * half]
        stream.update_into(*room)
        flat = ROOM.floats[: 2 * half].copy_(ROOM.bits[: 2 * half])
        # Of (0, 1], in whose lowest part numbers lie closer: 0 would be infinitely far out.
        far = (
            flat[:half]
            .mul_(2.0**-32)
            .add_(0.5)
            .clamp_(min=2.0**-33)
            .log_()
            .mul_(-2 * spread * spread)
            .sqrt_()
        )
        angle = flat[half:].mul_(math.pi * 2.0**-31)
        torch.cos(angle, out=block[:half]).mul_(far)
        rest = len(block) - half
        torch.sin(angle[:rest], out=block[half:]).mul_(far[:rest])
    return made.reshape(list(shape))


def laplace(key: Key, shape: Sequence[int], scale: float) -> Tensor:
    """Laplace's distribution of that scale."""
    middle = uniform(key, shape).sub_(0.5)
    return (-middle.sign() * torch.log1p(-2 * middle.abs()) * scale).float()
