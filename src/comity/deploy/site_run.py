"""A run at a site: the party with its data and state, the checks of the site policy, and the site's
own tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity import algorithms
from comity.base.call import CallId
from comity.base.record import payload
from comity.base.samples import PartyData
from comity.core.algorithm import AnyAlgorithm
from comity.core.charging import WEIGHTS
from comity.core.release import PartyFacts
from comity.core.signature import records_of
from comity.core.validate import MessageValidator
from comity.core.wrapper import chain
from comity.data import Federation
from comity.deploy import messages
from comity.deploy.data import SiteSplit, fixed_split, schema_digest, store_split
from comity.deploy.group_size import LocalData, groups, unit_of
from comity.deploy.key_exchange import Identity, keys_of
from comity.deploy.messages import Introduced
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
    check_only_floating,
    party_noise,
)
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.site_setup import (
    begin_folder,
    build_site,
    check_order,
    data_digest,
    describe_party,
    needs_weights,
    restrict_to_party,
)
from comity.deploy.site_store import (
    Replies,
    SiteTables,
    States,
    has_roster,
    read_roster,
    write_roster,
)
from comity.engines.site import Site
from comity.errors import ComityError, UsageError
from comity.metrics.metrics import METRICS, check_fits
from comity.models.pretrained import Pretrained
from comity.models.referenced_weights import INITIAL_WEIGHTS, WeightsReference
from comity.names import display_name
from comity.privacy.account import Account
from comity.privacy.composition import epsilon
from comity.runs import config
from comity.runs.config import WHERE, Experiment
from comity.runs.folder import RunFolder
from comity.runs.server_run import ServerRun, judged_by
from comity.safe_files import write_atomically
from comity.training.task import LearningTask
from comity.wire.sealing import Lock, PairKeys

OFFICIAL = "official"


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
    sent_ledger: SentLedger = field(init=False)
    """How much has left this site in all runs."""
    tables: SiteTables = field(init=False)
    _active: ActiveRun | None = None
    secure: SecureSite | None = None
    """In a run with secure aggregation, for a site whose replies are averaged."""
    _account: Account | None = None
    _checked_policy: SitePolicy | None = None

    def __post_init__(self) -> None:
        self.states = States(self.folder.path)
        self.replies = Replies(self.folder.path)
        self.ledger = ReleaseLedger(self.at)
        self.sent_ledger = SentLedger(self.at, self.party)
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
            check_order(order, request.run, experiment, federation.classes)
        check_fits(experiment.metric, federation.classes)
        parts = federation.parties[policy.name]
        policy.check_records(parts.group_size("train"), unit_of(parts))
        held_out = len(parts.validation) + len(parts.test)
        if split.test != OFFICIAL:
            policy.check_held_out(held_out / (len(parts.train) + held_out))
        store_split(at, policy.data, split)
        key = X25519PrivateKey.generate()
        introduced = Introduced(
            said=describe_party(federation, policy, METRICS[experiment.metric]),
            shape=list(federation.shape),
            classes=federation.classes,
            black=list(federation.preprocess.black),
            class_names=list(federation.class_names),
            digest=data_digest(at, federation),
            signed_key=identity.signed_key(request.run, key) if identity else None,
            comity=version("comity"),
            split=str(split),
            threshold=policy.threshold if experiment.secure_aggregation else 0.0,
            colluders=policy.colluders if experiment.secure_aggregation else 0,
            needs_weights=needs_weights(RunFolder(at / "runs" / request.run), experiment),
        )
        begin_folder(
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
        run.sent_ledger.check(run.name, payload(introduced), policy)
        run._check_groups(policy)
        return run

    @property
    def data(self) -> PartyData:
        """The site's samples."""
        return self.federation.parties[self.party]

    def check(self, policy: SitePolicy, submitter: str) -> None:
        """Refuse to continue if the site policy, which may have changed, forbids the run."""
        policy.check(self.experiment, self.algorithm, submitter)
        policy.check_records(self.data.group_size("train"), unit_of(self.data))
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
        data, training = self.data, site.party.training
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

    def take_weights(self, content: bytes) -> None:
        """Store the file of initial weights, if it is the one that the signed settings name."""
        reference = WeightsReference.read(self.experiment.weights)
        if reference is None:
            raise UsageError(f"Run {self.name} has no initial weights that are sent.")
        reference.check(content)
        write_atomically(self.folder.path / INITIAL_WEIGHTS, content, private=True)
        self.tables.charge_received(0, WEIGHTS, "setup", len(content))

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
        policy.check_weights(_weights_of(site.party.task))
        if self.experiment.secure_aggregation:
            check_only_floating(algorithm, server_run.info)
            self.secure = self._secure_site(head, server_run.info.names, policy)
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

    def commit(self, version: CallId | None) -> None:
        """Delete what the server will not ask for again after a checkpoint."""
        self.states.forget_before(version)
        if version is not None:
            self.replies.forget_before(version.round)

    def finish(self, rounds: int, model: bool, log: Callable[[str], None]) -> None:
        """Write the summary, the page and, if `model` is set, the model of a finished run."""
        # Imported here: the report's page takes long to load, and calls do not need it.
        from comity.deploy.site_results import finish

        finish(self, rounds, model, log)

    def charge_sent(
        self, round: int, call: str, messages: Sequence[tuple[str, int, str]], policy: SitePolicy
    ) -> None:
        """Charge messages before they leave, if the site policy allows so many bytes.

        Arguments:
            round: the round
            call: the party function, or what else the messages are for
            messages: the kind, the bytes and the recipient of each
            policy: the site policy
        """
        self.sent_ledger.charge(self.name, [(kind, amount) for kind, amount, _ in messages], policy)
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

    def forget_state(self) -> None:
        """Drop the state in memory, so that the next call continues from the one on the disk."""
        self._active = replace(self.active, site=self._fresh_site())

    def _fresh_site(self) -> Site:
        site = self.active.site
        return Site(site.algorithm, site.party, site.root)


def _weights_of(task: LearningTask) -> int:
    """How many weights a model has, with the frozen ones."""
    trained = sum(math.prod(shape) for shape, _ in task.shapes.values())
    network = task.network
    frozen = network.frozen.values() if isinstance(network, Pretrained) else ()
    return trained + sum(value.numel() for value in frozen)


def _no_keys(one: int, other: int) -> bytes:
    raise UsageError("Without certificates no message can be sealed between sites.")
