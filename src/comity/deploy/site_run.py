"""A run at a site: the party with its data and state, the checks of the site policy, and the site's
own tables.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity import algorithms
from comity.base.call import CallId, Message, PartyResult
from comity.base.finite import not_finite
from comity.base.key import Key
from comity.base.record import Params, Sealed, payload, sealed_in, unseal
from comity.base.samples import PartyData, Split
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.core.release import PartyFacts, planned_calls
from comity.core.server import Note
from comity.core.signature import records_of
from comity.core.validate import MessageValidator
from comity.core.wrapper import chain
from comity.data import Federation
from comity.deploy import messages
from comity.deploy.data import SiteSplit, fixed_split, schema_digest, site_settings, store_split
from comity.deploy.group_size import LocalData, groups, unit_of
from comity.deploy.key_exchange import Identity, keys_of
from comity.deploy.messages import Answered, Introduced, pack, reply_body, to_call_id
from comity.deploy.policy import SitePolicy
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.secure_site import (
    CertifiedSites,
    SecureSite,
    pin_certificates,
    roster_certificates,
)
from comity.deploy.secure_terms import (
    SecureRun,
    averaged_type,
    check_only_floating,
    is_private,
    is_silent,
    overhead_of,
    party_noise,
    summed_tensors,
)
from comity.deploy.sent_ledger import EVALUATION, SentLedger
from comity.deploy.site_store import (
    DIGEST_BYTES,
    Replies,
    SiteTables,
    States,
    has_roster,
    read_roster,
    run_secret,
    runs_of,
    secret_of,
    write_roster,
    write_view,
)
from comity.engines.site import Site
from comity.errors import ComityError, UsageError, quote
from comity.measure.gain import gains
from comity.metrics.evaluation import NOTHING, Evaluation, Gained, Score
from comity.metrics.metrics import METRICS, Metric, check_fits
from comity.names import display_name
from comity.privacy.account import Account
from comity.privacy.composition import epsilon
from comity.runs import config
from comity.runs.config import WHERE, Experiment
from comity.runs.context import PartyInfo, PartyInfos, RunContext
from comity.runs.environment import digest, environment
from comity.runs.evaluation import figures, further_figures
from comity.runs.folder import RunFolder
from comity.runs.party_side import make_party
from comity.runs.server_run import ServerRun, judged_by
from comity.runs.server_side import resolve_method
from comity.safe_files import make_private_folder
from comity.wire.codec import decode, encode, tree_digest
from comity.wire.ledger import SERVER
from comity.wire.sealing import Lock, PairKeys

ALONE = "solo"
OFFICIAL = "official"
JOINED = "joined"
STAGES = ("", "unfinished", "offered", JOINED)


@dataclass(frozen=True)
class ActiveRun:
    """What a site needs in a run that has begun."""

    site: Site
    validator: MessageValidator
    lock: Lock
    server_run: ServerRun
    """The run, restricted to this party."""

    def name_of(self, number: int) -> str:
        """The name of the party with this number."""
        return self.server_run.context.roster.names[number]


@dataclass
class SiteRun:
    """A run in which a site takes part."""

    name: str
    at: Path
    """The site's folder."""
    party: str
    experiment: Experiment
    algorithm: AnyAlgorithm
    federation: Federation
    """The site's data."""
    introduced: Introduced
    """The site's description of itself."""
    identity: Identity | None
    key: X25519PrivateKey
    states: States = field(init=False)
    replies: Replies = field(init=False)
    ledger: ReleaseLedger = field(init=False)
    """What all runs have released of this site's records."""
    sent: SentLedger = field(init=False)
    """How much has left this site in all runs."""
    tables: SiteTables = field(init=False)
    _active: ActiveRun | None = None
    _secure: SecureSite | None = None
    """In a run with secure aggregation, for a site whose replies are averaged."""
    _account: Account | None = None
    _checked_policy: SitePolicy | None = None

    def __post_init__(self) -> None:
        self.states = States(self.folder.path)
        self.replies = Replies(self.folder.path)
        self.ledger = ReleaseLedger(self.at)
        self.sent = SentLedger(self.at, self.party)
        self.tables = SiteTables(self.folder.path, self.party)

    @property
    def folder(self) -> RunFolder:
        """The site's folder of the run."""
        return RunFolder(self.at / "runs" / self.name)

    @staticmethod
    def open(
        at: Path,
        request: messages.Introduce,
        policy: SitePolicy,
        submitter: str,
        identity: Identity | None,
        order: Mapping[str, Any] | None = None,
    ) -> SiteRun:
        """Begin a run, or open it again, if the site policy allows it.

        Arguments:
            at: the site's folder
            request: the server's request, with the settings of the run
            policy: the site policy
            submitter: who submitted the job
            identity: the site's certificate and key, if it has them
            order: the content of the job as the submitter signed it, if it is known
        """
        if not request.run.isalnum() or len(request.run) > 64:
            raise UsageError("A run's name must be letters and digits.")
        if identity and identity.name != policy.name:
            raise UsageError(f"The certificate of {policy.name} is made out to {identity.name!r}.")
        if request.comity != (here := version("comity")):
            raise UsageError(
                f"{policy.name} has Comity {here}, the server has {request.comity}: install the"
                " same on both sides."
            )
        experiment = config.experiment(json.loads(request.settings))
        policy.check_names(experiment, submitter)
        algorithm = algorithms.compose(experiment.algorithm, experiment.set)
        policy.check(experiment, algorithm, submitter)
        split, federation = fixed_split(at, policy.name, policy.data, SiteSplit.of(experiment))
        if request.schema != schema_digest(federation.schema):
            raise UsageError(
                f"The data of {policy.name} follow another schema than the server's: import them"
                " again by that one."
            )
        experiment = judged_by(experiment, federation.classes)
        if order is not None:
            _check_order(order, request.run, experiment, federation.classes)
        check_fits(experiment.metric, federation.classes)
        parts = federation.parties[policy.name]
        policy.check_records(parts.group_size("train"), unit_of(parts))
        held_out = len(parts.validation) + len(parts.test)
        if split.test != OFFICIAL:
            policy.check_held_out(held_out / (len(parts.train) + held_out))
        store_split(at, policy.data, split)
        key = X25519PrivateKey.generate()
        introduced = Introduced(
            said=_party_info(federation, policy, METRICS[experiment.metric]),
            shape=list(federation.shape),
            classes=federation.classes,
            black=list(federation.preprocess.black),
            class_names=list(federation.class_names),
            digest=data_digest(at, federation),
            signed_key=identity.signed_key(request.run, key) if identity else None,
            comity=here,
            split=str(split),
            threshold=policy.threshold if experiment.secure_aggregation else 0.0,
            colluders=policy.colluders if experiment.secure_aggregation else 0,
        )
        _begin_folder(
            RunFolder(at / "runs" / request.run),
            experiment,
            federation,
            introduced.digest,
            policy.name,
        )
        run = SiteRun(
            name=request.run,
            at=at,
            party=policy.name,
            experiment=experiment,
            algorithm=algorithm,
            federation=federation,
            introduced=introduced,
            identity=identity,
            key=key,
        )
        run.sent.check(run.name, payload(introduced), policy)
        run._check_groups(policy)
        return run

    @property
    def _data(self) -> PartyData:
        """The site's samples."""
        return self.federation.parties[self.party]

    def check(self, policy: SitePolicy, submitter: str) -> None:
        """Refuse to continue if the site policy, which may have changed, forbids the run."""
        policy.check(self.experiment, self.algorithm, submitter)
        policy.check_records(self._data.group_size("train"), unit_of(self._data))
        self._check_groups(policy)

    def _check_groups(self, policy: SitePolicy) -> None:
        """Refuse a method that would send values of too few records. Each version of the policy is
        checked once.
        """
        if policy == self._checked_policy or not policy.records:
            return
        if self._active is not None:
            site, server_run = self._active.site, self._active.server_run
        else:
            try:
                infos = {self.party: self.introduced.said}
                site, server_run = build_site(
                    self.folder, self.at, self.party, self.experiment, self.federation, infos
                )
            except ComityError:
                return  # the method needs other parties: it is checked when the run begins
        self._check_groups_of(policy, site, server_run)

    def _check_groups_of(self, policy: SitePolicy, site: Site, server_run: ServerRun) -> None:
        data, training = self._data, site.party.training
        local = LocalData.of(data, self.federation.classes, training)
        facts = PartyFacts(
            server_run.info, site.party.id, len(data.train), training, data.patient_count
        )
        method = display_name(self.experiment.algorithm)
        policy.check_groups(groups(site.algorithm, local, facts), method, unit_of(data))
        self._checked_policy = policy

    def check_not_ended(self) -> None:
        """Refuse to compute anything after the end of the run."""
        if self.folder.is_finished:
            raise UsageError(
                f"Run {self.name} has ended at {self.party}: nothing more is answered."
            )

    def check_round(self, round: int) -> None:
        """Refuse a round that the run does not have. Newcomers join in one more, after the last."""
        rounds = self.experiment.rounds
        if not 0 <= round <= rounds + bool(self.experiment.newcomers):
            raise UsageError(f"{self.party} is asked for round {round}, and the run has {rounds}.")

    def _check_planned(self, call: CallId) -> None:
        """Refuse a call that is not in the plan of a private method: the plan is what the privacy
        budget was checked for.
        """
        if not is_private(self.algorithm, self.experiment):
            return
        training = self.active.site.party.training
        stages = {
            stage
            for stage, depth, function in planned_calls(self.active.site.algorithm, training)
            if (depth, function) == (call.depth, call.function)
        }
        rounds = self.experiment.rounds
        in_plan = {
            "start": call.round == 0,
            "round": 1 <= call.round <= rounds,
            "finish": call.round == rounds,
        }
        joins = call.function == "warm_up" and call.round == rounds + 1
        if call.occurrence or not (joins or any(in_plan[stage] for stage in stages)):
            raise UsageError(
                f"{call.function} in round {call.round}, occurrence {call.occurrence}, is not in"
                f" the plan of {display_name(self.experiment.algorithm)}."
            )

    def describe(self) -> str:
        """One line about the run: its name, the settings that are not defaults, and what leaves."""
        kinds = sorted({kind for layer in chain(self.algorithm) for kind in layer.traits.leaves})
        leaving = (
            f"of its data there would leave {', '.join(kinds)}"
            if kinds
            else "nothing of its data would leave"
        )
        defaults = Experiment().model_dump()
        settings = ", ".join(
            f"{name} {value}"
            for name, value in self.experiment.model_dump().items()
            if value and value != defaults[name] and name not in WHERE | {"data", "partition"}
        )
        return f"run {self.name} ({settings}); {leaving}"

    def begin(self, head: messages.Begin, policy: SitePolicy) -> None:
        """Build the party, once the server has sent the descriptions of all parties."""
        if head.parties.get(self.party) != self.introduced.said:
            raise UsageError(f"{self.party} said something else of itself than the server tells.")
        # A reply depends on who takes part: with other parties, the same request could get another
        # reply with the same noise.
        if has_roster(self.folder.path) and read_roster(self.folder.path) != head.parties:
            raise UsageError(f"Run {self.name} was begun with other parties at {self.party}.")
        site, server_run = build_site(
            self.folder, self.at, self.party, self.experiment, self.federation, head.parties
        )
        names, algorithm = server_run.context.roster.names, site.algorithm
        if policy.records:
            self._check_groups_of(policy, site, server_run)
        policy.check_sites(self._certified_sites(head, names))
        shapes = site.party.task.shapes.values()
        policy.check_weights(sum(math.prod(shape) for shape, _ in shapes))
        if self.experiment.secure_aggregation:
            check_only_floating(algorithm, server_run.info)
            self._secure = self._secure_site(head, server_run.info.names, policy)
        self._open_account(server_run, site.party.id, policy)
        self._active = ActiveRun(
            site,
            MessageValidator(algorithm, site.party.task, len(names), policy.message),
            Lock(
                self._keys(head, names),
                blake2b(self.name.encode(), digest_size=16).digest(),
                records_of(algorithm),
            ),
            restrict_to_party(site.party, server_run),
        )
        write_roster(self.folder.path, head.parties)

    def _secure_site(
        self, head: messages.Begin, names: tuple[str, ...], policy: SitePolicy
    ) -> SecureSite | None:
        """This site's side of secure aggregation between the sites `names`; None for a
        newcomer.
        """
        if self.party not in names:
            return None
        roster = tuple(sorted(names))
        certificates = roster_certificates(self.identity, self.name, roster, head.signed_keys)
        assert self.identity is not None
        noise = party_noise(self.algorithm)
        run = SecureRun(self.name, self.experiment, head.parties, roster, noise)
        secure = SecureSite(run, CertifiedSites(self.identity, certificates), self.at)
        secure.check_limits(policy)
        pin_certificates(self.folder.path, certificates)
        return secure

    def _open_account(self, server_run: ServerRun, number: int, policy: SitePolicy) -> None:
        """Open the privacy account, if the privacy loss of all runs stays within the budget."""
        if math.isfinite(policy.budget_epsilon):
            plan = server_run.privacy.planned_releases()[number]
            in_run = self.ledger.history(of=self.name)
            total = self.ledger.history(but=self.name) + (plan | in_run)
            own_constants = server_run.party_infos[number].own_constants
            bounded = self.ledger.is_bounded(but=self.name) and not own_constants
            policy.check_epsilon(
                epsilon(total, DELTA) if bounded else math.inf,
                display_name(self.experiment.algorithm),
            )
        self._account = server_run.privacy.account()
        self._account.restore(self.tables.privacy())

    @property
    def account(self) -> Account:
        """The privacy account of this site in a run that has begun."""
        assert self._account is not None
        return self._account

    def _certified_sites(self, head: messages.Begin, names: tuple[str, ...]) -> int:
        """How many of the sites have a certificate; all, if this site has none to check them by."""
        if self.identity is None:
            return len(names)
        for name, signed_key in head.signed_keys.items():
            self.identity.public_key(self.name, name, signed_key)
        return len({self.party, *head.signed_keys} & set(names))

    def _keys(self, head: messages.Begin, names: tuple[str, ...]) -> PairKeys:
        """The keys for sealed messages; without a certificate there are none."""
        if self.identity is None:
            return _no_keys
        return keys_of(self.identity, self.name, self.key, names, head.signed_keys)

    def run_call(self, head: messages.RunCall, body: bytes, policy: SitePolicy) -> bytes:
        """Run a party function, and return the packed reply.

        The new state and all rows of the site's tables are on the disk before the reply leaves.
        """
        active, call = self.active, CallId(*head.call)
        self._check_call(call)
        if self.experiment.secure_aggregation and not is_silent(
            active.site.algorithm, call.depth, call.function
        ):
            raise UsageError(
                f"{self.party} answers {call.function} through secure aggregation only."
            )
        content = self._decode_message(call, body, policy)
        inbox = self._open_inbox(head.inbox, call)
        self.tables.charge_received(call.round, call.function, "down", payload(content))
        for sender, sealed in sorted(head.inbox.items()):
            name = active.name_of(sender)
            self.tables.charge_received(call.round, call.function, "peer", sealed.size, src=name)
        request = self._request_digest(head, body, inbox)
        if (stored := self.replies.read(call, request)) is not None:
            reply_bytes = payload(decode(reply_body(stored), records=active.validator.records))
            self._charge_sent(call.round, call.function, [("up", reply_bytes, SERVER)], policy)
            return stored
        self._charge(call, request, policy)
        with self._undone_if_it_fails():
            return self._compute_reply(head, content, inbox, request, policy)

    def secure_call(self, head: messages.SecureCall, body: bytes, policy: SitePolicy) -> bytes:
        """Run a party function whose reply enters secure aggregation, and return the packed result
        with this site's keys, which are the first step.

        The new state and all rows of the site's tables are on the disk before anything leaves.
        """
        active, call = self.active, CallId(*head.call)
        self._check_call(call)
        secure = self._secure
        if secure is None or not averaged_type(active.site.algorithm, call.depth, call.function):
            raise UsageError(f"The replies of {self.party} to {call.function} are not averaged.")
        secure.check_call(head, body, policy)
        content = self._decode_message(call, body, policy)
        self.tables.charge_received(call.round, call.function, "down", payload(content))
        request_head = messages.RunCall(head.run, head.call, head.after, head.first, {})
        request = self._request_digest(request_head, body, {})
        self._charge(call, request, policy)
        with self._undone_if_it_fails():
            result = self._run_function(request_head, content, {}, request)
            noise = party_noise(self.algorithm)
            reply = summed_tensors(result.reply, content, noise)
            self.sent.check(self.name, payload(result.reply), policy)
            unfit = not_finite(result.reply)
            keys = None
            if not unfit and not result.ruined:
                keys = secure.begin(head, body, reply, policy)
                sent = [("up", payload(keys), SERVER)]
                self._charge_sent(call.round, call.function, sent, policy)
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

    def _clipping_warning(self, reply: Params) -> str:
        largest = self.experiment.secure_aggregation_range
        if all(value.abs().max() <= largest for value in reply.values() if value.numel()):
            return ""
        return (
            f"Values of {self.party} beyond {largest:g} were clipped for secure aggregation: use a"
            " larger --secure-aggregation-range."
        )

    def secure_step(self, head: messages.SecureStep, body: bytes, policy: SitePolicy) -> bytes:
        """A later step of secure aggregation. Returns this site's packed message."""
        call = CallId(*head.call)
        if self._secure is None:
            raise UsageError(f"{self.party} takes no part in secure aggregation of this run.")
        message, reply = self._secure.step(call, head.step, body)
        self.tables.charge_received(call.round, call.function, "down", payload(message))
        overhead = overhead_of(reply)
        sent = [("up", payload(reply) - overhead, SERVER), ("up", overhead, SERVER)]
        self._charge_sent(call.round, call.function, sent, policy)
        return pack(messages.Done(), encode(reply))

    def _check_call(self, call: CallId) -> None:
        """Refuse a call that the method, the run or its privacy plan does not have."""
        self.active.validator.check_call(call)
        self.check_round(call.round)
        self._check_planned(call)

    def _decode_message(self, call: CallId, body: bytes, policy: SitePolicy) -> Any:
        """The validated message of a call."""
        validator = self.active.validator
        content = decode(body, most_bytes=policy.message, records=validator.records)
        validator.check_message(call, content)
        return content

    @contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        """After an error, drop the state in memory. It may be newer than the one on the disk, which
        the next request continues from.
        """
        active = self.active
        try:
            yield
        except BaseException:
            self._active = replace(active, site=self._fresh_site())
            raise

    def _request_digest(
        self, head: messages.RunCall, body: bytes, inbox: Mapping[int, Sealed]
    ) -> bytes:
        """A digest of everything that a reply depends on: the call, the state that it continues
        from, the message and the sealed messages of other parties.
        """
        digest = blake2b(digest_size=DIGEST_BYTES)
        state = self.states.digest(to_call_id(head.after))
        sealed = [
            repr(sender).encode() + tree_digest(unseal(message))
            for sender, message in sorted(inbox.items())
        ]
        for part in (repr((head.call, head.first)).encode(), state, body, *sealed):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def _charge(self, call: CallId, request: bytes, policy: SitePolicy) -> None:
        """Charge what the reply to a request will release, before anything is computed."""
        if self.ledger.has(self.name, request.hex()):
            return  # the site was stopped before it could reply
        self.account.charge_call(call, [self.active.site.party.id])
        charges = self.account.take()
        self.ledger.charge(self.name, request.hex(), charges, policy.budget_epsilon)
        self.tables.add_privacy(charges)

    def _compute_reply(
        self,
        head: messages.RunCall,
        content: Any,
        inbox: dict[int, Sealed],
        request: bytes,
        policy: SitePolicy,
    ) -> bytes:
        """Run the party function of a request; the reply and the new state are stored."""
        active, call = self.active, CallId(*head.call)
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
        sent = [("up", payload(result.reply), SERVER), *to_peers]
        self._charge_sent(call.round, call.function, sent, policy)
        self._record_result(call, request, result)
        # Sealed messages are encrypted for keys of this job only. They are computed again from the
        # same request, with the same noise.
        if not sealed_messages:
            self.replies.write(call, request, packed)
        return packed

    def _run_function(
        self, head: messages.RunCall, content: Any, inbox: dict[int, Sealed], request: bytes
    ) -> PartyResult:
        """Run the party function of a request, and validate its reply."""
        call, after = CallId(*head.call), to_call_id(head.after)
        site = self.restore_site(after)
        result = site.run(call, Message(content, after, head.first), inbox, request)
        self.active.validator.check_reply(call, result.reply)
        return result

    def _record_result(self, call: CallId, request: bytes, result: PartyResult) -> None:
        """Write what a reply releases without noise, the new state and the gradient steps."""
        site = self.active.site
        self.account.note_reply(call, site.party.id, result.reply)
        unprotected = self.account.take()
        self.ledger.note(self.name, request.hex(), unprotected)
        self.tables.add_privacy(unprotected)
        if result.keeps:
            self.states.write(site.party.id, call, site.versions.blob())
        self.tables.add_steps(call, result.steps)

    def commit(self, version: CallId | None) -> None:
        """Delete what the server will not ask for again after a checkpoint."""
        self.states.forget_before(version)
        if version is not None:
            self.replies.forget_before(version.round)

    def _open_inbox(self, inbox: dict[int, Sealed], call: CallId) -> dict[int, Sealed]:
        """Decrypt and validate the sealed messages of other parties."""
        if not inbox:
            return {}
        active = self.active
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

    def evaluate(self, head: messages.Evaluate, body: bytes, policy: SitePolicy) -> Evaluation:
        """Evaluate the deployed model, and return what may leave of the result.

        The site's own tables get the whole result.
        """
        active, after = self.active, to_call_id(head.after)
        self.check_round(head.round)
        if head.stage not in STAGES:
            raise UsageError(
                f"There is no stage {quote(head.stage)} at which models are evaluated."
            )
        self.sent.check_evaluations(self.name, policy)
        content = decode(body, most_bytes=policy.message, records=active.validator.records)
        active.validator.check_evaluation_message(content)
        self.tables.charge_received(head.round, "evaluate", "eval", payload(content))
        evaluation = self.restore_site(after).evaluate(Message(content, after), head.final)
        self.tables.add_metrics(self._metrics(evaluation, head.round, head.stage, head.final))
        if head.final or head.stage == JOINED:
            write_view(self.folder.path, content, after)
        if head.final and evaluation.answers is not None:
            self.folder.write_outcomes({self.party: evaluation.answers})
            evaluation = replace(evaluation, gained=self._gain_over_solo())
        return self._allowed(evaluation, policy, head.round, "evaluate")

    def _gain_over_solo(self) -> Gained | None:
        """The gain over the site's newest SOLO run with the same settings on the same data.

        None if there is no such run, or if this run is itself one.
        """
        solo_runs = [
            run for run in runs_of(self.at) if run.is_finished and self._is_solo_baseline(run)
        ]
        if not solo_runs or self.experiment.algorithm == ALONE:
            return None
        newest = max(solo_runs, key=lambda run: run.summary.stat().st_mtime)
        by_party = gains(self.folder.path, newest.path, self.active.server_run.metric.name)
        if not by_party:
            return None
        return Gained(*(getattr(by_party[0], f.name) for f in fields(Gained)))

    def _is_solo_baseline(self, run: RunFolder) -> bool:
        method_settings = {
            "algorithm",
            "set",
            "secure_aggregation",
            "secure_aggregation_range",
        }
        experiment = run.read_experiment()
        same_settings = experiment.model_dump(
            exclude=method_settings
        ) == self.experiment.model_dump(exclude=method_settings)
        return (
            experiment.algorithm == ALONE
            and same_settings
            and run.read_environment()["fingerprint"] == self.introduced.digest
        )

    def evaluate_alone(self, head: messages.EvaluateAlone, policy: SitePolicy) -> Evaluation:
        """Evaluate the model that the site would have from its own data alone."""
        self.check_round(head.round)
        if math.isfinite(policy.budget_epsilon):
            raise UsageError(
                f"{self.party} reports no model of its own data alone: it would be trained without"
                " noise (budget: epsilon)."
            )
        self.sent.check_evaluations(self.name, policy)
        evaluation = self.active.site.evaluate_solo(head.round)
        self.tables.add_metrics(self._metrics(evaluation, head.round, "alone"))
        return self._allowed(evaluation, policy, head.round, "alone")

    def finish(self, rounds: int, model: bool, log: Callable[[str], None]) -> None:
        """Write the summary, the page and, if `model` is set, the model of a finished run."""
        # Imported here: the report's page takes long to load, and calls do not need it.
        from comity.deploy.site_results import finish

        finish(self, rounds, model, log)

    def _allowed(
        self, evaluation: Evaluation, policy: SitePolicy, round: int, call: str
    ) -> Evaluation:
        """What of an evaluation may leave: scores on enough patients or samples, and per-sample
        outcomes if the site policy allows them.
        """

        def is_enough(score: Score, split: Split) -> bool:
            return min(score.count, self._data.group_size(split)) >= policy.records

        def if_enough(score: Score, split: Split) -> Score:
            if not is_enough(score, split):
                return NOTHING
            figures = {name: policy.round_figure(value) for name, value in score.figures.items()}
            return replace(score, loss=policy.round_figure(score.loss), figures=figures)

        # Scores could be computed from per-sample outcomes, so that these have the same limit.
        enough_tests = is_enough(evaluation.test, "test")
        allowed = Evaluation(
            if_enough(evaluation.validation, "validation"),
            if_enough(evaluation.test, "test"),
            evaluation.answers if policy.outcomes and enough_tests else None,
            evaluation.gained if enough_tests else None,
        )
        self._charge_sent(round, call, [(EVALUATION, payload(allowed), SERVER)], policy)
        return allowed

    def _metrics(
        self, evaluation: Evaluation, round: int, stage: str, final: bool = False
    ) -> Iterator[Note]:
        """The rows of the site's own metrics.csv."""
        classes, metric = self.federation.classes, self.active.server_run.metric.name
        for split, name, figure in figures(evaluation, classes, metric):
            yield Note(round, self.party, f"{split}-{stage}" if stage else split, name, figure)
        for name, figure in further_figures(evaluation, metric) if final else ():
            yield Note(round, self.party, "test", name, figure)

    def _charge_sent(
        self, round: int, call: str, messages: Sequence[tuple[str, int, str]], policy: SitePolicy
    ) -> None:
        """Charge messages before they leave, if the site policy allows so many bytes.

        Arguments:
            round: the round
            call: the party function, or what else the messages are for
            messages: the kind, the bytes and the recipient of each
            policy: the site policy
        """
        self.sent.charge(self.name, [(kind, amount) for kind, amount, _ in messages], policy)
        for kind, amount, recipient in messages:
            self.tables.charge_sent(round, call, kind, amount, dst=recipient)

    @property
    def active(self) -> ActiveRun:
        """The run, once it has begun."""
        if self._active is None:
            raise UsageError(f"{self.party} was called before the run has begun.")
        return self._active

    def restore_site(self, version: CallId | None) -> Site:
        """The site with the state after the call `version`.

        It is in memory or, after a restart or a discarded round, read from the disk.
        """
        active = self.active
        if not active.site.versions.knows(version):
            fresh = self._fresh_site()
            if version is not None:
                fresh.restore(self.states.read(version), version)
            self._active = replace(active, site=fresh)
        return self.active.site

    def _fresh_site(self) -> Site:
        site = self.active.site
        return Site(site.algorithm, site.party, site.root)


def data_digest(at: Path, federation: Federation) -> str:
    """A digest of a site's data under its secret. It only shows whether the data have changed."""
    return hmac.new(secret_of(at), federation.fingerprint().encode(), "sha256").hexdigest()


def build_site(
    run: RunFolder,
    at: Path,
    party: str,
    experiment: Experiment,
    federation: Federation,
    infos: Mapping[str, PartyInfo],
) -> tuple[Site, ServerRun]:
    """A site's party at the beginning of a run, and the run.

    Arguments:
        run: the site's folder of the run
        at: the site's folder
        party: the site's name
        experiment: the settings
        federation: the site's data
        infos: the descriptions of all parties
    """
    party_infos = PartyInfos(
        infos,
        federation.shape,
        federation.classes,
        federation.preprocess.black,
        class_names=federation.class_names,
    )
    common = RunContext(experiment, party_infos)
    algorithm, info = resolve_method(common)
    names = common.roster.names
    if party not in names:
        raise UsageError(f"{party} is left out of this run.")
    built_party = make_party(common, names.index(party), federation.parties[party])
    root = Key.root(experiment.seed, run_secret(at, run.path.name), binds=True)
    return Site(algorithm, built_party, root), ServerRun(experiment, common, algorithm, info)


def restrict_to_party(party: Party, run: ServerRun) -> ServerRun:
    """The run as if it had only this party."""
    info = replace(
        run.info,
        names=(party.name,),
        sizes=(len(party.data.train),),
        tasks=(party.task,),
        newcomers=(),
        peers=(),
        patients=(party.data.patient_count,),
    )
    return replace(run, info=info)


def _party_info(federation: Federation, policy: SitePolicy, metric: Metric) -> PartyInfo:
    """The site's description of its data.

    A part of the data is used to judge models only if it has so many samples, or patients, that the
    scores may leave.
    """
    data = federation.parties[policy.name]
    info = PartyInfo.of(
        data,
        federation.classes,
        metric,
        counts=policy.class_counts,
        own_constants=federation.own_constants,
    )
    splits: tuple[Split, ...] = ("validation", "test")
    enough = {split for split in splits if data.group_size(split) >= policy.records}
    return replace(info, judged=[split for split in info.judged if split in enough])


def _begin_folder(
    run: RunFolder, experiment: Experiment, federation: Federation, data: str, party: str
) -> None:
    """Write the first files of the site's folder of a run, or check that they are the same.

    `data` is the digest of the site's data.
    """
    settings, split = config.write(experiment), federation.split.to_json()
    if not run.has_run:
        for folder in (run.path.parent.parent, run.path.parent, run.path):
            make_private_folder(folder)
        run.begin(settings, environment(settings, data, split=split), split=split)
        return
    before = run.read_environment()
    if before["config"] != digest(settings):
        raise UsageError(f"Run {run.path.name} was begun with other settings at {party}.")
    if before["fingerprint"] != data:
        raise UsageError(f"The data of {party} have changed since run {run.path.name} was begun.")


def _check_order(order: Mapping[str, Any], run: str, experiment: Experiment, classes: int) -> None:
    """Refuse a run other than the one in the job that the submitter signed.

    A job without settings continues a run that was begun with the settings of an earlier job.
    """
    settings = order.get("settings")
    signed = judged_by(site_settings(config.experiment(settings)), classes) if settings else None
    if order.get("run") != run or (signed is not None and signed != experiment):
        raise UsageError("The server asks for another run than the submitter has signed.")


def _no_keys(one: int, other: int) -> bytes:
    raise UsageError("Without certificates no message can be sealed between sites.")
