"""Checkpoints of a run: one file per party state, and a manifest that is replaced atomically.

If the process is killed or the power fails at any moment, the folder holds one complete checkpoint:
new states are written beside the old ones, everything that the manifest will name is flushed to the
disk, the manifest is replaced atomically, and only then are unused states removed. Tables only
grow. Rows beyond the manifest's lengths are cut when a run is resumed, and determinism writes them
again. Earlier rows must be unchanged: the manifest has their checksums.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from comity.checksums import UNREADABLE, Checksum, read_json, with_crc
from comity.engines.engine import Engine
from comity.engines.saved import STATE_FILE, Saved, read_state, write_state
from comity.errors import CorruptedFile, UsageError
from comity.safe_files import flush_to_disk, make_folder, write_atomically
from comity.wire.codec import encode

MANIFEST = "manifest.json"
EVERY_SECONDS = 5.0
SLOW_SECONDS = 0.1  # slower checkpoints (more than 2 % of the interval) are written less often


def interval() -> float:
    """The seconds between checkpoints: five, or COMITY_CHECKPOINT_SECONDS."""
    text = os.environ.get("COMITY_CHECKPOINT_SECONDS")
    try:
        return EVERY_SECONDS if text is None else float(text)
    except ValueError:
        raise UsageError(f"COMITY_CHECKPOINT_SECONDS must be a number, not {text!r}.") from None


def is_inside(name: str) -> bool:
    """Whether the name of a file, as another file has it, is that of a file in the run's folder."""
    path = PurePath(name)
    return not path.is_absolute() and ".." not in path.parts


@dataclass
class Manifest:
    """The contents of a checkpoint."""

    round: int
    server: Saved
    parties: dict[int, Saved]
    files: dict[str, Checksum]
    """The tables and other files beside the checkpoints, as far as they were written."""
    counters: dict[str, Any]

    @property
    def checked(self) -> bool:
        """Whether it has checksums of all files. Those of earlier versions have none."""
        return all(checksum.crc is not None for checksum in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        return {
            "round": self.round,
            "server": self.server,
            "parties": list(self.parties.values()),
            "files": self.files,
            "counters": self.counters,
        }

    @staticmethod
    def read(values: Mapping[str, Any]) -> Manifest:
        """The manifest with these plain values. Raises one of several errors if they are
        invalid.
        """
        # Earlier versions saved lengths only.
        earlier_files = {name: (length, None) for name, length in values.get("lengths", {}).items()}
        files = {
            name: Checksum(*checksum)
            for name, checksum in values.get("files", earlier_files).items()
        }
        server, *parties = (Saved(*saved) for saved in (values["server"], *values["parties"]))
        if not all(
            saved.bytes >= 0 and STATE_FILE.fullmatch(saved.file) for saved in (server, *parties)
        ):
            raise ValueError("a state file has an invalid name")
        if not all(checksum.length >= 0 for checksum in files.values()):
            raise ValueError("a length is negative")
        if not all(is_inside(name) for name in files):
            raise ValueError("a file is outside the run's folder")
        return Manifest(
            values["round"],
            server,
            {saved.party: saved for saved in parties},
            files,
            values["counters"],
        )


@dataclass
class Checkpoints:
    """The `checkpoints` folder of a run."""

    folder: Path
    last: float = field(default_factory=time.monotonic)
    manifest: Manifest | None = None
    seconds: float = 0.0
    """The time spent on writing."""
    took: float = 0.0
    """The time spent on the last one."""

    def due(self) -> bool:
        """Whether the last checkpoint is old enough for another. Slow disks increase the
        interval.
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
        """Write the state after round t. `files` are the files beside this folder, as far as they
        were written.
        """
        begin = time.monotonic()
        make_folder(self.folder)
        changed = {saved.party: saved for saved in engine.save(self.folder, t)}
        blob = encode(server)
        saved = write_state(self.folder, f"server-{t}.safetensors", -1, blob)
        before = self.manifest.parties if self.manifest else {}
        manifest = Manifest(t, saved, before | changed, dict(files), counters)
        for path in [self.folder / state.file for state in (saved, *changed.values())]:
            flush_to_disk(path)  # all are written by now, so the first flush may include the others
        for path in [self.folder.parent / name for name in files]:
            flush_to_disk(path)
        flush_to_disk(self.folder.parent)
        write_atomically(self.folder / MANIFEST, json.dumps(with_crc(manifest.to_json())))
        self.manifest = manifest
        self._remove_old()
        self.last = time.monotonic()
        self.took = self.last - begin
        self.seconds += self.took

    def reopen_end(self) -> None:
        """Restore the counters before the last evaluation, so that a finished run can be
        extended.
        """
        assert self.manifest is not None
        counters = dict(self.manifest.counters)
        if ending := counters.pop("ending", None):
            self.manifest.files = {
                name: Checksum(*checksum) for name, checksum in ending.pop("files").items()
            }
        self.manifest.counters = counters | (ending or {})
        write_atomically(self.folder / MANIFEST, json.dumps(with_crc(self.manifest.to_json())))

    def _remove_old(self) -> None:
        """Remove states that the manifest does not name. Other files stay."""
        assert self.manifest is not None
        used = {saved.file for saved in (self.manifest.server, *self.manifest.parties.values())}
        with os.scandir(self.folder) as entries:
            unused = [
                entry
                for entry in entries
                if STATE_FILE.fullmatch(entry.name) and entry.name not in used
            ]
        for entry in unused:
            if entry.is_file(follow_symlinks=False):
                os.unlink(entry)

    def load(self) -> Manifest | None:
        """The last complete checkpoint; None if there is none."""
        path = self.folder / MANIFEST
        if not path.exists():
            return None
        try:
            self.manifest = Manifest.read(read_json(path, needs_checksum=True))
        except UNREADABLE as why:
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
