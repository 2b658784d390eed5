"""A run at a site: the party with its data and state, what its law says to it, and what it writes down at home."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity import algorithms
from comity.core.algorithm import AnyAlgorithm
from comity.core.call import Call, Letter
from comity.core.codec import decode, encode
from comity.core.evaluation import NOTHING, Evaluation, Score
from comity.core.gate import Gate
from comity.core.key import Key, SecretKey
from comity.core.metrics import METRICS, by_class, check_fits
from comity.core.net import Note
from comity.core.record import parcels_in, payload
from comity.core.wrapper import chain
from comity.data import Federation
from comity.engines.sealing import Lock, PairKeys
from comity.engines.site import Site
from comity.errors import Refusal
from comity.experiments import config
from comity.experiments.common import CommonGround, Introduction, Introductions
from comity.experiments.config import WHERE, Experiment
from comity.experiments.environment import digest, environment
from comity.experiments.evaluation import figures, further_figures
from comity.experiments.folder import RunFolder
from comity.experiments.outline import Outline, judged_by
from comity.experiments.party_side import make_party
from comity.experiments.server_side import agree
from comity.sites import messages
from comity.sites.data import own_federation, schema_mark
from comity.sites.home import Book, States, spent, write_view
from comity.sites.law import Law
from comity.sites.messages import Answered, Introduced, call_of, pack
from comity.sites.passports import Identity, keys_of
from comity.units import size

SECRET = "secret"


def secret_of(folder: Path) -> bytes:
    """A secret that this site keeps for itself: made once, and never sent."""
    path = folder / SECRET
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()


@dataclass(frozen=True)
class Seat:
    """A site's place in a run that has begun."""

    site: Site
    gate: Gate
    lock: Lock
    outline: Outline
    """The run, as far as it is about this party."""

    def name_of(self, number: int) -> str:
        """The name of the party with that number."""
        return self.outline.common.seats.names[number]


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
    steps: int = 0
    """Gradient steps that were taken here since this process began."""
    _seat: Seat | None = None

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
    def opened(at: Path, asked: messages.Introduce, law: Law, submitter: str, identity: Identity | None) -> SiteRun:
        """Look at what is ordered and, if the law allows it, begin the run or open it again."""
        if not asked.run.isalnum() or len(asked.run) > 64:
            raise Refusal("A run's name must be letters and digits.")
        if asked.comity != (here := version("comity")):
            raise Refusal(f"{law.name} has Comity {here}, the server has {asked.comity}: install the same on both sides.")
        chosen = config.experiment(json.loads(asked.settings))
        algorithm = algorithms.compose(chosen.algorithm, chosen.set)
        law.check(chosen, algorithm, submitter)
        federation = own_federation(law.name, law.data, chosen)
        if asked.schema != schema_mark(federation.schema):
            raise Refusal(f"The data of {law.name} follow another schema than the server's: import them again by that one.")
        chosen = judged_by(chosen, federation.classes)
        check_fits(chosen.metric, federation.classes)
        own = federation.parties[law.name]
        law.check_records(len(own.train), by_class(own.train.y, federation.classes), algorithm)
        key = X25519PrivateKey.generate()
        introduced = Introduced(
            said=Introduction.of(own, federation.classes, METRICS[chosen.metric], counts=law.class_counts),
            shape=list(federation.shape),
            classes=federation.classes,
            black=list(federation.preprocess.black),
            class_names=list(federation.class_names),
            digest=hmac.new(secret_of(at), federation.fingerprint().encode(), "sha256").hexdigest(),
            passport=identity.passport(asked.run, key) if identity else None,
            comity=here,
        )
        _begin_at_home(RunFolder(at / "runs" / asked.run), chosen, federation, introduced.digest, law.name)
        made = SiteRun(asked.run, at, law.name, chosen, algorithm, federation, introduced, identity, key)
        made._check_amount(law, payload(introduced))
        return made

    def about(self) -> str:
        """What the site has agreed to, in a line."""
        kinds = sorted({kind for one in chain(self.algorithm) for kind in one.leaves})
        told = f"of its data there would leave {', '.join(kinds)}" if kinds else "nothing of its data would leave"
        usual = Experiment().model_dump()
        others = {name: value for name, value in self.experiment.model_dump().items() if value != usual[name] and value}
        settings = ", ".join(f"{name} {value}" for name, value in others.items() if name not in WHERE | {"data", "partition"})
        return f"run {self.name} ({settings}); {told}"

    def begin(self, head: messages.Begin, law: Law) -> None:
        """Everybody has introduced themselves: take a seat."""
        own = self.introduced
        if head.parties.get(self.party) != own.said:
            raise Refusal(f"{self.party} said something else of itself than the server tells.")
        told = Introductions(head.parties, tuple(own.shape), own.classes, tuple(own.black), class_names=tuple(own.class_names))
        common = CommonGround(self.experiment, told)
        algorithm, info = agree(common)
        names = common.seats.names
        if self.party not in names:
            raise Refusal(f"{self.party} is left out of this run.")
        party = make_party(common, names.index(self.party), self.federation.parties[self.party])
        secret = blake2b(secret_of(self.at) + self.name.encode(), digest_size=32).digest()
        site = Site(algorithm, party, SecretKey(Key.root(self.experiment.seed).bits, secret))
        only = replace(info, names=(self.party,), sizes=(own.said.train,), tasks=(party.task,), newcomers=(), peers=())
        self._seat = Seat(
            site,
            Gate(algorithm, party.task, len(names), law.message),
            Lock(self._keys(head, names), blake2b(self.name.encode(), digest_size=16).digest()),
            Outline(self.experiment, common, algorithm, only),
        )

    def _keys(self, head: messages.Begin, names: tuple[str, ...]) -> PairKeys:
        """The keys for parcels; without a certificate there are none."""
        if self.identity is None:
            return _no_keys
        return keys_of(self.identity, self.name, self.key, names, head.passports)

    def work(self, head: messages.Work, body: bytes, law: Law) -> bytes:
        """Do a work. What came of it is on the disk before the reply leaves."""
        seat, call, after = self.seat, Call(*head.call), call_of(head.after)
        seat.gate.check_call(call)
        content = decode(body, most_bytes=law.message, records=seat.gate.records)
        seat.gate.check_letter(call, content)
        number = seat.site.party.id
        opened = seat.lock.open({number: head.inbox}, call)[number] if head.inbox else {}
        self.book.down(call.round, call.work, "down", payload(content))
        for sender, parcel in sorted(head.inbox.items()):
            self.book.down(call.round, call.work, "peer", parcel.size, src=seat.name_of(sender))
        site = self.brought(after)
        answer = site.work(call, Letter(content, after, head.first), opened)
        seat.gate.check_reply(call, answer.reply)
        parcels = {id(parcel): parcel for parcel in parcels_in(answer.reply)}.values()  # one for many may stand there for each
        sealed = [(seat.name_of(recipient), parcel.size) for parcel in parcels for recipient in parcel.to]
        sent = payload(answer.reply)
        self.steps += answer.steps
        self._check_amount(law, sent + sum(weight for _, weight in sealed))
        if answer.keeps:
            self.states.write(number, call, site.versions.blob())
        self.book.up(call.round, call.work, "up", sent)
        for recipient, weight in sealed:
            self.book.up(call.round, call.work, "peer", weight, dst=recipient)
        told = Answered(answer.steps, answer.keeps, answer.ruined, answer.remark, tuple(answer.unusable))
        return pack(told, encode(seat.lock.close(answer.reply), parcels=True))

    def evaluate(self, head: messages.Evaluate, body: bytes, law: Law) -> Evaluation:
        """Evaluate what the site would deploy: what may leave of it. All of it is kept at home."""
        seat, after = self.seat, call_of(head.after)
        content = decode(body, most_bytes=law.message, records=seat.gate.records)
        seat.gate.check_view(content)
        self.book.down(head.round, "evaluate", "eval", payload(content))
        found = self.brought(after).evaluate(Letter(content, after), head.final)
        self.book.note(self._notes(found, head))
        if head.final:
            write_view(self.folder.path, content, after)
            if found.answers is not None:
                self.folder.write_outcomes({self.party: found.answers})
        return self._leaving(found, law, head.round, "evaluate")

    def alone(self, head: messages.EvaluateAlone, law: Law) -> Evaluation:
        """Evaluate what the site's own data alone would have given it."""
        return self._leaving(self.seat.site.evaluate_solo(head.round), law, head.round, "alone")

    def finish(self, rounds: int, model: bool) -> list[str]:
        """The run is over: its summary, its page and, if wanted, the model are made here; what there is to say of that."""
        from comity.sites.afterwards import finish

        return finish(self, rounds, model)

    def _leaving(self, found: Evaluation, law: Law, round: int, work: str) -> Evaluation:
        """What of an evaluation may leave: figures that enough samples are behind, and answers if the law says so."""

        def enough(score: Score) -> Score:
            return score if score.count >= law.records else NOTHING

        told = Evaluation(enough(found.validation), enough(found.test), found.answers if law.outcomes else None)
        self._check_amount(law, payload(told))
        self.book.up(round, work, "eval", payload(told))
        return told

    def _notes(self, found: Evaluation, head: messages.Evaluate) -> Iterator[Note]:
        """The rows of the site's own table of figures."""
        classes, metric = self.federation.classes, self.seat.outline.metric.name
        for split, name, figure in figures(found, classes, metric):
            yield Note(head.round, self.party, f"{split}-{head.stage}" if head.stage else split, name, figure)
        for name, figure in further_figures(found, metric) if head.final else ():
            yield Note(head.round, self.party, "test", name, figure)

    def _check_amount(self, law: Law, more: int) -> None:
        """Refuse to send more than the law allows, in this run and in all."""
        if self.book.sent + more > law.bytes:
            raise Refusal(f"{self.party} has sent {size(self.book.sent)} in this run, and may send {size(law.bytes)} (bytes).")
        if (before := self._before + self.book.sent) + more > law.budget_bytes:
            raise Refusal(f"{self.party} has sent {size(before)} in all, and may send {size(law.budget_bytes)} (budget: bytes).")

    @property
    def seat(self) -> Seat:
        """The site's place in the run, once it has begun."""
        if self._seat is None:
            raise Refusal(f"{self.party} was asked to work before the run has begun.")
        return self._seat

    def brought(self, version: Call | None) -> Site:
        """The site with the state to go on with: in memory or, after a restart or a round that did not count, from its disk."""
        seat = self.seat
        if not seat.site.versions.knows(version):
            fresh = Site(seat.site.algorithm, seat.site.party, seat.site.root)
            if version is not None:
                fresh.restore(self.states.read(version), version)
            self._seat = replace(seat, site=fresh)
        return self.seat.site


def _begin_at_home(run: RunFolder, experiment: Experiment, federation: Federation, mark: str, party: str) -> None:
    """The site's own folder of a run, with what it began with; a run that was begun must be the same."""
    settings, split = config.write(experiment), federation.split.to_json()
    if not run.begun:
        run.path.mkdir(parents=True, exist_ok=True)
        run.begin(settings, environment(settings, mark, split=split), split=split)
        return
    before = run.read_environment()
    if before["config"] != digest(settings):
        raise Refusal(f"Run {run.path.name} was begun with other settings at {party}.")
    if before["fingerprint"] != mark:
        raise Refusal(f"The data of {party} have changed since run {run.path.name} was begun.")


def _no_keys(one: int, other: int) -> bytes:
    raise Refusal("Without certificates no parcel can be sealed between sites.")
