"""A run at a site: the party with its data and state, what its law says to it, and what it writes
down at home.
"""

from __future__ import annotations

import hmac
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity import algorithms
from comity.base.call import CallId, Message
from comity.base.key import Key, SecretKey
from comity.base.record import Sealed, payload, sealed_in, unseal
from comity.core.algorithm import AnyAlgorithm
from comity.core.party import Party
from comity.core.server import Note
from comity.core.signature import records_of
from comity.core.validate import MessageValidator
from comity.core.wrapper import chain
from comity.data import Federation
from comity.deploy import messages
from comity.deploy.data import own_federation, schema_mark
from comity.deploy.key_exchange import Identity, keys_of
from comity.deploy.messages import Answered, Introduced, call_of, pack
from comity.deploy.policy import SitePolicy
from comity.deploy.site_store import (
    Book,
    States,
    given_away,
    run_secret,
    runs_of,
    secret_of,
    spent,
    write_seats,
    write_view,
)
from comity.engines.site import Site
from comity.errors import ComityError, UsageError, shown
from comity.measure.gain import gains
from comity.metrics.evaluation import NOTHING, Evaluation, Gained, Score
from comity.metrics.metrics import METRICS, Metric, by_class, check_fits
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
from comity.units import size
from comity.wire.codec import decode, encode
from comity.wire.sealing import Lock, PairKeys

ALONE = "solo"
DELTA = 1e-5
"""At which a site counts what it has given away in all its runs."""
JOINED = "joined"
STAGES = ("", "unfinished", "offered", JOINED)


@dataclass(frozen=True)
class Seat:
    """A site's place in a run that has begun."""

    site: Site
    validator: MessageValidator
    lock: Lock
    server_run: ServerRun
    """The run, as far as it is about this party."""

    def name_of(self, number: int) -> str:
        """The name of the party with that number."""
        return self.server_run.common.seats.names[number]


@dataclass
class SiteRun:
    """A run that a site takes part in."""

    name: str
    at: Path
    """The site's folder."""
    party: str
    experiment: Experiment
    algorithm: AnyAlgorithm
    federation: Federation
    """The site's own data."""
    introduced: Introduced
    identity: Identity | None
    key: X25519PrivateKey
    states: States = field(init=False)
    book: Book = field(init=False)
    _seat: Seat | None = None
    _account: Account | None = None

    def __post_init__(self) -> None:
        self.states = States(self.folder.path)
        self._before = spent(self.at, self.party)
        self.book = Book(self.folder.path, self.party)
        self._before -= self.book.sent

    @property
    def folder(self) -> RunFolder:
        """Where the site keeps the run."""
        return RunFolder(self.at / "runs" / self.name)

    @staticmethod
    def opened(
        at: Path,
        asked: messages.Introduce,
        policy: SitePolicy,
        submitter: str,
        identity: Identity | None,
    ) -> SiteRun:
        """EvaluationRequest at what is ordered and, if the law allows it, begin the run or open it
        again.
        """
        if not asked.run.isalnum() or len(asked.run) > 64:
            raise UsageError("A run's name must be letters and digits.")
        if identity and identity.name != policy.name:
            raise UsageError(f"The certificate of {policy.name} is made out to {identity.name!r}.")
        if asked.comity != (here := version("comity")):
            raise UsageError(
                f"{policy.name} has Comity {here}, the server has {asked.comity}: install the same"
                " on both sides."
            )
        chosen = config.experiment(json.loads(asked.settings))
        policy.check_names(chosen, submitter)
        algorithm = algorithms.compose(chosen.algorithm, chosen.set)
        policy.check(chosen, algorithm, submitter)
        federation = own_federation(policy.name, policy.data, chosen)
        if asked.schema != schema_mark(federation.schema):
            raise UsageError(
                f"The data of {policy.name} follow another schema than the server's: import them"
                " again by that one."
            )
        chosen = judged_by(chosen, federation.classes)
        check_fits(chosen.metric, federation.classes)
        own = federation.parties[policy.name]
        policy.check_records(len(own.train), by_class(own.train.y, federation.classes), algorithm)
        key = X25519PrivateKey.generate()
        introduced = Introduced(
            said=_said(federation, policy, METRICS[chosen.metric]),
            shape=list(federation.shape),
            classes=federation.classes,
            black=list(federation.preprocess.black),
            class_names=list(federation.class_names),
            digest=data_mark(at, federation),
            signed_key=identity.signed_key(asked.run, key) if identity else None,
            comity=here,
        )
        _begin_at_home(
            RunFolder(at / "runs" / asked.run), chosen, federation, introduced.digest, policy.name
        )
        made = SiteRun(
            asked.run, at, policy.name, chosen, algorithm, federation, introduced, identity, key
        )
        made._check_amount(policy, payload(introduced))
        return made

    def check(self, policy: SitePolicy, submitter: str) -> None:
        """Refuse to go on with what the law has come to forbid."""
        policy.check(self.experiment, self.algorithm, submitter)
        own = self.federation.parties[self.party].train
        policy.check_records(len(own), by_class(own.y, self.federation.classes), self.algorithm)

    def check_round(self, round: int) -> None:
        """Refuse what is asked for a round that the run does not have: newcomers join in one after
        the last.
        """
        rounds = self.experiment.rounds
        if not 0 <= round <= rounds + bool(self.experiment.newcomers):
            raise UsageError(f"{self.party} is asked for round {round}, and the run has {rounds}.")

    def about(self) -> str:
        """What the site has agreed to, in a line."""
        kinds = sorted({kind for one in chain(self.algorithm) for kind in one.leaves})
        told = (
            f"of its data there would leave {', '.join(kinds)}"
            if kinds
            else "nothing of its data would leave"
        )
        usual = Experiment().model_dump()
        others = {
            name: value
            for name, value in self.experiment.model_dump().items()
            if value != usual[name] and value
        }
        settings = ", ".join(
            f"{name} {value}"
            for name, value in others.items()
            if name not in WHERE | {"data", "partition"}
        )
        return f"run {self.name} ({settings}); {told}"

    def begin(self, head: messages.Begin, policy: SitePolicy) -> None:
        """Everybody has introduced themselves: take a seat."""
        if head.parties.get(self.party) != self.introduced.said:
            raise UsageError(f"{self.party} said something else of itself than the server tells.")
        site, whole = seated(
            self.folder, self.at, self.party, self.experiment, self.federation, head.parties
        )
        names, algorithm = whole.common.seats.names, site.algorithm
        self._account_for(whole, site.party.id, policy)
        self._seat = Seat(
            site,
            MessageValidator(algorithm, site.party.task, len(names), policy.message),
            Lock(
                self._keys(head, names),
                blake2b(self.name.encode(), digest_size=16).digest(),
                records_of(algorithm),
            ),
            as_far_as(site.party, whole),
        )
        write_seats(self.folder.path, head.parties)

    def _account_for(self, server_run: ServerRun, number: int, policy: SitePolicy) -> None:
        """Open the account of what this site gives away, if the law allows what it will come to
        with all earlier runs.
        """
        if math.isfinite(policy.budget_epsilon):
            before = [row.to_release() for row in given_away(self.at, self.name)]
            total = server_run.planned_releases()[number] + Counter(made for made in before if made)
            bounded = all(before) and not server_run.everybody[number].own_constants
            policy.check_epsilon(
                epsilon(total, DELTA) if bounded else math.inf,
                display_name(self.experiment.algorithm),
            )
        self._account = server_run.account()
        self._account.restore(self.book.privacy())

    @property
    def account(self) -> Account:
        """What this site gives away in the run, once it has begun."""
        assert self._account is not None
        return self._account

    def _keys(self, head: messages.Begin, names: tuple[str, ...]) -> PairKeys:
        """The keys for parcels; without a certificate there are none."""
        if self.identity is None:
            return _no_keys
        return keys_of(self.identity, self.name, self.key, names, head.signed_keys)

    def run_call(self, head: messages.RunCall, body: bytes, policy: SitePolicy) -> bytes:
        """Do a work. What came of it is on the disk before the reply leaves."""
        seat, call, after = self.seat, CallId(*head.call), call_of(head.after)
        seat.validator.check_call(call)
        self.check_round(call.round)
        content = decode(body, most_bytes=policy.message, records=seat.validator.records)
        seat.validator.check_letter(call, content)
        number = seat.site.party.id
        opened = self._opened(head.inbox, call)
        self.book.down(call.round, call.function, "down", payload(content))
        for sender, sealed in sorted(head.inbox.items()):
            self.book.down(call.round, call.function, "peer", sealed.size, src=seat.name_of(sender))
        if not (again := self.book.is_done(call)):
            self.account.charge_call(call, [number])
            self.book.spend(self.account.take())  # before anything can leave
        site = self.brought(after)
        answer = site.run(call, Message(content, after, head.first), opened)
        seat.validator.check_reply(call, answer.reply)
        sealed_messages = {
            id(sealed): sealed for sealed in sealed_in(answer.reply)
        }.values()  # one for many may stand there for each
        to_peers = [
            (seat.name_of(recipient), sealed.size)
            for sealed in sealed_messages
            for recipient in sealed.to
        ]
        sent = payload(answer.reply)
        self._check_amount(policy, sent + sum(weight for _, weight in to_peers))
        told = Answered(
            answer.steps, answer.keeps, answer.ruined, answer.warning, tuple(answer.unusable)
        )
        made = pack(told, encode(seat.lock.close(answer.reply), sealed_messages=True))
        policy.check_leaving(made)
        if not again:
            self.account.note_reply(call, number, answer.reply)
            self.book.spend(self.account.take())
        if answer.keeps:
            self.states.write(number, call, site.versions.blob())
        self.book.worked(call, answer.steps)
        self.book.up(call.round, call.function, "up", sent)
        for recipient, weight in to_peers:
            self.book.up(call.round, call.function, "peer", weight, dst=recipient)
        return made

    def _opened(self, inbox: dict[int, Sealed], call: CallId) -> dict[int, Sealed]:
        """Parcels as their senders made them, if they hold what parcels of this method do."""
        if not inbox:
            return {}
        seat = self.seat
        number = seat.site.party.id
        opened = seat.lock.open({number: inbox}, call)[number]
        for sender, sealed in opened.items():
            try:
                seat.validator.check_parcel(unseal(sealed))
            except ComityError as why:
                raise UsageError(f"A parcel of {seat.name_of(sender)} is refused: {why}") from why
        return opened

    def evaluate(self, head: messages.Evaluate, body: bytes, policy: SitePolicy) -> Evaluation:
        """Evaluate what the site would deploy: what may leave of it. All of it is kept at home."""
        seat, after = self.seat, call_of(head.after)
        self.check_round(head.round)
        if head.stage not in STAGES:
            raise UsageError(
                f"There is no stage {shown(head.stage)} at which models are evaluated."
            )
        content = decode(body, most_bytes=policy.message, records=seat.validator.records)
        seat.validator.check_view(content)
        self.book.down(head.round, "evaluate", "eval", payload(content))
        found = self.brought(after).evaluate(Message(content, after), head.final)
        self.book.note(self._notes(found, head.round, head.stage, head.final))
        if head.final or head.stage == JOINED:
            write_view(self.folder.path, content, after)
        if head.final and found.answers is not None:
            self.folder.write_outcomes({self.party: found.answers})
            found = replace(found, gained=self._gained())
        return self._leaving(found, policy, head.round, "evaluate")

    def _gained(self) -> Gained | None:
        """What this run gives the site over its newest one alone, with the same settings on the
        same data, if there is such.
        """
        alone = [run for run in runs_of(self.at) if run.ended and self._is_alone(run)]
        if not alone or self.experiment.algorithm == ALONE:
            return None
        newest = max(alone, key=lambda run: run.summary.stat().st_mtime)
        found = gains(self.folder.path, newest.path, self.seat.server_run.metric.name)
        return Gained(*(getattr(found[0], f.name) for f in fields(Gained))) if found else None

    def _is_alone(self, run: RunFolder) -> bool:
        others = {"algorithm", "set"}
        chosen = run.read_experiment()
        same = chosen.model_dump(exclude=others) == self.experiment.model_dump(exclude=others)
        return (
            chosen.algorithm == ALONE
            and same
            and run.read_environment()["fingerprint"] == self.introduced.digest
        )

    def alone(self, head: messages.EvaluateAlone, policy: SitePolicy) -> Evaluation:
        """Evaluate what the site's own data alone would have given it."""
        seat = self.seat
        self.check_round(head.round)
        found = seat.site.evaluate_solo(head.round)
        self.book.note(self._notes(found, head.round, "alone"))
        return self._leaving(found, policy, head.round, "alone")

    def finish(self, rounds: int, model: bool, say: Callable[[str], None]) -> None:
        """Write the summary, the page and, if wanted, the model: the run is over."""
        from comity.deploy.afterwards import finish

        finish(self, rounds, model, say)

    def _leaving(self, found: Evaluation, policy: SitePolicy, round: int, work: str) -> Evaluation:
        """What of an evaluation may leave: figures that enough samples are behind, and answers if
        the law says so.
        """

        def enough(score: Score) -> Score:
            return score if score.count >= policy.records else NOTHING

        enough_tests = found.test.count >= policy.records  # figures could be made of answers, too
        answers = found.answers if policy.outcomes and enough_tests else None
        told = Evaluation(
            enough(found.validation),
            enough(found.test),
            answers,
            found.gained if enough_tests else None,
        )
        self._check_amount(policy, payload(told))
        self.book.up(round, work, "eval", payload(told))
        return told

    def _notes(
        self, found: Evaluation, round: int, stage: str, final: bool = False
    ) -> Iterator[Note]:
        """The rows of the site's own table of figures."""
        classes, metric = self.federation.classes, self.seat.server_run.metric.name
        for split, name, figure in figures(found, classes, metric):
            yield Note(round, self.party, f"{split}-{stage}" if stage else split, name, figure)
        for name, figure in further_figures(found, metric) if final else ():
            yield Note(round, self.party, "test", name, figure)

    def _check_amount(self, policy: SitePolicy, more: int) -> None:
        """Refuse to send more than the law allows, in this run and in all."""
        if self.book.sent + more > policy.bytes:
            raise UsageError(
                f"{self.party} has sent {size(self.book.sent)} in this run, and may send"
                f" {size(policy.bytes)} (bytes)."
            )
        if (before := self._before + self.book.sent) + more > policy.budget_bytes:
            raise UsageError(
                f"{self.party} has sent {size(before)} in all, and may send"
                f" {size(policy.budget_bytes)} (budget: bytes)."
            )

    @property
    def seat(self) -> Seat:
        """The site's place in the run, once it has begun."""
        if self._seat is None:
            raise UsageError(f"{self.party} was asked to work before the run has begun.")
        return self._seat

    def brought(self, version: CallId | None) -> Site:
        """The site with the state to go on with: in memory or, after a restart or a round that did
        not count, from its disk.
        """
        seat = self.seat
        if not seat.site.versions.knows(version):
            fresh = Site(seat.site.algorithm, seat.site.party, seat.site.root)
            if version is not None:
                fresh.restore(self.states.read(version), version)
            self._seat = replace(seat, site=fresh)
        return self.seat.site


def data_mark(at: Path, federation: Federation) -> str:
    """A mark of a site's data that only this site can make: are they the same as before?"""
    return hmac.new(secret_of(at), federation.fingerprint().encode(), "sha256").hexdigest()


def seated(
    run: RunFolder,
    at: Path,
    party: str,
    experiment: Experiment,
    own: Federation,
    said: Mapping[str, PartyInfo],
) -> tuple[Site, ServerRun]:
    """A site's party as a run begins, and that run; `said` is what all have told of themselves."""
    told = PartyInfos(
        said, own.shape, own.classes, own.preprocess.black, class_names=own.class_names
    )
    common = RunContext(experiment, told)
    algorithm, info = resolve_method(common)
    names = common.seats.names
    if party not in names:
        raise UsageError(f"{party} is left out of this run.")
    made = make_party(common, names.index(party), own.parties[party])
    root = SecretKey(Key.root(experiment.seed).bits, run_secret(at, run.path.name))
    return Site(algorithm, made, root), ServerRun(experiment, common, algorithm, info)


def as_far_as(party: Party, run: ServerRun) -> ServerRun:
    """A run as far as it is about one party."""
    own = replace(
        run.info,
        names=(party.name,),
        sizes=(len(party.data.train),),
        tasks=(party.task,),
        newcomers=(),
        peers=(),
    )
    return replace(run, info=own)


def _said(federation: Federation, policy: SitePolicy, metric: Metric) -> PartyInfo:
    """What a site tells of its data: it is judged by samples only if they are enough for their
    figures to leave.
    """
    own, constants = federation.parties[policy.name], federation.own_constants
    said = PartyInfo.of(
        own, federation.classes, metric, counts=policy.class_counts, own_constants=constants
    )
    enough = {"validation": said.validation >= policy.records, "test": said.test >= policy.records}
    return replace(said, judged=[split for split in said.judged if enough[split]])


def _begin_at_home(
    run: RunFolder, experiment: Experiment, federation: Federation, mark: str, party: str
) -> None:
    """The site's own folder of a run, with what it began with; a run that was begun must be the
    same.
    """
    settings, split = config.write(experiment), federation.split.to_json()
    if not run.begun:
        run.path.mkdir(parents=True, exist_ok=True)
        run.begin(settings, environment(settings, mark, split=split), split=split)
        return
    before = run.read_environment()
    if before["config"] != digest(settings):
        raise UsageError(f"Run {run.path.name} was begun with other settings at {party}.")
    if before["fingerprint"] != mark:
        raise UsageError(f"The data of {party} have changed since run {run.path.name} was begun.")


def _no_keys(one: int, other: int) -> bytes:
    raise UsageError("Without certificates no parcel can be sealed between sites.")
