"""A site's ledger of releases: everything that any run has released of the site's records.

It lies in the site's folder and not in the folder of a run, so that deleting a run gives no privacy
budget back. A release is written and synced before the reply is computed. Processes of concurrent
runs take turns by a lock. Each row carries a code that depends on all rows before it and on the
site's secret, so that a row cannot be changed or removed unnoticed. Only rows at the very end can
be cut off without a trace: whoever can write to the site's folder is trusted.
"""

from __future__ import annotations

import csv
import fcntl
import hmac
import io
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from comity.core.release import Release
from comity.deploy.site_store import run_charges, secret_of
from comity.errors import CorruptedFile, UsageError
from comity.privacy.account import PrivacyCharge
from comity.privacy.composition import epsilon, renyi_epsilon
from comity.runs.tables import PRIVACY

LEDGER_FILE = "releases.csv"
COLUMNS = ("run", "digest", *PRIVACY.columns, "code")
DELTA = 1e-5
"""The δ at which a site computes its privacy loss over all runs."""
CODE = 16  # hexadecimal digits of a row's code


class ReleaseRow(NamedTuple):
    """A row of the ledger."""

    run: str
    digest: str
    """A digest of the request; a request that is repeated releases nothing new."""
    charge: PrivacyCharge


class ReleaseLedger:
    """The ledger in a site's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / LEDGER_FILE
        self._rows: list[ReleaseRow] = []
        self._charged: set[tuple[str, str]] = set()
        self._history: Counter[Release] = Counter()
        self._has_unprotected = False
        self._read = 0  # bytes of the file that are in `_rows`
        self._code = ""

    def rows(self) -> list[ReleaseRow]:
        """All rows."""
        with self._locked():
            return list(self._rows)

    def history(self, but: str = "") -> Counter[Release]:
        """All releases through noise, and how often each occurred, without those of the run
        `but`.
        """
        releases = (row.charge.to_release() for row in self.rows() if not but or row.run != but)
        return Counter(release for release in releases if release)

    def is_bounded(self, but: str = "") -> bool:
        """Whether nothing has left without noise, except in the run `but`."""
        return all(row.charge.to_release() for row in self.rows() if not but or row.run != but)

    def has(self, run: str, digest: str) -> bool:
        """Whether a request was charged before."""
        with self._locked():
            return (run, digest) in self._charged

    def charge(
        self, run: str, digest: str, charges: Sequence[PrivacyCharge], most: float = math.inf
    ) -> None:
        """Write what the answer to a request will release; it is on the disk when this returns.

        A request that was charged before costs nothing.

        Arguments:
            run: the run's name
            digest: a digest of the request
            charges: the releases
            most: the largest ε over all runs; raises `UsageError` if it would be exceeded
        """
        with self._locked():
            if (run, digest) in self._charged:
                return
            if math.isfinite(most):
                self._check(charges, most)
            self._append([ReleaseRow(run, digest, charge) for charge in charges])

    def note(self, run: str, digest: str, charges: Sequence[PrivacyCharge]) -> None:
        """Write what has left without noise."""
        with self._locked():
            self._append([ReleaseRow(run, digest, charge) for charge in charges])

    def _check(self, charges: Sequence[PrivacyCharge], most: float) -> None:
        releases = [charge.to_release() for charge in charges]
        history = self._history + Counter(release for release in releases if release)
        is_bounded = all(releases) and not self._has_unprotected
        if is_bounded and renyi_epsilon(history, DELTA) <= most:
            return
        total = epsilon(history, DELTA) if is_bounded else math.inf
        if total > most:
            raise UsageError(
                f"The site's privacy budget is spent: with this reply the epsilon over all runs"
                f" would be {total:.3g}, and {most:g} is allowed (budget: epsilon)."
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the ledger's lock, with all rows of other processes read."""
        if not self._path.exists():
            self._begin()
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.seek(0, os.SEEK_END) < self._read:
                raise self._damaged()
            file.seek(self._read)
            self._read_on(file.read())
            yield

    def _begin(self) -> None:
        """Begin the ledger with what earlier versions of Comity wrote in the folders of runs."""
        fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fresh, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_size:
                return  # another process was faster
            earlier = [ReleaseRow(run, "", charge) for run, charge in run_charges(self._folder)]
            lines, _ = self._lines(earlier, "")
            file.write(_line(COLUMNS).encode() + lines)
            file.flush()
            os.fsync(file.fileno())

    def _append(self, rows: Sequence[ReleaseRow]) -> None:
        if not rows:
            return
        lines, code = self._lines(rows, self._code)
        with os.fdopen(os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW), "r+b") as file:
            file.truncate(self._read)  # a row that a kill has cut off was never released
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._count(rows)
        self._read += len(lines)
        self._code = code

    def _lines(self, rows: Sequence[ReleaseRow], code: str) -> tuple[bytes, str]:
        """Rows as lines, each with its code, and the last code."""
        text = ""
        for row in rows:
            cells = _line((row.run, row.digest, *row.charge)).rstrip("\n")
            code = self._next_code(code, cells)
            text += f"{cells},{code}\n"
        return text.encode(), code

    def _read_on(self, content: bytes) -> None:
        """Read the rows that were added since the last time."""
        whole = content[: content.rfind(b"\n") + 1]
        rows: list[ReleaseRow] = []
        code = self._code
        lines = whole.decode(errors="replace").splitlines()
        if not self._read:
            if not lines or lines[0] != _line(COLUMNS).rstrip("\n"):
                raise self._damaged()
            del lines[0]
        for line in lines:
            cells, _, right = line.rpartition(",")
            code = self._next_code(code, cells)
            if not hmac.compare_digest(code, right):
                raise self._damaged()
            run, digest, *values = next(csv.reader([cells]))
            rows.append(ReleaseRow(run, digest, PRIVACY.row(values)))
        self._count(rows)
        self._read += len(whole)
        self._code = code

    def _count(self, rows: Sequence[ReleaseRow]) -> None:
        self._rows += rows
        for row in rows:
            release = row.charge.to_release()
            if release is None:
                self._has_unprotected = True
                continue
            self._history[release] += 1
            if row.digest:
                self._charged.add((row.run, row.digest))

    def _next_code(self, before: str, cells: str) -> str:
        text = f"{before}\n{cells}".encode()
        return hmac.digest(secret_of(self._folder), text, "sha256").hex()[:CODE]

    def _damaged(self) -> CorruptedFile:
        return CorruptedFile(
            f"The ledger {self._path} is damaged: what has been released in all is not known."
        )


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
