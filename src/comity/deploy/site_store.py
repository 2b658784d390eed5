"""What a site keeps of a run, on its own disk: its states, its own rows of every table, its
answers, its model.

A state is written before the reply leaves that came of the same work, under the name of the call.
Whatever the server or the site comes back from, it can name the state to go on with, and the site
has it until a checkpoint makes it useless.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from comity.base.call import CallId
from comity.checksums import with_crc, without_crc
from comity.core.server import Note
from comity.engines.saved import OURS, Saved, read_state, write_state
from comity.engines.versions import Version
from comity.errors import ComityError, CorruptedFile, UsageError
from comity.privacy.account import PrivacyCharge
from comity.runs.checkpoint import to_disk, write_atomically
from comity.runs.context import PartyInfo
from comity.runs.folder import RunFolder
from comity.runs.tables import LEDGER, METRICS, PRIVACY, Table
from comity.wire.codec import decode, encode
from comity.wire.ledger import SERVER, Charge

STATES = "states"
INDEX = "states.json"
VIEW = "view.safetensors"
SEATS = "seats.json"
SECRET = "secret"
SECRET_BYTES = 32


def secret_of(folder: Path) -> bytes:
    """A secret that whoever has this folder keeps for himself: made once, and never sent."""
    path = folder / SECRET
    if not path.exists():
        fresh = path.with_name(SECRET + ".new")
        fresh.touch(mode=0o600)
        with fresh.open("wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)  # whole or not at all: of half a secret the noise could be guessed
    if len(found := path.read_bytes()) != SECRET_BYTES:
        raise CorruptedFile(
            f"The secret in {path} is damaged: noise that is drawn from it could be guessed."
        )
    return found


def run_secret(folder: Path, run: str) -> bytes:
    """The secret for one run, of which noise is drawn."""
    return blake2b(secret_of(folder) + run.encode(), digest_size=SECRET_BYTES).digest()


class States:
    """The states of one party in one run, by the call that each came of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / STATES
        self._index = folder / INDEX
        self._kept: dict[CallId, Saved] = {}
        if self._index.exists():
            try:
                told = without_crc(json.loads(self._index.read_text(encoding="utf-8")))
                self._kept = {CallId(*version): Saved(*saved) for version, saved in told["states"]}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
                raise CorruptedFile(
                    f"{self._index} cannot be read: the states of this run are lost."
                ) from why

    def write(self, party: int, version: CallId, blob: bytes) -> None:
        """Keep a state; it is on the disk when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        serial = 1 + max(
            (int(saved.file.split("-")[2].split(".")[0]) for saved in self._kept.values()),
            default=-1,
        )
        saved = write_state(self._folder, f"party-{party}-{serial}.safetensors", party, blob)
        to_disk(self._folder / saved.file)
        self._kept.pop(version, None)  # asked for again: the same state, but the newest
        self._kept[version] = saved
        self._write_index()

    def read(self, version: CallId) -> Any:
        """The state after a call."""
        if version not in self._kept:
            raise ComityError(
                f"This site has no state after {version.function} of round {version.round}, which"
                " it is to go on with."
            )
        return read_state(self._folder, self._kept[version])

    def forget_before(self, version: Version) -> None:
        """Let go of all that is older than a state that a checkpoint names."""
        if version is None or version not in self._kept:
            return
        order = list(self._kept)
        self._kept = {one: self._kept[one] for one in order[order.index(version) :]}
        self._write_index()
        named = {saved.file for saved in self._kept.values()}
        for path in self._folder.iterdir():
            if OURS.fullmatch(path.name) and path.name not in named:
                path.unlink()

    def _write_index(self) -> None:
        told = {"states": [(version, saved) for version, saved in self._kept.items()]}
        write_atomically(self._index, json.dumps(with_crc(told)))


class Worked(NamedTuple):
    """A row of steps.csv: the gradient steps of a work. One that was asked for again stands there
    again.
    """

    round: int
    call: str
    depth: int
    occurrence: int
    steps: int


def _worked(cells: Sequence[str]) -> Worked:
    return Worked(int(cells[0]), cells[1], *map(int, cells[2:]))


STEPS = Table("steps.csv", Worked._fields, _worked)


class Book:
    """A site's own tables of a run: what crossed, as the server charges it, what its models were
    worth, and what was done.
    """

    def __init__(self, folder: Path, party: str) -> None:
        self._folder = folder
        self._party = party
        for table in (METRICS, LEDGER, STEPS, PRIVACY):
            _mend(folder, table)
        self._done = {row[:4] for row in STEPS.read(folder)}
        self.sent = sum(row.bytes for row in self.ledger() if row.src == party)
        self._noted = {note[:4]: note for note in self.metrics()}

    def ledger(self) -> list[Charge]:
        """All that crossed between this site and others."""
        return LEDGER.read(self._folder)

    def metrics(self) -> list[Note]:
        """All that is known of its models."""
        return METRICS.read(self._folder)

    @property
    def steps(self) -> int:
        """Gradient steps of all works whose replies left, each counted once, however often it was
        asked for.
        """
        return sum({row[:4]: row.steps for row in STEPS.read(self._folder)}.values())

    def is_done(self, call: CallId) -> bool:
        """Whether a work was done before: asked again it gives the same answer, and tells nothing
        new.
        """
        return (call.round, call.function, call.depth, call.occurrence) in self._done

    def privacy(self) -> list[PrivacyCharge]:
        """All that this site has given away in the run."""
        return PRIVACY.read(self._folder)

    def spend(self, rows: Sequence[PrivacyCharge]) -> None:
        """Something is given away."""
        if rows:
            self._add(PRIVACY, rows)

    def worked(self, call: CallId, steps: int) -> None:
        """A work is done, of so many steps."""
        self._done.add((call.round, call.function, call.depth, call.occurrence))
        self._add(STEPS, [Worked(call.round, call.function, call.depth, call.occurrence, steps)])

    def down(self, round: int, work: str, kind: str, size: int, src: str = SERVER) -> None:
        """Something came."""
        self._charge(Charge(round, work, src, self._party, kind, size))

    def up(self, round: int, work: str, kind: str, size: int, dst: str = SERVER) -> None:
        """Something leaves."""
        self._charge(Charge(round, work, self._party, dst, kind, size))
        self.sent += size

    def note(self, notes: Iterable[Note]) -> None:
        """Figures of a round; of one that is evaluated again the later ones stand, as others may be
        absent from it then.
        """
        found = {note[:4]: note for note in notes}
        known = self._noted
        changed = any(
            name in known and not _same(known[name], note) for name, note in found.items()
        )
        fresh = [note for name, note in found.items() if name not in known]
        if changed:
            write_atomically(
                self._folder / METRICS.name, _lines([METRICS.columns, *(known | found).values()])
            )
        else:
            self._add(METRICS, fresh)
        self._noted = known | found

    def _charge(self, row: Charge) -> None:
        if row.bytes:
            self._add(LEDGER, [row])

    def _add(self, table: Table[Any], rows: Sequence[Sequence[Any]]) -> None:
        _mend(self._folder, table)  # a full disk may have cut off what was written before
        with (self._folder / table.name).open("a", encoding="utf-8", newline="") as file:
            file.write(_lines(rows))


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _same(one: Note, other: Note) -> bool:
    """Whether two figures are the same; what is no number is the same as another that is none."""
    return one == other or (one.value != one.value and other.value != other.value)


def _mend(folder: Path, table: Table[Any]) -> None:
    """Begin a table, or take back a row that was cut off when the process was killed or the disk
    was full.
    """
    path = folder / table.name
    path.touch()
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if size and file.read(1) != b"\n":
            file.seek(0)
            size = file.read().rfind(b"\n") + 1
            file.truncate(size)
        if not size:
            file.seek(0)
            file.write(_lines([table.columns]).encode())


def write_view(folder: Path, content: Any, version: Version) -> None:
    """Keep what the server sent for the last evaluation: with the state it makes the model."""
    fresh = folder / f"{VIEW}.new"
    fresh.write_bytes(
        encode({"content": content, "after": None if version is None else tuple(version)})
    )
    os.replace(fresh, folder / VIEW)


def read_view(folder: Path) -> tuple[Any, Version]:
    """What was kept for the model."""
    try:
        told = decode((folder / VIEW).read_bytes())
    except FileNotFoundError as why:
        raise UsageError(
            f"{folder} has no {VIEW}: its model was not asked for at the end, or it had no test"
            " samples."
        ) from why
    return told["content"], None if told["after"] is None else CallId(*told["after"])


def write_seats(folder: Path, said: Mapping[str, PartyInfo]) -> None:
    """Keep what everybody has said of themselves, as the server told it: a party's number and task
    follow from that.
    """
    write_atomically(
        folder / SEATS,
        json.dumps(with_crc({"parties": {name: asdict(one) for name, one in said.items()}})),
    )


def read_seats(folder: Path) -> dict[str, PartyInfo]:
    """What everybody had said of themselves when the run began."""
    try:
        told = without_crc(json.loads((folder / SEATS).read_text(encoding="utf-8")))["parties"]
        return {name: PartyInfo(**one) for name, one in told.items()}
    except FileNotFoundError as why:
        raise UsageError(
            f"{folder} is of a version of Comity that did not keep who else took part: it cannot be"
            " opened."
        ) from why
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise CorruptedFile(f"{folder / SEATS} cannot be read: it is damaged.") from why


def runs_of(folder: Path) -> list[RunFolder]:
    """The runs that a site has taken part in, the first ones first."""
    found = [RunFolder(path) for path in (folder / "runs").glob("*")]
    return sorted((run for run in found if run.begun), key=lambda run: run.config.stat().st_mtime)


def spent(folder: Path, party: str) -> int:
    """Bytes that left this site in all its runs."""
    total = 0
    for path in sorted((folder / "runs").glob(f"*/{LEDGER.name}")):
        found = LEDGER.salvage(path.parent)
        if found.damaged:
            raise CorruptedFile(
                f"{path} is damaged: how much has left this site in all is not known."
            )
        total += sum(row.bytes for row in found.rows if row.src == party)
    return total


def given_away(folder: Path, but: str) -> list[PrivacyCharge]:
    """What this site has given away in all its runs but one."""
    found: list[PrivacyCharge] = []
    for path in sorted((folder / "runs").glob(f"*/{PRIVACY.name}")):
        rows = PRIVACY.salvage(path.parent)
        if rows.damaged:
            raise CorruptedFile(f"{path} is damaged: what has been given away in all is not known.")
        found += rows.rows if path.parent.name != but else []
    return found
