"""A site's desk: whatever the server asks comes here, and nothing leaves but what it answers.

A request is looked at in this order: how large it is; what it asks for; whether the site's law
allows it. Only then is anything made of what a method sent, and checked against what the method
declares. Replies are checked in the same way before they leave. Of errors, only Comity's own
sentences leave; the site's log has the rest.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from comity.deploy import messages
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import ASKED, Done, Failed, call_of, pack, unpack
from comity.deploy.policy import SitePolicy
from comity.deploy.site_run import SiteRun
from comity.errors import ComityError, UsageError
from comity.text import escape_terminal
from comity.units import size
from comity.wire.codec import encode

LOG = "log.txt"
KIT = "kit"
LAWLESS = "The law of this site cannot be read; its own log says why."
FAULT = "The site could not answer; its own log says why."


def open_desk(folder: Path, submitter: str) -> RequestHandler:
    """The desk of the site whose folder this is, for a job that somebody has submitted."""
    return RequestHandler(folder, submitter, Identity.read(folder / KIT / "startup"))


class RequestHandler:
    """One site's side of a job."""

    def __init__(self, folder: Path, submitter: str, identity: Identity | None) -> None:
        self._folder = folder
        self._submitter = submitter
        self._identity = identity
        """Without one no parcels can be sealed."""
        self._run: SiteRun | None = None

    def answer(self, request: bytes) -> bytes:
        """What a request is answered with. Nothing is ever raised."""
        try:
            policy = self._law()
            head, body = unpack(request, ASKED, policy.message)
            answer = self._answered(head, body, policy)
            policy.check_leaving(answer)
            return answer
        except ComityError as why:
            self.say(f"refused: {why}")
            return pack(
                Failed(str(why).replace(str(self._folder), self._folder.name))
            )  # where it lies is nobody's matter
        except Exception:
            self.say(f"failed: {traceback.format_exc()}")
            return pack(Failed(FAULT))

    def _law(self) -> SitePolicy:
        """The site's law, anew: it may have changed since the last request."""
        try:
            return SitePolicy.read(self._folder)
        except UsageError as why:
            self.say(f"refused: {why}")
            raise UsageError(LAWLESS) from why

    def say(self, text: str) -> None:
        """Write to the site's own log; a disk that is full keeps nobody from answering."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = "\n".join(escape_terminal(line) for line in text.rstrip().splitlines())
        try:
            with (self._folder / LOG).open("a", encoding="utf-8") as file:
                file.write(f"{stamp} {lines}\n")
        except OSError:
            return

    def _answered(self, head: Any, body: bytes, policy: SitePolicy) -> bytes:
        if isinstance(head, messages.Introduce):
            self.say(f"{self._submitter} asks for run {head.run}")
            self._run = SiteRun.opened(self._folder, head, policy, self._submitter, self._identity)
            self.say(f"accepted: {self._run.about()}")
            return pack(self._run.introduced)
        run = self._run
        if run is None or run.name != head.run:
            raise UsageError(f"{policy.name} takes no part in that run.")
        if not isinstance(head, messages.Committed | messages.End):  # after which nothing leaves
            run.check(policy, self._submitter)
        match head:
            case messages.Begin():
                run.begin(head, policy)
            case messages.RunCall():
                return self._worked(run, head, body, policy)
            case messages.Evaluate():
                return pack(Done(), encode(run.evaluate(head, body, policy)))
            case messages.EvaluateAlone():
                return pack(Done(), encode(run.alone(head, policy)))
            case messages.Committed():
                run.states.forget_before(call_of(head.version))
            case messages.End():
                self._ended(run, head, policy)
            case _:
                raise UsageError("A message asks for nothing.")
        return pack(Done())

    def _worked(
        self, run: SiteRun, head: messages.RunCall, body: bytes, policy: SitePolicy
    ) -> bytes:
        before = run.book.sent
        answer = run.run_call(head, body, policy)
        self.say(
            f"round {head.call[2]}: {head.call[0]} is done, {size(run.book.sent - before)} leave,"
            f" {size(run.book.sent)} in all"
        )
        return answer

    def _ended(self, run: SiteRun, head: messages.End, policy: SitePolicy) -> None:
        self.say(
            f"run {run.name}"
            f" {f'is over after {head.rounds} rounds' if head.finished else 'was given up'}"
        )
        if head.finished:
            run.finish(head.rounds, policy.export, self.say)
