"""Messages between processes of one machine: a JSON header over a socket, tensors in shared memory.

The tensors of a message are in an unnamed memory file whose descriptor travels with the header.
They are written once and read without copying, and the system frees them when a process is killed.
A file belongs to its receiver while any tensor in it is alive. Then the receiver returns it for
reuse, so that a steady exchange allocates nothing. After a message, a file may still hold the end
of a longer earlier one, which the same receiver has read already. Each tensor starts at a multiple
of 64 bytes, as torch's own memory does: BLAS results can depend on alignment, and all engines must
agree bit for bit.

Few files are in use at a time, whatever the number of messages: a sender waits for one to come
back, and a receiver that keeps several copies further messages to its own memory and returns their
files at once.
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
from collections import deque
from collections.abc import Sequence
from functools import cache
from math import prod
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor

from comity.wire.codec import flatten, unflatten

ALIGN = 64
SPARE = 2  # how many memory files are kept for reuse
SENT_FILES, SENT_BYTES = 6, 64 << 20
"""`send` waits while the other end uses so many files, or more bytes in several files."""
KEPT_FILES, KEPT_BYTES = SENT_FILES // 2, SENT_BYTES // 2
"""What a receiver uses without copying, or one file of any size: less than a sender waits at."""
RETURNED = -2  # instead of a file's number: the message only returns files
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


def aligned_copy(content: memoryview) -> memoryview:
    """A copy in memory of this process that starts at a multiple of ALIGN."""
    memory = torch.empty(len(content), dtype=torch.uint8)
    assert memory.data_ptr() % ALIGN == 0
    memory.numpy()[:] = content
    return memory.numpy().data


class _Sent:
    """A memory file of the sender. It is mapped once, and so needs no descriptor after the first
    message.
    """

    def __init__(self, size: int) -> None:
        self.fd: int | None = _memory_file()
        _reserve(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)

    def close(self) -> None:
        """Close the descriptor, if it was not sent."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Channel:
    """One end of a two-way connection between two processes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # By number: files that the other end uses, and files that it returned.
        self._in_use: dict[int, _Sent] = {}
        self._spare: dict[int, _Sent] = {}
        self._numbers = 0
        self._mapped: dict[int, mmap.mmap] = {}
        self._unused: list[int] = []  # received files whose tensors are all gone
        self._closed: list[int] = []  # sent files that will not be used again
        self._kept: dict[int, int] = {}  # the bytes of received files with tensors
        self._early: deque[Any] = deque()  # messages that came while `send` waited

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
        for file in [*self._in_use.values(), *self._spare.values()]:
            file.close()
        self._in_use, self._spare, self._mapped = {}, {}, {}

    def send(self, tree: Any) -> None:
        """Send a tree of records, tensors and plain values. Waits while the other end uses too many
        files.
        """
        skeleton, tensors = flatten(tree, sealed_messages=True)
        places, size = places_of(tensors)
        if not size:
            self._write([skeleton, places, -1, 0])
            return
        number = self._file(size)
        file = self._in_use[number]
        write_tensors(tensors, places, memoryview(file.memory))
        self._write([skeleton, places, number, size], file)

    def return_files(self) -> None:
        """Return files whose tensors are gone, without a message. For the end that waits for
        several replies: the other one reads what is returned when it sends the next.
        """
        if self._unused:
            self._write([None, [], RETURNED, 0])

    def receive(self) -> Any:
        """The next message. Raises EOFError when the other end has closed."""
        while not self._early:
            self._read()
        return self._early.popleft()

    def _write(self, head: list[Any], file: _Sent | None = None) -> None:
        """Send a header, with the descriptor of a file that the other end has not mapped yet."""
        returned, closed = self._unused[:], self._closed[:]
        # Emptied in place: finalizers refer to the list and may append to it in between.
        del self._unused[: len(returned)], self._closed[:]
        header = json.dumps([*head, [returned, closed]]).encode()
        descriptors = [file.fd] if file and file.fd is not None else []
        socket.send_fds(self._sock, [struct.pack("<Q", len(header))], descriptors)
        self._sock.sendall(header)
        if file:
            file.close()

    def _read(self) -> None:
        """Read the next header, and keep its message, if it has one, in `_early`."""
        start, descriptors, _, _ = socket.recv_fds(self._sock, 8, 1)
        try:
            header = self._exactly(struct.unpack("<Q", start + self._exactly(8 - len(start)))[0])
            skeleton, places, number, size, (returned, closed) = json.loads(header)
            self._take_back(returned)
            for old in closed:
                self._mapped.pop(old, None)
            if number == RETURNED:
                return
            memory = self._memory(number, size, descriptors) if number >= 0 else None
            self._early.append(unflatten(skeleton, views_at(places, memory)))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _file(self, size: int) -> int:
        """The number of a memory file for a message: the smallest spare one that is large enough,
        or a new one.
        """
        while wait([self._sock], None if self._must_wait() else 0):
            self._read()
        fitting = [
            (len(file.memory), number)
            for number, file in self._spare.items()
            if len(file.memory) >= size
        ]
        if fitting:
            _, number = min(fitting)
            self._in_use[number] = self._spare.pop(number)
        else:
            self._numbers += 1
            number = self._numbers
            self._in_use[number] = _Sent(size)
        return number

    def _must_wait(self) -> bool:
        """Whether files must come back before another message. A receiver that keeps what it may
        keep is not waited for.
        """
        count = len(self._in_use)
        used = sum(len(file.memory) for file in self._in_use.values())
        return count >= SENT_FILES or (count > 1 and used > SENT_BYTES)

    def _take_back(self, numbers: list[int]) -> None:
        for number in numbers:
            self._spare[number] = self._in_use.pop(number)
        while len(self._spare) > SPARE:
            smallest = min(self._spare, key=lambda number: len(self._spare[number].memory))
            self._spare.pop(smallest).close()
            self._closed.append(smallest)

    def _memory(self, number: int, size: int, descriptors: list[int]) -> memoryview:
        """The memory of a received file, which is mapped once only; or a copy of it, if tensors of
        several others are alive.
        """
        if number not in self._mapped:
            if not descriptors:
                # The system silently drops descriptors if the process has too many open files.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._mapped[number] = mmap.mmap(descriptors[0], 0)
        mapped = self._mapped[number]
        memory = memoryview(mapped)[:size]
        if self._kept and (
            len(self._kept) >= KEPT_FILES or sum(self._kept.values()) + len(mapped) > KEPT_BYTES
        ):
            self._unused.append(number)
            return aligned_copy(memory)
        self._kept[number] = len(mapped)
        weakref.finalize(memory, self._forget, number).atexit = False
        return memory

    def _forget(self, number: int) -> None:
        """A received file has no tensors any more."""
        del self._kept[number]
        self._unused.append(number)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self._sock.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
