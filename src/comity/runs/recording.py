"""The tape of a run: every message that its server saw, as it was sent, for whoever wants to know
what can be learned from it.

It is one file that grows, `record_messages/messages`: before each message eight bytes with its
length, then the message as `core/codec.py` writes it. Like the tables it is cut back to where a
checkpoint was made, and determinism writes the rest again. A parcel between parties is closed in
the reply that it left in, and is kept as its recipient opened it when it was delivered: what the
server could not read. What evaluation tells (figures, and answers at the end) is in the tables and
not here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from comity.base.call import CallId, Edge, Message, PartyResult
from comity.wire.codec import decode, encode, flatten
from comity.base.record import Cipher, Sealed, sealed_in, tree_map, unseal
from comity.core.runner import PartyRunner
from comity.errors import CorruptedFile, UsageError
from comity.runs.config import Experiment

LENGTH = 8  # bytes that tell how long a message is
Kind = Literal["message", "reply", "sealed"]
OLD_KINDS: dict[str, Kind] = {"letter": "message", "parcel": "sealed"}
"""Kinds by the names that recordings had before."""
SAID = "All messages are kept on tape, what is sealed between parties as its recipients see it."


class RecordedMessage(NamedTuple):
    """A message on the tape."""

    kind: Kind
    """A letter from the server, a reply to it, or a parcel that a party opened."""
    call: CallId
    """In which round and for which work."""
    src: int
    """Who sent it, by number; -1 is the server."""
    to: tuple[int, ...]
    """Whom it went to: a letter that several parties got is kept once."""
    content: Any


def one_process(experiment: Experiment) -> Experiment:
    """An experiment whose messages are kept: its parties are in one process, where parcels between
    them can be read.
    """
    if experiment.engine in ("process", "ray", "flare") or (experiment.workers or 1) > 1:
        where = (
            f"engine {experiment.engine}"
            if experiment.engine in ("process", "ray", "flare")
            else "several workers"
        )
        raise UsageError(
            "A tape is kept in one process, where what is sealed between parties can be read, and"
            f" not with {where}: choose engine loop, stacked or auto, and no more than one worker."
        )
    return experiment.but(workers=1)


class MessageRecorder:
    """An engine's works with a tape beside them: a net asks, the engine answers, and both are
    written down in passing.
    """

    def __init__(self, works: PartyRunner, keep: Callable[[bytes], None]) -> None:
        self._runner = works
        self._append = keep

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        """Have the parties work; letters and parcels are on the tape before anybody begins, a reply
        before anybody hears it.
        """
        alike: dict[Any, tuple[Any, list[int]]] = {}
        for i, message in messages.items():
            alike.setdefault(_same(message.content), (message.content, []))[1].append(i)
        for content, to in alike.values():
            self._keep("message", call, -1, to, content)
        for (src, dst), sealed in sorted(sealed_messages.items()):
            self._keep("sealed", call, src, [dst], unseal(sealed))
        for i, answer in self._runner.run(call, messages, sealed_messages):
            self._keep("reply", call, i, [-1], _closed(answer.reply))
            yield i, answer

    def _keep(self, kind: Kind, call: CallId, src: int, to: list[int], content: Any) -> None:
        told = {"kind": kind, "call": list(call), "src": src, "to": to, "content": content}
        blob = encode(told, sealed_messages=True)
        self._append(len(blob).to_bytes(LENGTH, "little") + blob)


def _same(content: Any) -> tuple[str, tuple[int, ...]]:
    """What two letters have in common if they are the same tensors in the same places: most often
    everybody gets one letter.
    """
    skeleton, tensors = flatten(content)
    return json.dumps(skeleton), tuple(map(id, tensors))


def _closed(reply: Any) -> Any:
    """A reply as the server has it: of parcels it knows the sizes and whom they are for."""
    if not sealed_in(reply):
        return reply
    return tree_map(lambda leaf: _shell(leaf) if isinstance(leaf, Sealed) else leaf, reply)


def _shell(sealed: Sealed) -> Sealed:
    mark = sealed.origin
    assert mark is not None, "a parcel in a reply has its postmark"
    nothing = torch.empty(0, dtype=torch.uint8)
    return Sealed(
        Cipher(mark.sender, mark.round, list(sealed.to), nothing, nothing),
        sealed.size,
        sealed.to,
        mark,
    )


def read_messages(path: Path) -> Iterator[RecordedMessage]:
    """All messages in their order, one after the other: a tape may be larger than memory."""
    try:
        with path.open("rb") as file:
            while head := file.read(LENGTH):
                length = int.from_bytes(head, "little")
                blob = file.read(length)
                if len(head) < LENGTH or len(blob) < length:
                    raise CorruptedFile(f"{path} is damaged: its last message is not whole.")
                told = decode(blob, sealed_messages=True)
                kind = OLD_KINDS.get(told["kind"], told["kind"])
                yield RecordedMessage(
                    kind, CallId(*told["call"]), told["src"], tuple(told["to"]), told["content"]
                )
    except OSError as why:
        raise UsageError(f"{path} cannot be read ({why.strerror}).") from why
