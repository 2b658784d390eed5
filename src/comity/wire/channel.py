"""Messages between processes of one machine: a JSON header over a socket, tensors in shared memory.

The tensors of a message lie in an unnamed memory file whose descriptor travels with the header:
they are written once, read without copying, and nothing is left behind when a process is killed. A
file belongs to its receiver while any tensor in it lives; then it is offered back, so that a steady
exchange allocates nothing. Behind a message, a file may still hold a longer one from before: the
same receiver has had that already. Each tensor starts at a multiple of 64 bytes, as torch's own
memory does: results of BLAS can depend on alignment, and all engines must agree bit for bit.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import struct
import tempfile
import weakref
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from comity.wire.codec import flatten, unflatten

ALIGN = 64
SPARE = 16  # memory files kept for reuse
NOWHERE = -1  # where a hollow tensor lies


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("comity")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def places_of(tensors: list[Tensor]) -> tuple[list[list[Any]], int]:
    """Where each tensor will lie, and how many bytes they take."""
    places: list[list[Any]] = []
    at = 0
    for tensor in tensors:
        places.append([_name(tensor.dtype), [*tensor.shape], NOWHERE if tensor.is_meta else at])
        at += 0 if tensor.is_meta else -(-tensor.nbytes // ALIGN) * ALIGN
    return places, at


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def views_at(places: list[list[Any]], memory: memoryview | None) -> list[Tensor]:
    """Tensors where they lie."""
    typed: dict[str, Tensor] = {}
    tensors = []
    for name, shape, at in places:
        if at == NOWHERE:
            tensors.append(torch.empty(shape, dtype=getattr(torch, name), device="meta"))
            continue
        if memory is None or not prod(shape):
            tensors.append(torch.empty(shape, dtype=getattr(torch, name)))
            continue
        if name not in typed:
            typed[name] = torch.frombuffer(memory, dtype=getattr(torch, name))
        whole = typed[name]
        tensors.append(whole.as_strided(shape, _strides(tuple(shape)), at // whole.element_size()))
    return tensors


def write_tensors(tensors: Sequence[Tensor], places: list[list[Any]], memory: memoryview) -> None:
    """Copy tensors to their places in `memory`, and zero the padding behind each.

    Memory that is used again holds old contents of this process, which must not leave with a
    message.
    """
    with torch.no_grad():
        torch._foreach_copy_(views_at(places, memory), [tensor.detach() for tensor in tensors])
    for tensor, (_, _, at) in zip(tensors, places, strict=True):
        padding = -tensor.nbytes % ALIGN
        if padding and at != NOWHERE:
            end = at + tensor.nbytes
            memory[end : end + padding] = bytes(padding)


class Channel:
    """One end of a two-way line between two processes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sent: dict[
            int, tuple[int, mmap.mmap]
        ] = {}  # number -> (descriptor, memory) of the files at the other end
        self._spare: dict[int, tuple[int, mmap.mmap]] = {}  # those it has given back
        self._numbers = 0
        self._mapped: dict[int, mmap.mmap] = {}
        self._done: list[int] = []  # received files that nobody reads any more
        self._closed: list[int] = []  # sent files that will not come again

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Two ends of a new line."""
        a, b = socket.socketpair()
        return Channel(a), Channel(b)

    def fileno(self) -> int:
        """For selectors."""
        return self._sock.fileno()

    def close(self) -> None:
        """Hang up."""
        self._sock.close()
        for fd, _ in [*self._sent.values(), *self._spare.values()]:
            os.close(fd)
        self._sent, self._spare, self._mapped = {}, {}, {}

    def send(self, tree: Any) -> None:
        """Send any tree of records, tensors and plain values."""
        skeleton, tensors = flatten(tree, sealed_messages=True)
        places, size = places_of(tensors)
        number = -1
        descriptors = []
        if size:
            number = self._file(size)
            fd, memory = self._sent[number]
            write_tensors(tensors, places, memoryview(memory))
            descriptors.append(fd)
        news = [self._done[:], self._closed[:]]  # emptied in place: finalizers hold on to the list
        del self._done[: len(news[0])], self._closed[:]
        header = json.dumps([skeleton, places, number, size, news]).encode()
        socket.send_fds(self._sock, [struct.pack("<Q", len(header))], descriptors)
        self._sock.sendall(header)

    def receive(self) -> Any:
        """The next message; EOFError when the other end is gone."""
        start, descriptors, _, _ = socket.recv_fds(self._sock, 8, 1)
        try:
            header = self._exactly(struct.unpack("<Q", start + self._exactly(8 - len(start)))[0])
            skeleton, places, number, size, (given_back, closed) = json.loads(header)
            self._take_back(given_back)
            for old in closed:
                self._mapped.pop(old, None)
            if (
                number >= 0 and not descriptors
            ):  # the system drops what there is no room for, and says nothing
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            memory = self._memory(number, size, descriptors[0]) if descriptors else None
            return unflatten(skeleton, views_at(places, memory))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _file(self, size: int) -> int:
        """The number of a memory file for a message: the smallest spare one that holds it, or a new
        one.
        """
        fitting = [
            (len(memory), number)
            for number, (_, memory) in self._spare.items()
            if len(memory) >= size
        ]
        if fitting:
            _, number = min(fitting)
            self._sent[number] = self._spare.pop(number)
        else:
            self._numbers += 1
            number = self._numbers
            fd = _memory_file()
            os.posix_fallocate(fd, 0, size)  # an error now, not a fault when it is written to
            self._sent[number] = (fd, mmap.mmap(fd, size))
        return number

    def _take_back(self, numbers: list[int]) -> None:
        for number in numbers:
            self._spare[number] = self._sent.pop(number)
        while len(self._spare) > SPARE:
            smallest = min(self._spare, key=lambda number: len(self._spare[number][1]))
            os.close(self._spare.pop(smallest)[0])
            self._closed.append(smallest)

    def _memory(self, number: int, size: int, fd: int) -> memoryview:
        """A received file's memory, mapped once however often it comes."""
        if number not in self._mapped:
            self._mapped[number] = mmap.mmap(fd, 0)
        memory = memoryview(self._mapped[number])[:size]
        weakref.finalize(memory, self._done.append, number).atexit = False
        return memory

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self._sock.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
