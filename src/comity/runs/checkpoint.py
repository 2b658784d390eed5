"""Checkpoints of a run: one file a party's state, and a manifest that is replaced in one instant.

Whatever moment a process is killed at, or the power fails, the folder holds one whole checkpoint:
new states are written beside the old ones, all that the manifest is to name is brought to the disk,
the manifest is swapped atomically, and only then are states that nobody names any more removed.
Tables only grow; rows behind the manifest's lengths are cut at resume, and determinism writes them
again. What is before them must still be what it was: the manifest has its checksums.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comity.checksums import CRC, Checksum, with_crc, without_crc
from comity.wire.codec import encode
from comity.engines.engine import Engine
from comity.engines.saved import STATE_FILE, Saved, read_state, write_state
from comity.errors import CorruptedFile, UsageError

MANIFEST = "manifest.json"
EVERY_SECONDS = 5.0
SLOW_SECONDS = (
    0.1  # a checkpoint that takes longer than this, 2 % of the time between two, is made less often
)


def interval() -> float:
    """Seconds between checkpoints: five, or what COMITY_CHECKPOINT_SECONDS says."""
    text = os.environ.get("COMITY_CHECKPOINT_SECONDS")
    try:
        return EVERY_SECONDS if text is None else float(text)
    except ValueError:
        raise UsageError(f"COMITY_CHECKPOINT_SECONDS must be a number, not {text!r}.") from None


def to_disk(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, would outlast a power cut."""
    if os.name != "posix":  # elsewhere only whoever writes to a file can ask for that
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one instant; a power cut afterwards does not bring the old one back."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    to_disk(path.parent)


@dataclass
class Manifest:
    """What a checkpoint consists of."""

    round: int
    server: Saved
    parties: dict[int, Saved]
    files: dict[str, Checksum]
    """The tables, and whatever else lies beside the checkpoints, as far as they were written."""
    counters: dict[str, Any]

    @property
    def checked(self) -> bool:
        """Whether it has checksums of all files; those of earlier versions had none."""
        return all(known.crc is not None for known in self.files.values())

    def told(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "round": self.round,
            "server": self.server,
            "parties": list(self.parties.values()),
            "files": self.files,
            "counters": self.counters,
        }

    @staticmethod
    def read(told: Mapping[str, Any]) -> Manifest:
        """What `told` made; any of the usual errors where that makes no sense."""
        lengths = {
            name: (length, None) for name, length in told.get("lengths", {}).items()
        }  # of an earlier version
        files = {name: Checksum(*known) for name, known in told.get("files", lengths).items()}
        server, *parties = (Saved(*saved) for saved in (told["server"], *told["parties"]))
        if not all(saved.bytes >= 0 and STATE_FILE.fullmatch(saved.file) for saved in (server, *parties)):
            raise ValueError("a state has another name")
        if not all(known.length >= 0 for known in files.values()):
            raise ValueError("a length is negative")
        return Manifest(
            told["round"],
            server,
            {saved.party: saved for saved in parties},
            files,
            told["counters"],
        )


@dataclass
class Checkpoints:
    """The `checkpoints` folder of a run."""

    folder: Path
    last: float = field(default_factory=time.monotonic)
    manifest: Manifest | None = None
    seconds: float = 0.0
    """Time spent on writing."""
    took: float = 0.0
    """Time spent on the last one."""

    def due(self) -> bool:
        """Whether the last checkpoint is old enough for another; where the disk is slow, it takes
        longer.
        """
        return time.monotonic() - self.last >= interval() * max(1.0, self.took / SLOW_SECONDS)

    def save(
        self,
        t: int,
        server: Any,
        engine: Engine,
        files: Mapping[str, Checksum],
        counters: dict[str, Any],
    ) -> None:
        """Write the state after round t; `files` are those beside this folder that are written up
        to here.
        """
        begin = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        changed = {saved.party: saved for saved in engine.save(self.folder, t)}
        blob = encode(server)
        saved = write_state(self.folder, f"server-{t}.safetensors", -1, blob)
        before = self.manifest.parties if self.manifest else {}
        made = Manifest(t, saved, before | changed, dict(files), counters)
        for path in [self.folder / state.file for state in (saved, *changed.values())]:
            to_disk(path)  # all are written by now, so that the first may take the others along
        for path in [self.folder.parent / name for name in files]:
            to_disk(path)
        to_disk(self.folder.parent)
        write_atomically(self.folder / MANIFEST, json.dumps(with_crc(made.told())))
        self.manifest = made
        self._remove_old()
        self.last = time.monotonic()
        self.took = self.last - begin
        self.seconds += self.took

    def reopen_end(self) -> None:
        """Let the last round of a run that has ended be one whose evaluation is still to come, as
        in a longer run.
        """
        assert self.manifest is not None
        counters = dict(self.manifest.counters)
        if ending := counters.pop("ending", None):
            self.manifest.files = {
                name: Checksum(*known) for name, known in ending.pop("files").items()
            }
        self.manifest.counters = counters | (ending or {})
        write_atomically(self.folder / MANIFEST, json.dumps(with_crc(self.manifest.told())))

    def _remove_old(self) -> None:
        """Remove states that the manifest does not name. What is no state of ours is somebody
        else's, and stays.
        """
        assert self.manifest is not None
        named = {saved.file for saved in (self.manifest.server, *self.manifest.parties.values())}
        with os.scandir(self.folder) as found:
            old = [one for one in found if STATE_FILE.fullmatch(one.name) and one.name not in named]
        for one in old:
            if one.is_file(follow_symlinks=False):
                os.unlink(one)

    def load(self) -> Manifest | None:
        """The newest whole checkpoint, if there is one."""
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if CRC not in told:
                raise ValueError("there is no checksum")
            self.manifest = Manifest.read(without_crc(told))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
            raise CorruptedFile(f"The checkpoint is damaged: {path} cannot be read.") from why
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
