"""Progress listeners that stop a run in the middle of a round or kill its process."""

from __future__ import annotations

import os
import signal
from typing import Any

from comity.runs.server_run import Quiet


class Watch(Quiet):
    """Records the first round of a run."""

    def __init__(self) -> None:
        self.first: int | None = None

    def begin(self, job: Any, first_round: int) -> None:
        self.first = first_round


class Interrupt(Watch):
    """Interrupts a run in the middle of a round: some parties have replied, others have not."""

    def __init__(self, during: int, answers: int = 1) -> None:
        super().__init__()
        self.now, self.during, self.replies_left = 0, during, answers

    def add_replies(self, count: int) -> None:
        if self.now == self.during:
            self.replies_left -= count
            if self.replies_left <= 0:
                raise KeyboardInterrupt

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        self.now = t + 1


class Kill(Watch):
    """Kills the process after round 2, without an exception and without clean-up."""

    def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
        if t == 2:
            os.kill(os.getpid(), signal.SIGKILL)
