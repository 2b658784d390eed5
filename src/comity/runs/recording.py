"""Recorded messages of a run: every message that its server saw, as it was sent, to study what can
be learned from it.

They are in one file that grows, `messages/recording`: for each message eight bytes with its length,
then the message as `wire/codec.py` writes it. Like the tables, the file is cut back to the last
checkpoint when a run is resumed, and determinism writes the rest again. A sealed message is
recorded without content in the reply that contained it, and as its recipient opened it when it was
delivered: the server could not read it. The results of evaluations are in the tables and not here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from comity.base.call import CallId, Edge, Message, PartyResult
from comity.base.record import Cipher, Sealed, sealed_in, tree_map, unseal
from comity.core.runner import PartyRunner
from comity.errors import CorruptedFile, UsageError
from comity.runs.config import Experiment
from comity.wire.codec import decode, encode, flatten

LENGTH = 8  # bytes of the length of a message
Kind = Literal["message", "reply", "sealed"]
OLD_KINDS: dict[str, Kind] = {"letter": "message", "parcel": "sealed"}
"""Kinds by their names in recordings of earlier versions."""
RECORDED = "All messages are recorded, sealed ones as their recipients see them."


class RecordedMessage(NamedTuple):
    """A recorded message."""

    kind: Kind
    """A message from the server, a reply to it, or a sealed message that a party opened."""
    call: CallId
    """The call that it belongs to."""
    src: int
    """The sender, by number; -1 is the server."""
    to: tuple[int, ...]
    """The recipients. A message to several parties is recorded once."""
    content: Any


def one_process(experiment: Experiment) -> Experiment:
    """The experiment with its parties in one process, where sealed messages can be recorded."""
    if experiment.engine in ("process", "ray", "flare") or (experiment.workers or 1) > 1:
        where = (
            f"engine {experiment.engine}"
            if experiment.engine in ("process", "ray", "flare")
            else "several workers"
        )
        raise UsageError(
            "Messages are recorded in one process, where sealed messages can be read, and not with"
            f" {where}: choose engine loop, stacked or auto, and no more than one worker."
        )
    return experiment.but(workers=1)


class MessageRecorder:
    """Runs party functions on an engine and records all messages."""

    def __init__(self, runner: PartyRunner, append: Callable[[bytes], None]) -> None:
        self._runner = runner
        self._append = append

    def run(
        self, call: CallId, messages: Mapping[int, Message], sealed_messages: Mapping[Edge, Sealed]
    ) -> Iterator[tuple[int, PartyResult]]:
        """Run a party function. Messages are recorded before any party starts, and a reply before
        the server gets it.
        """
        recipients: dict[Any, tuple[Any, list[int]]] = {}
        for i, message in messages.items():
            recipients.setdefault(_identity(message.content), (message.content, []))[1].append(i)
        for content, to in recipients.values():
            self._record("message", call, -1, to, content)
        for (src, dst), sealed in sorted(sealed_messages.items()):
            self._record("sealed", call, src, [dst], unseal(sealed))
        for i, result in self._runner.run(call, messages, sealed_messages):
            self._record("reply", call, i, [-1], _without_contents(result.reply))
            yield i, result

    def _record(self, kind: Kind, call: CallId, src: int, to: list[int], content: Any) -> None:
        entry = {"kind": kind, "call": list(call), "src": src, "to": to, "content": content}
        blob = encode(entry, sealed_messages=True)
        self._append(len(blob).to_bytes(LENGTH, "little") + blob)


def _identity(content: Any) -> tuple[str, tuple[int, ...]]:
    """Equal for messages with the same tensors at the same positions: most often all parties get
    one message.
    """
    skeleton, tensors = flatten(content)
    return json.dumps(skeleton), tuple(map(id, tensors))


def _without_contents(reply: Any) -> Any:
    """A reply as the server sees it: of sealed messages it knows the sizes and recipients."""
    if not sealed_in(reply):
        return reply
    return tree_map(lambda leaf: _empty_sealed(leaf) if isinstance(leaf, Sealed) else leaf, reply)


def _empty_sealed(sealed: Sealed) -> Sealed:
    origin = sealed.origin
    assert origin is not None, "a sealed message in a reply has its origin"
    empty = torch.empty(0, dtype=torch.uint8)
    return Sealed(
        Cipher(origin.sender, origin.round, list(sealed.to), empty, empty),
        sealed.size,
        sealed.to,
        origin,
    )


def read_messages(path: Path) -> Iterator[RecordedMessage]:
    """All messages in order, one at a time: the file may be larger than memory."""
    try:
        with path.open("rb") as file:
            while prefix := file.read(LENGTH):
                length = int.from_bytes(prefix, "little")
                blob = file.read(length)
                if len(prefix) < LENGTH or len(blob) < length:
                    raise CorruptedFile(f"{path} is damaged: its last message is not whole.")
                entry = decode(blob, sealed_messages=True)
                kind = OLD_KINDS.get(entry["kind"], entry["kind"])
                yield RecordedMessage(
                    kind, CallId(*entry["call"]), entry["src"], tuple(entry["to"]), entry["content"]
                )
    except OSError as why:
        raise UsageError(f"{path} cannot be read ({why.strerror}).") from why
