"""The request handler of a site: it gets every request of the server, and only its replies leave.

Each request is checked in this order: its size, its type, and whether the site policy allows it.
Only then is the content of a message decoded and validated against the declarations of the method.
Replies are validated in the same way before they leave. Of errors, only Comity's own messages
leave; everything else goes to the site's log.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.deploy import messages
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import REQUESTS, Done, Failed, pack, to_call_id, unpack
from comity.deploy.policy import SitePolicy
from comity.deploy.session import RequestAuthenticator
from comity.deploy.site_calls import SiteCalls
from comity.deploy.site_evaluation import SiteEvaluation
from comity.deploy.site_profile import SiteProfiles, check_profile_order
from comity.deploy.site_run import SiteRun
from comity.errors import ComityError, UsageError
from comity.safe_files import open_to_append
from comity.text import escape_terminal
from comity.units import size
from comity.wire.codec import encode

LOG = "log.txt"
KIT = "kit"
UNREADABLE_POLICY = "The policy of this site cannot be read; the site's log says why."
Call = messages.RunCall | messages.SecureCall | messages.SecureStep
"""The requests for a call of a party function."""
COMPUTED = Call | messages.Evaluate | messages.EvaluateAlone
"""The requests that are computed from the site's data."""
FAULT = "The site could not answer; its own log says why."


def open_handler(folder: Path, submitter: str, order: Mapping[str, Any]) -> RequestHandler:
    """The request handler of the site in `folder`, for a job that `submitter` submitted and
    signed, with the content `order`.
    """
    startup = folder / KIT / "startup"
    identity = Identity.read(startup, folder=folder)
    return RequestHandler(folder, submitter, identity, server_name(startup), order)


def server_name(startup: Path) -> str:
    """The name in the certificate of the server that a site's startup kit is for."""
    try:
        content = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))
        return str(content["servers"][0]["identity"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as why:
        raise UsageError(
            f"{startup} does not name the server: comity deploy accept makes the startup kit."
        ) from why


class RequestHandler:
    """One site's side of a job.

    Arguments:
        folder: the site's folder, with site.toml
        submitter: who submitted the job, by the name in the certificate
        identity: the site's certificate and key; without it no message can be sealed
        server: the name in the server's certificate; None to answer requests that are not
            authenticated
        order: the content of the job as the submitter signed it; None if it is not known
    """

    def __init__(
        self,
        folder: Path,
        submitter: str,
        identity: Identity | None,
        server: str | None,
        order: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        self._submitter = submitter
        self._identity = identity
        self._order = order
        self._authenticator = (
            RequestAuthenticator(identity, server) if identity and server is not None else None
        )
        self._run: SiteRun | None = None

    def answer(self, request: bytes) -> bytes:
        """Handle a request and return the reply. Errors become `Failed` replies."""
        try:
            policy = self._read_policy()
            policy.check_size(request)
            if self._authenticator:
                request = self._authenticator.open(request, self._run.name if self._run else None)
            head, body = unpack(request, REQUESTS, policy.message)
            reply = self._dispatch(head, body, policy)
            policy.check_leaving(reply)
            return reply
        except ComityError as why:
            self.log(f"refused: {why}")
            # The path of the site's folder stays at the site.
            return pack(Failed(str(why).replace(str(self._folder), self._folder.name)))
        except Exception:
            self.log(f"failed: {traceback.format_exc()}")
            return pack(Failed(FAULT))

    def _read_policy(self) -> SitePolicy:
        """The site policy, read anew because it may have changed since the last request."""
        try:
            return SitePolicy.read(self._folder)
        except UsageError as why:
            self.log(f"refused: {why}")
            raise UsageError(UNREADABLE_POLICY) from why

    def log(self, text: str) -> None:
        """Write to the site's log. Errors of the disk are ignored, so that the site can reply."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        lines = "\n".join(escape_terminal(line) for line in text.rstrip().splitlines())
        try:
            with open_to_append(self._folder / LOG, create=True) as file:
                file.write(f"{stamp} {lines}\n".encode())
        except (OSError, UsageError):
            return

    def _dispatch(self, head: Any, body: bytes, policy: SitePolicy) -> bytes:
        if isinstance(head, messages.Introduce):
            return self._introduce(head, policy)
        if isinstance(head, messages.AskRanges | messages.AskProfile):
            return self._profile(head, policy)
        run = self._current_run(head, policy)
        match head:
            case messages.TakeWeights():
                run.take_weights(body)
                self.log(f"initial weights of run {run.name} have arrived, {size(len(body))}")
            case messages.Begin():
                run.begin(head, policy)
            case messages.RunCall() | messages.SecureCall() | messages.SecureStep():
                return self._answer_call(run, head, body, policy)
            case messages.Evaluate():
                evaluation = SiteEvaluation(run).evaluate(head, body, policy)
                return pack(Done(), encode(evaluation))
            case messages.EvaluateAlone():
                return pack(Done(), encode(SiteEvaluation(run).evaluate_alone(head, policy)))
            case messages.Committed():
                run.commit(to_call_id(head.version))
            case messages.End():
                self._end(run, head, policy)
            case _:
                raise UsageError(f"{type(head).__name__} is no request.")
        return pack(Done())

    def _current_run(self, head: Any, policy: SitePolicy) -> SiteRun:
        """The run that a request is for, if it may be answered now."""
        run = self._run
        if run is None or run.name != head.run:
            raise UsageError(f"{policy.name} takes no part in that run.")
        # After the other two requests nothing of the site's data leaves.
        if isinstance(head, messages.TakeWeights | messages.Begin | COMPUTED):
            run.check(policy, self._submitter)
        if isinstance(head, COMPUTED):
            run.check_not_ended()
        return run

    def _introduce(self, head: messages.Introduce, policy: SitePolicy) -> bytes:
        self.log(f"{self._submitter} asks for run {head.run}")
        self._learn_revocations(head.revoked)
        self._run = SiteRun.open(
            self._folder, head, policy, self._submitter, self._identity, self._order
        )
        if self._authenticator:
            self._authenticator.begin(self._run.name, self._run.key)
        self.log(f"accepted: {self._run.describe()}")
        return pack(self._run.introduced)

    def _learn_revocations(self, revoked: str) -> None:
        """Store the server's list of revoked certificates, if it is newer than the one here.

        The request that brings it may itself be signed by a certificate on it.
        """
        if self._identity is None or self._identity.revocations is None:
            return
        revocations = self._identity.revocations
        if revocations.update(revoked):
            self.log(f"revoked certificates: {', '.join(revocations.names)}")
            if self._authenticator:
                self._authenticator.check_server()

    def _profile(self, head: messages.AskRanges | messages.AskProfile, policy: SitePolicy) -> bytes:
        """Answer a request for a profile of the data, and log what leaves."""
        if self._order is not None:
            check_profile_order(self._order, head.run)
        profiles = SiteProfiles(self._folder, policy, self._submitter)
        if isinstance(head, messages.AskRanges):
            self.log(f"{self._submitter} asks for a profile of the data")
            reply, what = pack(profiles.ranges(head)), "the ranges of its columns leave"
        else:
            body = profiles.profile(head).encode()
            reply, what = pack(messages.Profiled(), body), "a profile of the data leaves"
        policy.check_leaving(reply)
        profiles.charge_sent(len(reply))
        self.log(f"{what}, {size(len(reply))}")
        return reply

    def _answer_call(self, run: SiteRun, head: Call, body: bytes, policy: SitePolicy) -> bytes:
        """Answer a request for a call, and log what was done and how much leaves."""
        sent_before, calls = run.tables.bytes_sent, SiteCalls(run)
        match head:
            case messages.RunCall():
                reply, what = calls.run_call(head, body, policy), "is done"
            case messages.SecureCall():
                reply, what = calls.secure_call(head, body, policy), "is done, its reply stays here"
            case messages.SecureStep():
                reply = calls.secure_step(head, body, policy)
                what = f"goes on with secure aggregation ({head.step})"
        ledger = run.tables.bytes_sent
        self.log(
            f"round {head.call[2]} of {run.experiment.rounds}: {head.call[0]} {what},"
            f" {size(ledger - sent_before)} leave, {size(ledger)} in all"
        )
        return reply

    def _end(self, run: SiteRun, head: messages.End, policy: SitePolicy) -> None:
        outcome = f"is over after {head.rounds} rounds" if head.finished else "was given up"
        self.log(f"run {run.name} {outcome}")
        if head.finished:
            run.finish(head.rounds, policy.export, self.log)
