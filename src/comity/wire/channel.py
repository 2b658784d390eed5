"""Messages between processes of one machine: a JSON header over a socket, tensors in shared memory.

The tensors of a message are in an unnamed memory file whose descriptor travels with the header.
They are written once and read without copying, and the system frees them when a process is killed.
A file belongs to its receiver while any tensor in it is alive. Then the receiver returns it for
reuse, so that a steady exchange allocates nothing. After a message, a file may still hold the end
of a longer earlier one, which the same receiver has read already. Each tensor starts at a multiple
of 64 bytes, as torch's own memory does: BLAS results can depend on alignment, and all engines must
agree bit for bit.
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
SPARE = 16  # how many memory files are kept for reuse
NOWHERE = -1  # the position of a meta tensor, which has no content


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("comity")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _reserve(fd: int, size: int) -> None:
    """Give a memory file its size. Where the system can reserve memory (macOS cannot), a lack of it
    is an error now instead of a signal at the first write.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def places_of(tensors: list[Tensor]) -> tuple[list[list[Any]], int]:
    """The dtype, shape and offset of each tensor in a bundle, and the size of the bundle in
    bytes.
    """
    places: list[list[Any]] = []
    offset = 0
    for tensor in tensors:
        places.append([_name(tensor.dtype), [*tensor.shape], NOWHERE if tensor.is_meta else offset])
        offset += 0 if tensor.is_meta else -(-tensor.nbytes // ALIGN) * ALIGN
    return places, offset


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


def views_at(places: list[list[Any]], memory: memoryview | None) -> list[Tensor]:
    """Tensors that are views of `memory` at these places."""
    typed: dict[str, Tensor] = {}
    tensors = []
    for name, shape, offset in places:
        if offset == NOWHERE:
            tensors.append(torch.empty(shape, dtype=getattr(torch, name), device="meta"))
            continue
        if memory is None or not prod(shape):
            tensors.append(torch.empty(shape, dtype=getattr(torch, name)))
            continue
        if name not in typed:
            typed[name] = torch.frombuffer(memory, dtype=getattr(torch, name))
        whole = typed[name]
        tensors.append(
            whole.as_strided(shape, _strides(tuple(shape)), offset // whole.element_size())
        )
    return tensors


def write_tensors(tensors: Sequence[Tensor], places: list[list[Any]], memory: memoryview) -> None:
    """Copy tensors to their places in `memory`, and zero the padding after each.

    Reused memory holds earlier data of this process, which must not leave with a message.
    """
    with torch.no_grad():
        torch._foreach_copy_(views_at(places, memory), [tensor.detach() for tensor in tensors])
    for tensor, (_, _, offset) in zip(tensors, places, strict=True):
        padding = -tensor.nbytes % ALIGN
        if padding and offset != NOWHERE:
            end = offset + tensor.nbytes
            memory[end : end + padding] = bytes(padding)


class Channel:
    """One end of a two-way connection between two processes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # number -> (descriptor, memory): files that the other end uses, and files that it returned
        self._in_use: dict[int, tuple[int, mmap.mmap]] = {}
        self._spare: dict[int, tuple[int, mmap.mmap]] = {}
        self._numbers = 0
        self._mapped: dict[int, mmap.mmap] = {}
        self._unused: list[int] = []  # received files whose tensors are all gone
        self._closed: list[int] = []  # sent files that will not be used again

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Two connected ends."""
        a, b = socket.socketpair()
        return Channel(a), Channel(b)

    def fileno(self) -> int:
        """The file descriptor, for selectors."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
        for fd, _ in [*self._in_use.values(), *self._spare.values()]:
            os.close(fd)
        self._in_use, self._spare, self._mapped = {}, {}, {}

    def send(self, tree: Any) -> None:
        """Send a tree of records, tensors and plain values."""
        skeleton, tensors = flatten(tree, sealed_messages=True)
        places, size = places_of(tensors)
        number = -1
        descriptors = []
        if size:
            number = self._file(size)
            fd, memory = self._in_use[number]
            write_tensors(tensors, places, memoryview(memory))
            descriptors.append(fd)
        returned, closed = self._unused[:], self._closed[:]
        # Emptied in place: finalizers refer to the list and may append to it in between.
        del self._unused[: len(returned)], self._closed[:]
        header = json.dumps([skeleton, places, number, size, [returned, closed]]).encode()
        socket.send_fds(self._sock, [struct.pack("<Q", len(header))], descriptors)
        self._sock.sendall(header)

    def receive(self) -> Any:
        """The next message. Raises EOFError when the other end has closed."""
        start, descriptors, _, _ = socket.recv_fds(self._sock, 8, 1)
        try:
            header = self._exactly(struct.unpack("<Q", start + self._exactly(8 - len(start)))[0])
            skeleton, places, number, size, (returned, closed) = json.loads(header)
            self._take_back(returned)
            for old in closed:
                self._mapped.pop(old, None)
            if number >= 0 and not descriptors:
                # The system silently drops descriptors if the process has too many open files.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            memory = self._memory(number, size, descriptors[0]) if descriptors else None
            return unflatten(skeleton, views_at(places, memory))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _file(self, size: int) -> int:
        """The number of a memory file for a message: the smallest spare one that is large enough,
        or a new one.
        """
        fitting = [
            (len(memory), number)
            for number, (_, memory) in self._spare.items()
            if len(memory) >= size
        ]
        if fitting:
            _, number = min(fitting)
            self._in_use[number] = self._spare.pop(number)
        else:
            self._numbers += 1
            number = self._numbers
            fd = _memory_file()
            _reserve(fd, size)
            self._in_use[number] = (fd, mmap.mmap(fd, size))
        return number

    def _take_back(self, numbers: list[int]) -> None:
        for number in numbers:
            self._spare[number] = self._in_use.pop(number)
        while len(self._spare) > SPARE:
            smallest = min(self._spare, key=lambda number: len(self._spare[number][1]))
            os.close(self._spare.pop(smallest)[0])
            self._closed.append(smallest)

    def _memory(self, number: int, size: int, fd: int) -> memoryview:
        """The memory of a received file, which is mapped once only."""
        if number not in self._mapped:
            self._mapped[number] = mmap.mmap(fd, 0)
        memory = memoryview(self._mapped[number])[:size]
        weakref.finalize(memory, self._unused.append, number).atexit = False
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
