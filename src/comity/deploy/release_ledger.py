"""A site's ledger of releases: everything that any run has released of the site's records.

A release is written and synced before the reply is computed (`site_ledger.py` says how).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from comity.core.release import Release
from comity.deploy.site_ledger import SiteLedger
from comity.deploy.site_store import run_charges
from comity.errors import UsageError
from comity.privacy.account import PrivacyCharge
from comity.privacy.composition import epsilon, renyi_epsilon
from comity.runs.tables import PRIVACY

LEDGER_FILE = "releases.csv"
DELTA = 1e-5
"""The δ at which a site computes its privacy loss over all runs."""


class ReleaseRow(NamedTuple):
    """A row of the ledger."""

    run: str
    digest: str
    """A digest of the request; a request that is repeated releases nothing new."""
    charge: PrivacyCharge


class ReleaseLedger(SiteLedger[ReleaseRow]):
    """The ledger in a site's folder."""

    file = LEDGER_FILE
    columns = ("run", "digest", *PRIVACY.columns)
    content = "what has been released"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._rows: list[ReleaseRow] = []
        self._charged: set[tuple[str, str]] = set()
        self._history: Counter[Release] = Counter()
        self._has_unprotected = False

    def rows(self) -> list[ReleaseRow]:
        """All rows."""
        with self._locked():
            return list(self._rows)

    def history(self, but: str = "", of: str = "") -> Counter[Release]:
        """All releases through noise, and how often each occurred: without those of the run `but`,
        or only those of the run `of`.
        """
        rows = (row for row in self.rows() if (not but or row.run != but) and of in ("", row.run))
        releases = (row.charge.to_release() for row in rows)
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

    def _earlier(self) -> Sequence[ReleaseRow]:
        return [ReleaseRow(run, "", charge) for run, charge in run_charges(self._folder)]

    def _cells(self, row: ReleaseRow) -> Sequence[object]:
        return row.run, row.digest, *row.charge

    def _row(self, cells: Sequence[str]) -> ReleaseRow:
        run, digest, *values = cells
        return ReleaseRow(run, digest, PRIVACY.row(values))

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
