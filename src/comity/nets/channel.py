"""Messages between processes of one machine: a JSON header over a socket, tensors in shared memory.

The tensors of a message lie in an unnamed memory file whose descriptor travels with the header, so a message is written once,
read without copying, and leaves nothing behind when a process is killed. Each starts at a multiple of 64 bytes, as torch's
own memory does: results of BLAS can depend on alignment, and all engines must agree bit for bit.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
from typing import Any

import torch
from torch import Tensor

from comity.core.codec import flatten, unflatten

ALIGN = 64
PIECES = 512  # buffers per system call


def _memory_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("comity")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(fd: int, pieces: list[memoryview]) -> None:
    for begin in range(0, len(pieces), PIECES):
        some = pieces[begin : begin + PIECES]
        written = os.writev(fd, some)
        for piece in some:  # a short write is rare; finish it piece by piece
            if written >= len(piece):
                written -= len(piece)
                continue
            rest = piece[written:]
            written = 0
            while rest:
                rest = rest[os.write(fd, rest) :]


def _lay(tensors: list[Tensor]) -> tuple[list[list[Any]], int | None]:
    """Write tensors to a memory file; where each lies, and the file."""
    pieces: list[memoryview] = []
    places: list[list[Any]] = []
    padding, at = bytes(ALIGN), 0
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        places.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), at])
        if flat.numel():
            pieces.append(flat.view(torch.uint8).numpy().data)
            at += flat.nbytes
            if rest := -at % ALIGN:
                pieces.append(memoryview(padding)[:rest])
                at += rest
    if not at:
        return places, None
    fd = _memory_file()
    _write(fd, pieces)
    return places, fd


def _read(places: list[list[Any]], fd: int | None) -> list[Tensor]:
    """The tensors in a memory file, in place; writing to one changes nobody else's."""
    memory = None if fd is None else mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    tensors = []
    for name, shape, at in places:
        dtype, count = getattr(torch, name), torch.Size(shape).numel()
        if memory is None or not count:
            tensors.append(torch.empty(shape, dtype=dtype))
        else:
            tensors.append(torch.frombuffer(memory, dtype=dtype, count=count, offset=at).view(shape))
    return tensors


class Channel:
    """One end of a two-way line between two processes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

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

    def send(self, tree: Any) -> None:
        """Send any tree of records, tensors and plain values."""
        skeleton, tensors = flatten(tree)
        places, fd = _lay(tensors)
        header = json.dumps([skeleton, places]).encode()
        try:
            socket.send_fds(self._sock, [struct.pack("<Q", len(header))], [] if fd is None else [fd])
            self._sock.sendall(header)
        finally:
            if fd is not None:
                os.close(fd)

    def receive(self) -> Any:
        """The next message; EOFError when the other end is gone."""
        start, fds, _, _ = socket.recv_fds(self._sock, 8, 1)
        try:
            header = self._exactly(struct.unpack("<Q", start + self._exactly(8 - len(start)))[0])
            skeleton, places = json.loads(header)
            return unflatten(skeleton, _read(places, fds[0] if fds else None))
        finally:
            for fd in fds:
                os.close(fd)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self._sock.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
