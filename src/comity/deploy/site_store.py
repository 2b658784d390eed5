"""What a site stores of a run on its own disk: states, its rows of every table, the roster, and the
server's last message.

The state after a call is written before the reply to that call leaves, under the name of the call.
After a restart of the server or the site, the server can therefore name the state to continue from.
The site keeps a state until a later checkpoint makes it obsolete.
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
from comity.checksums import UNREADABLE, read_json, with_crc
from comity.core.server import Note
from comity.engines.saved import STATE_FILE, Saved, read_state, write_state
from comity.engines.versions import Version
from comity.errors import ComityError, CorruptedFile, UsageError
from comity.privacy.account import PrivacyCharge
from comity.runs.context import PartyInfo
from comity.runs.folder import RunFolder
from comity.runs.tables import LEDGER, METRICS, PRIVACY, RunTable
from comity.safe_files import (
    flush_to_disk,
    make_folder,
    open_to_append,
    open_to_update,
    write_atomically,
)
from comity.wire.codec import decode, encode
from comity.wire.ledger import SERVER, Charge

STATES = "states"
INDEX = "states.json"
VIEW = "view.safetensors"
ROSTER = "seats.json"
SECRET = "secret"
SECRET_BYTES = 32
REPLIES = "replies"
DIGEST_BYTES = 32


def secret_of(folder: Path) -> bytes:
    """The secret of the site or server in `folder`: generated once, and never sent."""
    path = folder / SECRET
    if not path.exists():
        # Atomic, because noise from an incomplete secret could be guessed.
        write_atomically(path, secrets.token_bytes(SECRET_BYTES), private=True)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise CorruptedFile(
            f"The secret in {path} is damaged: noise that is drawn from it could be guessed."
        )
    return secret


def run_secret(folder: Path, run: str) -> bytes:
    """The secret of one run, from which its noise is drawn."""
    return blake2b(secret_of(folder) + run.encode(), digest_size=SECRET_BYTES).digest()


class States:
    """The stored states of one party in one run, by the call after which each was stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / STATES
        self._index = folder / INDEX
        self._saved: dict[CallId, Saved] = {}
        self._digests: dict[CallId, bytes] = {}
        if self._index.exists():
            try:
                index = read_json(self._index)
                self._saved = {
                    CallId(*version): Saved(*saved) for version, saved in index["states"]
                }
            except UNREADABLE as why:
                raise CorruptedFile(
                    f"{self._index} cannot be read: the states of this run are lost."
                ) from why

    def write(self, party: int, version: CallId, blob: bytes) -> None:
        """Store the state after a call; it is on the disk when this returns."""
        make_folder(self._folder)
        serials = (int(saved.file.split("-")[2].split(".")[0]) for saved in self._saved.values())
        serial = 1 + max(serials, default=-1)
        saved = write_state(self._folder, f"party-{party}-{serial}.safetensors", party, blob)
        flush_to_disk(self._folder / saved.file)
        flush_to_disk(self._folder)  # the file's name
        self._saved.pop(version, None)  # a repeated call moves to the end of the order
        self._saved[version] = saved
        self._digests[version] = _digest(blob)
        self._write_index()

    def read(self, version: CallId) -> Any:
        """The state after a call."""
        return read_state(self._folder, self._find(version))

    def digest(self, version: Version) -> bytes:
        """A digest of the state after a call; empty for the initial state."""
        if version is None:
            return b""
        if version not in self._digests:
            content = (self._folder / self._find(version).file).read_bytes()
            self._digests[version] = _digest(content)
        return self._digests[version]

    def _find(self, version: CallId) -> Saved:
        if version not in self._saved:
            raise ComityError(
                f"This site has no state after {version.function} of round {version.round}, which"
                " it is to continue from."
            )
        return self._saved[version]

    def forget_before(self, version: Version) -> None:
        """Delete all states that were stored before the state that a checkpoint names."""
        if version is None or version not in self._saved:
            return
        order = list(self._saved)
        self._saved = {later: self._saved[later] for later in order[order.index(version) :]}
        self._write_index()
        files = {saved.file for saved in self._saved.values()}
        for path in self._folder.iterdir():
            if STATE_FILE.fullmatch(path.name) and path.name not in files:
                path.unlink()

    def _write_index(self) -> None:
        index = {"states": [(version, saved) for version, saved in self._saved.items()]}
        write_atomically(self._index, json.dumps(with_crc(index)))


class Replies:
    """The latest reply to each call of a run, as it left the site.

    A request that is repeated gets the stored reply. Replies to calls before a checkpoint of the
    server are deleted, because they will not be asked for again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / REPLIES

    def read(self, call: CallId, request: bytes) -> bytes | None:
        """The reply to a call, if its request had this digest."""
        try:
            content = self._path(call).read_bytes()
        except FileNotFoundError:
            return None
        head, reply = content[: len(request) + DIGEST_BYTES], content[len(request) + DIGEST_BYTES :]
        return reply if head == request + _digest(reply) else None

    def write(self, call: CallId, request: bytes, reply: bytes) -> None:
        """Store the reply to a call, with the digest of its request."""
        make_folder(self._folder)
        write_atomically(self._path(call), request + _digest(reply) + reply)

    def forget_before(self, round: int) -> None:
        """Delete the replies of earlier rounds."""
        for path in self._folder.glob("*-*") if self._folder.exists() else ():
            if int(path.name.split("-")[0]) < round:
                path.unlink()

    def _path(self, call: CallId) -> Path:
        return self._folder / f"{call.round}-{_digest(repr(call).encode()).hex()[:16]}"


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


class CallSteps(NamedTuple):
    """A row of steps.csv: the gradient steps of a call. A repeated call has a row each time."""

    round: int
    call: str
    depth: int
    occurrence: int
    steps: int


def _read_steps(cells: Sequence[str]) -> CallSteps:
    return CallSteps(int(cells[0]), cells[1], *map(int, cells[2:]))


STEPS = RunTable("steps.csv", CallSteps._fields, _read_steps)


class SiteTables:
    """A site's own tables of a run: the ledger of bytes, the metrics of its models, the privacy
    charges, and the gradient steps of its calls.
    """

    def __init__(self, folder: Path, party: str) -> None:
        self._folder = folder
        self._party = party
        for table in (METRICS, LEDGER, STEPS, PRIVACY):
            _repair(folder, table)
        self.bytes_sent = sum(row.bytes for row in self.ledger() if row.src == party)
        """Bytes that left the site in this run."""
        self._metrics = {row[:4]: row for row in self.metrics()}

    def ledger(self) -> list[Charge]:
        """The bytes of all messages between this site and others."""
        return LEDGER.read(self._folder)

    def metrics(self) -> list[Note]:
        """The metrics of the site's models in all rounds."""
        return METRICS.read(self._folder)

    @property
    def steps(self) -> int:
        """Gradient steps of all calls, where a repeated call counts once."""
        return sum({row[:4]: row.steps for row in STEPS.read(self._folder)}.values())

    def privacy(self) -> list[PrivacyCharge]:
        """What this site has released in the run."""
        return PRIVACY.read(self._folder)

    def add_privacy(self, rows: Sequence[PrivacyCharge]) -> None:
        """Write rows of privacy.csv."""
        if rows:
            self._append(PRIVACY, rows)

    def add_steps(self, call: CallId, steps: int) -> None:
        """Write the gradient steps of a finished call."""
        row = CallSteps(call.round, call.function, call.depth, call.occurrence, steps)
        self._append(STEPS, [row])

    def charge_received(
        self, round: int, call: str, kind: str, size: int, src: str = SERVER
    ) -> None:
        """Write the bytes of a message that the site received."""
        self._charge(Charge(round, call, src, self._party, kind, size))

    def charge_sent(self, round: int, call: str, kind: str, size: int, dst: str = SERVER) -> None:
        """Write the bytes of a message that the site sends."""
        self._charge(Charge(round, call, self._party, dst, kind, size))
        self.bytes_sent += size

    def add_metrics(self, rows: Iterable[Note]) -> None:
        """Write the metrics of a round.

        If a round is evaluated again, the later metrics replace the earlier ones: other parties may
        be absent from the repeated round.
        """
        later = {row[:4]: row for row in rows}
        earlier = self._metrics
        changed = any(
            key in earlier and not _is_same(earlier[key], row) for key, row in later.items()
        )
        merged = earlier | later
        if changed:
            lines = _lines([METRICS.columns, *merged.values()])
            write_atomically(self._folder / METRICS.name, lines)
        else:
            self._append(METRICS, [row for key, row in later.items() if key not in earlier])
        self._metrics = merged

    def _charge(self, row: Charge) -> None:
        if row.bytes:
            self._append(LEDGER, [row])

    def _append(self, table: RunTable[Any], rows: Sequence[Sequence[Any]]) -> None:
        _repair(self._folder, table)  # a full disk may have cut off the last row
        with open_to_append(self._folder / table.name) as file:
            file.write(_lines(rows).encode())


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _is_same(one: Note, other: Note) -> bool:
    """Whether two rows are equal, where nan equals nan."""
    return one == other or (one.value != one.value and other.value != other.value)


def _repair(folder: Path, table: RunTable[Any]) -> None:
    """Begin a table, or remove a last row that was cut off by a kill or a full disk."""
    with open_to_update(folder / table.name, create=True) as file:
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
    """Store the server's message for the last evaluation; with the state it makes the model."""
    view = {"content": content, "after": None if version is None else tuple(version)}
    write_atomically(folder / VIEW, encode(view))


def read_view(folder: Path) -> tuple[Any, Version]:
    """The message that `write_view` stored, and the call whose state it belongs to."""
    try:
        view = decode((folder / VIEW).read_bytes())
    except FileNotFoundError as why:
        raise UsageError(
            f"{folder} has no {VIEW}: its model was not evaluated at the end, or it had no test"
            " samples."
        ) from why
    return view["content"], None if view["after"] is None else CallId(*view["after"])


def write_roster(folder: Path, parties: Mapping[str, PartyInfo]) -> None:
    """Store what the server says of all parties, which determines a party's number and task."""
    content = {"parties": {name: asdict(party) for name, party in parties.items()}}
    write_atomically(folder / ROSTER, json.dumps(with_crc(content)))


def has_roster(folder: Path) -> bool:
    """Whether a run has begun with a roster."""
    return (folder / ROSTER).exists()


def read_roster(folder: Path) -> dict[str, PartyInfo]:
    """All parties, as the server described them when the run began."""
    try:
        content = read_json(folder / ROSTER)
        return {name: PartyInfo(**party) for name, party in content["parties"].items()}
    except FileNotFoundError as why:
        raise UsageError(
            f"{folder} is of a version of Comity that did not store who else took part: it cannot"
            " be opened."
        ) from why
    except UNREADABLE as why:
        raise CorruptedFile(f"{folder / ROSTER} cannot be read: it is damaged.") from why


def runs_of(folder: Path) -> list[RunFolder]:
    """The runs that a site has taken part in, in the order in which they began."""
    runs = [RunFolder(path) for path in (folder / "runs").glob("*")]
    return sorted((run for run in runs if run.has_run), key=lambda run: run.config.stat().st_mtime)


def sent_rows(folder: Path, party: str) -> list[tuple[str, Charge]]:
    """The rows of the ledgers of all runs for messages that left this site, with the name of each
    run.
    """
    rows: list[tuple[str, Charge]] = []
    for path in sorted((folder / "runs").glob(f"*/{LEDGER.name}")):
        ledger = LEDGER.salvage(path.parent)
        if ledger.damaged:
            raise CorruptedFile(
                f"{path} is damaged: how much has left this site in all is not known."
            )
        rows += ((path.parent.name, row) for row in ledger.rows if row.src == party)
    return rows


def run_charges(folder: Path) -> list[tuple[str, PrivacyCharge]]:
    """What this site has released by the tables of its runs, with the name of each run."""
    charges: list[tuple[str, PrivacyCharge]] = []
    for path in sorted((folder / "runs").glob(f"*/{PRIVACY.name}")):
        table = PRIVACY.salvage(path.parent)
        if table.damaged:
            raise CorruptedFile(f"{path} is damaged: what has been released in all is not known.")
        charges += ((path.parent.name, row) for row in table.rows)
    return charges
