"""Privacy noise, drawn from a cipher's key stream whose next bits cannot be predicted from earlier
ones.

The state of torch's generators can be recovered from a few hundred of their outputs. Here a key of
32 bytes (`Key.noise`) gives a ChaCha20 stream, and the Box-Muller transform turns pairs of its
32-bit numbers into normal ones. The noise has the gaps of floating-point numbers in its lowest
bits, which an attacker who knows everything else can exploit (Mironov 2012); there is no protection
against that.
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
"""The number of pairs of normal numbers that are computed at a time, so that intermediate results
fit into the processor's cache.
"""


class _Buffers(threading.local):
    """Memory that all blocks reuse: allocating it for each block would take as long as computing
    the numbers.
    """

    def __init__(self) -> None:
        self.zeros = bytes(8 * BLOCK)
        self.bits = torch.empty(2 * BLOCK, dtype=torch.int32)
        self.bytes = memoryview(self.bits.numpy().data).cast("B")
        self.floats = torch.empty(2 * BLOCK)


BUFFERS = _Buffers()


def _stream(key: Key) -> CipherContext:
    return Cipher(algorithms.ChaCha20(key.noise(), NONCE), mode=None).encryptor()


def _bits(key: Key, count: int) -> Tensor:
    """The first `count` signed 32-bit integers of a key's stream."""
    if not count:
        return torch.zeros(0, dtype=torch.int32)
    output = bytearray(4 * count)
    _stream(key).update_into(bytes(4 * count), output)
    return torch.frombuffer(output, dtype=torch.int32)


def uniform(key: Key, shape: Sequence[int]) -> Tensor:
    """Uniform numbers in the open interval (0, 1), in float64."""
    flat = _bits(key, math.prod(shape)).double()
    return flat.mul_(2.0**-32).add_(0.5 + 2.0**-33).reshape(list(shape))


def gaussian(
    key: Key, shape: Sequence[int], spread: float = 1.0, out: Tensor | None = None
) -> Tensor:
    """Normal numbers with standard deviation `spread`.

    They are written to `out` if it is given: a flat CPU tensor of the same number of elements.
    """
    count = math.prod(shape)
    values = torch.empty(count) if out is None else out
    stream = _stream(key)
    for begin in range(0, count, 2 * BLOCK):
        block = values[begin : begin + 2 * BLOCK]
        half = (len(block) + 1) // 2
        buffers = memoryview(BUFFERS.zeros)[: 8 * half], BUFFERS.bytes[: 8 * half]
        stream.update_into(*buffers)
        flat = BUFFERS.floats[: 2 * half].copy_(BUFFERS.bits[: 2 * half])
        # Uniform in (0, 1]: at 0 the radius would be infinite. float32 is densest near 0, where the
        # logarithm is steepest.
        radius = (
            flat[:half]
            .mul_(2.0**-32)
            .add_(0.5)
            .clamp_(min=2.0**-33)
            .log_()
            .mul_(-2 * spread * spread)
            .sqrt_()
        )
        angle = flat[half:].mul_(math.pi * 2.0**-31)
        torch.cos(angle, out=block[:half]).mul_(radius)
        rest = len(block) - half
        torch.sin(angle[:rest], out=block[half:]).mul_(radius[:rest])
    return values.reshape(list(shape))


def laplace(key: Key, shape: Sequence[int], scale: float) -> Tensor:
    """Laplace noise of that scale."""
    middle = uniform(key, shape).sub_(0.5)
    return (-middle.sign() * torch.log1p(-2 * middle.abs()) * scale).float()
