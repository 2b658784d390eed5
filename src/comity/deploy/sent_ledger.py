"""A site's ledger of bytes: how much has left the site in each run and in all, and how often
figures of its test and validation records have left.

The bytes of a reply are written and synced before the reply leaves (`site_ledger.py` says how). The
ledger.csv in the folder of a run says more of each message, but can be deleted with the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from comity.deploy.policy import SitePolicy
from comity.deploy.site_ledger import SiteLedger
from comity.deploy.site_store import sent_rows
from comity.errors import UsageError
from comity.units import size

SENT_FILE = "sent.csv"
EVALUATION = "eval"
"""The kind of a message with figures of an evaluation."""


class SentRow(NamedTuple):
    """A row of the ledger: the bytes of a message that leaves."""

    run: str
    kind: str
    """As in the ledger of a run: up, peer or eval."""
    bytes: int


class SentLedger(SiteLedger[SentRow]):
    """The ledger in a site's folder.

    Arguments:
        folder: the site's folder
        party: the site's name
    """

    file = SENT_FILE
    columns = SentRow._fields
    content = "how much has left this site"
    first_code = SENT_FILE

    def __init__(self, folder: Path, party: str) -> None:
        super().__init__(folder)
        self._party = party
        self._bytes: Counter[str] = Counter()
        self._evaluations: Counter[str] = Counter()

    def total(self) -> int:
        """The bytes that have left in all runs."""
        with self._locked():
            return self._bytes.total()

    def bytes_by_run(self) -> dict[str, int]:
        """The bytes that have left, by run."""
        with self._locked():
            return dict(self._bytes)

    def evaluations(self, run: str | None = None) -> int:
        """How often figures of evaluations have left, in a run or in all."""
        with self._locked():
            return self._evaluations.total() if run is None else self._evaluations[run]

    def check(self, run: str, more: int, policy: SitePolicy) -> None:
        """Refuse to send more bytes than the site policy allows, in a run and in all runs."""
        with self._locked():
            self._check_bytes(run, more, policy)

    def check_evaluations(self, run: str, policy: SitePolicy) -> None:
        """Refuse more evaluations than the site policy allows in a run."""
        with self._locked():
            self._check_evaluations(run, policy)

    def charge(self, run: str, messages: Iterable[tuple[str, int]], policy: SitePolicy) -> None:
        """Write what is about to leave; it is on the disk when this returns.

        Arguments:
            run: the run's name
            messages: the kind and the bytes of each message
            policy: the site policy; raises `UsageError` if it does not allow so much
        """
        rows = [SentRow(run, kind, amount) for kind, amount in messages if amount]
        with self._locked():
            self._check_bytes(run, sum(row.bytes for row in rows), policy)
            if any(row.kind == EVALUATION for row in rows):
                self._check_evaluations(run, policy)
            self._append(rows)

    def _check_bytes(self, run: str, more: int, policy: SitePolicy) -> None:
        in_run, total = self._bytes[run], self._bytes.total()
        if in_run + more > policy.bytes:
            raise UsageError(
                f"{self._party} has sent {size(in_run)} in this run, and may send"
                f" {size(policy.bytes)} (bytes)."
            )
        if total + more > policy.budget_bytes:
            raise UsageError(
                f"{self._party} has sent {size(total)} in all, and may send"
                f" {size(policy.budget_bytes)} (budget: bytes)."
            )

    def _check_evaluations(self, run: str, policy: SitePolicy) -> None:
        evaluations = self._evaluations[run]
        if evaluations >= policy.evaluations:
            raise UsageError(
                f"{self._party} has evaluated {evaluations} models in this run, and evaluates"
                f" {policy.evaluations} at most (evaluations)."
            )

    def _earlier(self) -> Sequence[SentRow]:
        return [
            SentRow(run, row.kind, row.bytes) for run, row in sent_rows(self._folder, self._party)
        ]

    def _cells(self, row: SentRow) -> Sequence[object]:
        return row

    def _row(self, cells: Sequence[str]) -> SentRow:
        run, kind, amount = cells
        return SentRow(run, kind, int(amount))

    def _count(self, rows: Sequence[SentRow]) -> None:
        for row in rows:
            self._bytes[row.run] += row.bytes
            self._evaluations[row.run] += row.kind == EVALUATION
