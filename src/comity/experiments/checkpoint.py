"""Checkpoints of a run: one file a party's state, and a manifest that is replaced in one instant.

Whatever moment a process is killed at, the folder holds one whole checkpoint: new states are written beside the old ones, the
manifest is swapped atomically, and only then are files that nobody names any more removed. Tables only grow; rows behind the
manifest's lengths are cut at resume, and determinism writes them again.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity.core.codec import encode
from comity.core.record import Empty, leaves
from comity.engines.engine import Engine
from comity.engines.saved import Saved, read_state, write_state
from comity.errors import ComityError, Refusal

MANIFEST = "manifest.json"
EVERY_SECONDS = 5.0


def interval() -> float:
    """Seconds between checkpoints: five, or what COMITY_CHECKPOINT_SECONDS says."""
    text = os.environ.get("COMITY_CHECKPOINT_SECONDS")
    try:
        return EVERY_SECONDS if text is None else float(text)
    except ValueError:
        raise Refusal(f"COMITY_CHECKPOINT_SECONDS must be a number, not {text!r}.") from None


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one instant."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _crc(text: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(text).encode())


@dataclass
class Manifest:
    """What a checkpoint consists of."""

    round: int
    server: Saved
    parties: dict[int, Saved]
    lengths: dict[str, int]
    counters: dict[str, Any]


@dataclass
class Checkpoints:
    """The `checkpoints` folder of a run."""

    folder: Path
    last: float = field(default_factory=time.monotonic)
    manifest: Manifest | None = None
    seconds: float = 0.0
    """Time spent on writing."""

    def due(self) -> bool:
        """Whether the last checkpoint is old enough for another."""
        return time.monotonic() - self.last >= interval()

    def save(self, t: int, server: Any, engine: Engine, lengths: dict[str, int], counters: dict[str, Any]) -> None:
        """Write the state after round t."""
        begin = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        parties = dict(self.manifest.parties) if self.manifest else {}
        parties |= {saved.party: saved for saved in engine.save(self.folder, t)}
        blob = encode(server if leaves(server) else Empty())
        saved = write_state(self.folder, f"server-{t}.safetensors", -1, blob)
        made = Manifest(t, saved, parties, lengths, counters)
        text = {
            "round": t,
            "server": list(made.server),
            "parties": [list(saved) for saved in parties.values()],
            "lengths": lengths,
            "counters": counters,
        }
        write_atomically(self.folder / MANIFEST, json.dumps(text | {"crc": _crc(text)}))
        self.manifest = made
        named = {MANIFEST, made.server.file, *(saved.file for saved in parties.values())}
        for path in self.folder.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)
        self.last = time.monotonic()
        self.seconds += self.last - begin

    def load(self) -> Manifest | None:
        """The newest whole checkpoint, if there is one."""
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            text = json.loads(path.read_text(encoding="utf-8"))
            if text.pop("crc") != _crc(text):
                raise ValueError
            parties = {saved.party: saved for saved in (Saved(*s) for s in text["parties"])}
            self.manifest = Manifest(text["round"], Saved(*text["server"]), parties, text["lengths"], text["counters"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
            raise ComityError(f"The checkpoint is damaged: {path} cannot be read.") from why
        return self.manifest

    def server_state(self) -> Any:
        """The server's state."""
        assert self.manifest is not None
        return read_state(self.folder, self.manifest.server)

    def party_state(self, i: int) -> Any | None:
        """A party's state; None if it never had any content."""
        assert self.manifest is not None
        saved = self.manifest.parties.get(i)
        return None if saved is None else read_state(self.folder, saved)
