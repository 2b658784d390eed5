"""Calls of party functions at a site: each is checked against the plan, charged, computed and
stored before its reply leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from comity.base.call import CallId, Message, PartyResult
from comity.base.finite import not_finite
from comity.base.record import Params, Sealed, payload, sealed_in, unseal
from comity.core.release import planned_calls
from comity.deploy import messages
from comity.deploy.messages import Answered, pack, reply_body, to_call_id
from comity.deploy.policy import SitePolicy
from comity.deploy.secure_terms import (
    averaged_type,
    is_private,
    is_silent,
    overhead_of,
    party_noise,
    summed_tensors,
)
from comity.deploy.site_run import SiteRun
from comity.deploy.site_store import DIGEST_BYTES
from comity.errors import ComityError, UsageError
from comity.names import display_name
from comity.wire.codec import decode, encode, tree_digest
from comity.wire.ledger import SERVER


class SiteCalls:
    """Answers the calls of a run."""

    def __init__(self, run: SiteRun) -> None:
        self._run = run

    def run_call(self, head: messages.RunCall, body: bytes, policy: SitePolicy) -> bytes:
        """Run a party function, and return the packed reply.

        The charges, the new state and the reply are on the disk before the reply leaves.
        """
        active, call = self._run.active, CallId(*head.call)
        self._check_call(call)
        if self._run.experiment.secure_aggregation and not is_silent(
            active.site.algorithm, call.depth, call.function
        ):
            raise UsageError(
                f"{self._run.party} answers {call.function} through secure aggregation only."
            )
        content = self._decode_message(call, body, policy)
        inbox = self._open_inbox(head.inbox, call)
        self._run.tables.charge_received(call.round, call.function, "down", payload(content))
        for sender, sealed in sorted(head.inbox.items()):
            name = active.name_of(sender)
            self._run.tables.charge_received(
                call.round, call.function, "peer", sealed.size, src=name
            )
        request = self._request_digest(head, body, inbox)
        if (stored := self._run.replies.read(call, request)) is not None:
            reply_bytes = payload(decode(reply_body(stored), records=active.validator.records))
            self._run.charge_sent(call.round, call.function, [("up", reply_bytes, SERVER)], policy)
            return stored
        self._charge(call, request, policy)
        with self._undone_if_it_fails():
            return self._compute_reply(head, content, inbox, request, policy)

    def secure_call(self, head: messages.SecureCall, body: bytes, policy: SitePolicy) -> bytes:
        """Run a party function whose reply enters secure aggregation, and return the packed result
        with this site's keys, which are the first step.

        The charges and the new state are on the disk before anything leaves.
        """
        active, call = self._run.active, CallId(*head.call)
        self._check_call(call)
        secure = self._run.secure
        if secure is None or not averaged_type(active.site.algorithm, call.depth, call.function):
            raise UsageError(
                f"The replies of {self._run.party} to {call.function} are not averaged."
            )
        secure.check_call(head, body, policy)
        content = self._decode_message(call, body, policy)
        self._run.tables.charge_received(call.round, call.function, "down", payload(content))
        request_head = messages.RunCall(head.run, head.call, head.after, head.first, {})
        request = self._request_digest(request_head, body, {})
        self._charge(call, request, policy)
        with self._undone_if_it_fails():
            result = self._run_function(request_head, content, {}, request)
            noise = party_noise(self._run.algorithm)
            reply = summed_tensors(result.reply, content, noise)
            self._run.sent_ledger.check(self._run.name, payload(result.reply), policy)
            unfit = not_finite(result.reply)
            keys = None
            if not unfit and not result.ruined:
                keys = secure.begin(head, body, reply, policy)
                charges = [("up", payload(keys), SERVER)]
                self._run.charge_sent(call.round, call.function, charges, policy)
            self._record_result(call, request, result)
        return pack(
            messages.Prepared(
                result.steps,
                result.keeps,
                result.ruined,
                unfit,
                " ".join(
                    filter(None, (result.warning, "" if noise else self._clipping_warning(reply)))
                ),
                {name: list(value.shape) for name, value in reply.items()},
            ),
            encode(keys) if keys else b"",
        )

    def secure_step(self, head: messages.SecureStep, body: bytes, policy: SitePolicy) -> bytes:
        """A later step of secure aggregation. Returns this site's packed message."""
        call = CallId(*head.call)
        if self._run.secure is None:
            raise UsageError(f"{self._run.party} takes no part in secure aggregation of this run.")
        message, reply = self._run.secure.step(call, head.step, body)
        self._run.tables.charge_received(call.round, call.function, "down", payload(message))
        overhead = overhead_of(reply)
        charges = [("up", payload(reply) - overhead, SERVER), ("up", overhead, SERVER)]
        self._run.charge_sent(call.round, call.function, charges, policy)
        return pack(messages.Done(), encode(reply))

    def _check_call(self, call: CallId) -> None:
        """Refuse a call that the method, the run or its privacy plan does not have."""
        self._run.active.validator.check_call(call)
        self._run.check_round(call.round)
        self._check_planned(call)

    def _check_planned(self, call: CallId) -> None:
        """Refuse a call that is not in the plan of a private method: the plan is what the privacy
        budget was checked for.
        """
        if not is_private(self._run.algorithm, self._run.experiment):
            return
        training = self._run.active.site.party.training
        stages = {
            stage
            for stage, depth, function in planned_calls(self._run.active.site.algorithm, training)
            if (depth, function) == (call.depth, call.function)
        }
        rounds = self._run.experiment.rounds
        in_plan = {
            "start": call.round == 0,
            "round": 1 <= call.round <= rounds,
            "finish": call.round == rounds,
        }
        joins = call.function == "warm_up" and call.round == rounds + 1
        if call.occurrence or not (joins or any(in_plan[stage] for stage in stages)):
            raise UsageError(
                f"{call.function} in round {call.round}, occurrence {call.occurrence}, is not in"
                f" the plan of {display_name(self._run.experiment.algorithm)}."
            )

    def _decode_message(self, call: CallId, body: bytes, policy: SitePolicy) -> Any:
        """The validated message of a call."""
        validator = self._run.active.validator
        content = decode(body, most_bytes=policy.message, records=validator.records)
        validator.check_message(call, content)
        return content

    def _open_inbox(self, inbox: dict[int, Sealed], call: CallId) -> dict[int, Sealed]:
        """Decrypt and validate the sealed messages of other parties."""
        if not inbox:
            return {}
        active = self._run.active
        number = active.site.party.id
        sealed_messages = active.lock.open({number: inbox}, call)[number]
        for sender, sealed in sealed_messages.items():
            try:
                active.validator.check_sealed_message(unseal(sealed))
            except ComityError as why:
                raise UsageError(
                    f"A sealed message of {active.name_of(sender)} is refused: {why}"
                ) from why
        return sealed_messages

    def _request_digest(
        self, head: messages.RunCall, body: bytes, inbox: Mapping[int, Sealed]
    ) -> bytes:
        """A digest of everything that a reply depends on: the call, the state that it continues
        from, the message and the sealed messages of other parties.
        """
        digest = blake2b(digest_size=DIGEST_BYTES)
        state = self._run.states.digest(to_call_id(head.after))
        sealed = [
            repr(sender).encode() + tree_digest(unseal(message))
            for sender, message in sorted(inbox.items())
        ]
        for part in (repr((head.call, head.first)).encode(), state, body, *sealed):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def _charge(self, call: CallId, request: bytes, policy: SitePolicy) -> None:
        """Charge what the reply to a request will release, before anything is computed."""
        if self._run.ledger.has(self._run.name, request.hex()):
            return  # the site was stopped before it could reply
        self._run.account.charge_call(call, [self._run.active.site.party.id])
        charges = self._run.account.take()
        self._run.ledger.charge(self._run.name, request.hex(), charges, policy.budget_epsilon)
        self._run.tables.add_privacy(charges)

    def _compute_reply(
        self,
        head: messages.RunCall,
        content: Any,
        inbox: dict[int, Sealed],
        request: bytes,
        policy: SitePolicy,
    ) -> bytes:
        """Run the party function of a request; the reply and the new state are stored."""
        active, call = self._run.active, CallId(*head.call)
        result = self._run_function(head, content, inbox, request)
        # A message that is sealed for several recipients may occur in the reply several times.
        sealed_messages = {id(sealed): sealed for sealed in sealed_in(result.reply)}.values()
        to_peers = [
            ("peer", sealed.size, active.name_of(recipient))
            for sealed in sealed_messages
            for recipient in sealed.to
        ]
        answer = Answered(
            result.steps, result.keeps, result.ruined, result.warning, tuple(result.unusable)
        )
        packed = pack(answer, encode(active.lock.close(result.reply), sealed_messages=True))
        policy.check_leaving(packed)
        charges = [("up", payload(result.reply), SERVER), *to_peers]
        self._run.charge_sent(call.round, call.function, charges, policy)
        self._record_result(call, request, result)
        # Sealed messages are encrypted for keys of this job only. They are computed again from the
        # same request, with the same noise.
        if not sealed_messages:
            self._run.replies.write(call, request, packed)
        return packed

    def _run_function(
        self, head: messages.RunCall, content: Any, inbox: dict[int, Sealed], request: bytes
    ) -> PartyResult:
        """Run the party function of a request, and validate its reply."""
        call, after = CallId(*head.call), to_call_id(head.after)
        site = self._run.restore_site(after)
        result = site.run(call, Message(content, after, head.first), inbox, request)
        self._run.active.validator.check_reply(call, result.reply)
        return result

    def _record_result(self, call: CallId, request: bytes, result: PartyResult) -> None:
        """Write what a reply releases without noise, the new state and the gradient steps."""
        site = self._run.active.site
        self._run.account.note_reply(call, site.party.id, result.reply)
        unprotected = self._run.account.take()
        self._run.ledger.note(self._run.name, request.hex(), unprotected)
        self._run.tables.add_privacy(unprotected)
        if result.keeps:
            self._run.states.write(site.party.id, call, site.versions.blob())
        self._run.tables.add_steps(call, result.steps)

    @contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        """After an error, drop the state in memory. It may be newer than the one on the disk, which
        the next request continues from.
        """
        try:
            yield
        except BaseException:
            self._run.forget_state()
            raise

    def _clipping_warning(self, reply: Params) -> str:
        largest = self._run.experiment.secure_aggregation_range
        if all(value.abs().max() <= largest for value in reply.values() if value.numel()):
            return ""
        return (
            f"Values of {self._run.party} beyond {largest:g} were clipped for secure aggregation:"
            " use a larger --secure-aggregation-range."
        )
