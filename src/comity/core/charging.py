"""What crosses between server and parties, written down: its bytes in a ledger, and what it gives
away in an account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from comity.base.record import payload
from comity.core.party import Info
from comity.core.release import Release, Spending
from comity.wire.ledger import SERVER, Ledger

COLUMN_SUMS = "sums and squares of columns"
"""The name that an account has for what parties send to scale the columns of tables."""

WEIGHTS = "weights"
"""What the ledger calls a file of initial weights that parties are sent."""


class Charging:
    """The part of a server that charges messages to the ledger and to the account."""

    def __init__(
        self, info: Info, report_replies: Callable[[int], None], account: Spending | None
    ) -> None:
        self.info = info
        self.ledger = Ledger.for_parties(len(info.names) + len(info.newcomers))
        self.round = 0
        self.account = account
        """Of what is given away; none where nobody asks for it."""
        self._report_replies = report_replies

    def charge_messages(self, function: str, messages: Mapping[int, Any], kind: str) -> None:
        """Write down what goes to parties; most often all get one and the same, which is weighed
        once.
        """
        weighed: dict[int, int] = {}
        for i, message in messages.items():
            if id(message) not in weighed:
                weighed[id(message)] = payload(message)
            self._charge(function, SERVER, self.info.name(i), kind, weighed[id(message)])

    def charge_reply(self, function: str, i: int, reply: Any, kind: str) -> None:
        """Write down what came from a party."""
        self._charge(function, self.info.name(i), SERVER, kind, payload(reply))
        self._report_replies(1)

    def charge_introduction(self, ids: Iterable[int]) -> None:
        """Write down what makes up `info`: names, sizes (also the number of patients, if the data
        name them) and wishes go up; classes, width and a file of initial weights come down.
        """
        for i in ids:
            name = self.info.name(i)
            wish = self.info.peers[i] if i < len(self.info.peers) else None
            numbers = [0] if self.info.patient_count(i) is None else [0, 0]
            self._charge(
                "introduce", name, SERVER, "setup", payload([name, *numbers, list(wish or ())])
            )
            self._charge(
                "introduce",
                SERVER,
                name,
                "setup",
                payload([self.info.task.classes, self.info.width]),
            )
            if self.info.weights_file:
                self._charge(WEIGHTS, SERVER, name, "setup", self.info.weights_file)
            if (
                self.info.shared_columns
            ):  # count, sum and squares of each go up, mean and spread come down
                self._charge("scale", name, SERVER, "setup", 3 * 8 * self.info.shared_columns)
                self._charge("scale", SERVER, name, "setup", 2 * 8 * self.info.shared_columns)
                if self.account:
                    self.account.note_open(self.round, "scale", i, COLUMN_SUMS)

    def release(self, name: str, how: Release | None, ids: Iterable[int]) -> None:
        """Write down that the server makes known, in a field of its messages, what it learned from
        these parties.

        Behind noise of its own or, where `how` is None, as it is.
        """
        if self.account:
            self.account.charge_server(self.round, name, how, ids)

    def _charge(self, function: str, src: str, dst: str, kind: str, size: int) -> None:
        self.ledger.charge(self.round, function, src, dst, kind, size)
