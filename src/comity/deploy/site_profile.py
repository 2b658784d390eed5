"""Profiles of a site's data (`comity data profile --federation`): what leaves, and how often.

A profile has two steps. First the site tells between which round numbers most values of each column
lie. Then it gets common ranges, and sends its counts. Every answer is stored in the site's folder
before it leaves. The same question gets the stored answer and is charged once. Other ranges make
another profile of the same data, and the policy says how many of these there may be: two histograms
with different bins could be subtracted from each other. Once there are as many, the last answer is
sent again, whatever the ranges are.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from comity.base.key import Key
from comity.checksums import UNREADABLE, read_json, with_crc
from comity.core.release import Release
from comity.data import Dataset
from comity.data import load as load_dataset
from comity.data.profiles import (
    PartyTable,
    ProfiledColumn,
    Protection,
    own_ranges,
    party_table,
    profile_table,
    profiled_columns,
)
from comity.data.profiles.edges import is_range
from comity.deploy.data import schema_digest
from comity.deploy.file_lock import lock_file
from comity.deploy.group_size import PATIENTS, RECORDS
from comity.deploy.messages import AskProfile, AskRanges, Ranges
from comity.deploy.policy import NAME, SitePolicy
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.sent_ledger import SentLedger
from comity.deploy.site_store import secret_of
from comity.errors import CorruptedFile, UsageError
from comity.privacy.account import AGAINST_SERVER, PrivacyCharge
from comity.privacy.accounting import gaussian_sigma
from comity.safe_files import open_to_update, write_atomically

PROFILE = "profile"
"""The name of profiles in the site's ledgers, in the place of a run's name."""
STORE, LOCK = "profiles.json", "profiles.lock"


@dataclass(frozen=True)
class SentProfile:
    """A profile that has left a site, or its first step."""

    data: str
    """The fingerprint of the data."""
    protection: dict[str, Any]
    ranges: dict[str, list[float]]
    """What the site said in the first step."""
    submitter: str
    time: str
    question: dict[str, list[float]] | None = None
    """The ranges of the second step; None before it."""
    content: str = ""
    """The profile that left, as JSON."""


def check_profile_order(order: Mapping[str, Any], run: str) -> None:
    """Refuse a profile if the job that the submitter signed is not for this one."""
    if order.get("profile") is not True or order.get("run") != run:
        raise UsageError("The server asks for a profile that the submitter has not signed.")


def sent_profiles(folder: Path) -> list[SentProfile]:
    """All profiles that have left the site in `folder`, oldest first."""
    path = folder / STORE
    try:
        content = read_json(path)
        return [SentProfile(**fields) for fields in content["profiles"]]
    except FileNotFoundError:
        return []
    except UNREADABLE as why:
        raise CorruptedFile(f"{path} is damaged: which profiles have left is not known.") from why


class SiteProfiles:
    """A site's answers to requests for a profile.

    Arguments:
        folder: the site's folder
        policy: the site policy
        submitter: who submitted the job
    """

    def __init__(self, folder: Path, policy: SitePolicy, submitter: str) -> None:
        policy.check_profile(submitter)
        self._folder = folder
        self._policy = policy
        self._submitter = submitter

    def ranges(self, request: AskRanges) -> Ranges:
        """Answer the first step."""
        self._check(request)
        with self._locked():
            stored = self._find_same()
            if not stored:
                ranges = own_ranges(
                    self._dataset.schema, self._columns, self._table, self._protection
                )
                present = {name: list(limits) for name, limits in ranges.items() if limits}
                stored = [self._begin(present)]
            return Ranges(stored[0].ranges)

    def profile(self, request: AskProfile) -> str:
        """Answer the second step: the profile as JSON."""
        self._check(request)
        question = self._read_question(request)
        with self._locked():
            stored = self._find_same()
            for profile in stored:
                if profile.question == question:
                    return profile.content
            if not stored:
                raise UsageError(f"{self._policy.name} was not asked for its ranges first.")
            if stored[-1].question is None:
                return self._complete(stored[-1], question)
            if len(self._of_these_data()) >= self._policy.profiles:
                return stored[-1].content
            return self._complete(self._begin(stored[0].ranges), question)

    def charge_sent(self, amount: int) -> None:
        """Charge the bytes of an answer before it leaves."""
        SentLedger(self._folder, self._policy.name).charge(
            PROFILE, [(PROFILE, amount)], self._policy
        )

    @cached_property
    def _dataset(self) -> Dataset:
        return load_dataset(str(self._policy.data))

    @cached_property
    def _columns(self) -> tuple[ProfiledColumn, ...]:
        dataset = self._dataset
        return profiled_columns(dataset.schema, dataset.classes, dataset.class_names)

    @cached_property
    def _table(self) -> PartyTable:
        return party_table(self._dataset, range(len(self._dataset)))

    @cached_property
    def _release(self) -> Release | None:
        """The noise through which a profile leaves; None without noise.

        A record is in one cell of each column. The number of rows is no secret.
        """
        if not math.isfinite(self._policy.profile_epsilon):
            return None
        sensitivity = math.sqrt(len(self._columns))
        sigma = gaussian_sigma(self._policy.profile_epsilon, DELTA, sensitivity)
        return Release("record", "gaussian", sensitivity, sigma)

    @cached_property
    def _protection(self) -> Protection:
        noise = self._release.noise if self._release else 0.0
        return Protection(self._policy.records, max(1, self._policy.profile_rounding), noise)

    def _check(self, request: AskRanges | AskProfile) -> None:
        """Refuse another schema, and data of too few records or patients."""
        name = self._policy.name
        if request.schema != schema_digest(self._dataset.schema):
            raise UsageError(
                f"The data of {name} follow another schema than the server's: import them again by"
                " that one."
            )
        if self._policy.profile_epsilon == 0:
            raise UsageError(f"{name} allows profiles no privacy loss at all (profile_epsilon).")
        if self._table.size < self._policy.records:
            unit = RECORDS if self._table.patients is None else PATIENTS
            raise UsageError(f"{name} has fewer than {self._policy.records} {unit} (records).")

    def _read_question(self, request: AskProfile) -> dict[str, list[float]]:
        """The ranges of a request. Only numbers of the fixed grid are allowed, so that no bin can
        be placed around a single record.
        """
        numbers = {column.name for column in self._columns if column.kind == "number"}
        for name, limits in request.ranges.items():
            if name not in numbers or len(limits) != 2 or not is_range(*limits):
                raise UsageError(
                    f"{self._policy.name} computes histograms over ranges of round numbers only."
                )
        return {name: list(request.ranges[name]) for name in sorted(request.ranges)}

    def _find_same(self) -> list[SentProfile]:
        """The profiles of these data under this policy that have left before."""
        return [
            profile for profile in self._of_these_data() if profile.protection == self._settings
        ]

    @property
    def _settings(self) -> dict[str, Any]:
        return asdict(self._protection)

    def _of_these_data(self) -> list[SentProfile]:
        fingerprint = self._dataset.fingerprint()
        return [profile for profile in sent_profiles(self._folder) if profile.data == fingerprint]

    def _begin(self, ranges: dict[str, list[float]]) -> SentProfile:
        """Store the first step of a new profile, if the policy allows one more."""
        if (count := len(self._of_these_data())) >= self._policy.profiles:
            raise UsageError(
                f"{self._policy.name} has changed its policy since a profile of these data left,"
                f" and {self._policy.profiles} may leave in all: its operator can write profiles ="
                f" {count + 1} under [allow] in {NAME} (profiles)."
            )
        if self._release is None:
            self._charge("ranges", b"", None)
        incomplete = SentProfile(
            self._dataset.fingerprint(),
            self._settings,
            ranges,
            self._submitter,
            time.strftime("%Y-%m-%d %H:%M:%S"),
        )
        self._store([*sent_profiles(self._folder), incomplete])
        return incomplete

    def _complete(self, incomplete: SentProfile, question: dict[str, list[float]]) -> str:
        """Charge, compute and store the second step of a profile."""
        digest = blake2b(
            json.dumps([incomplete.data, incomplete.protection, question]).encode(), digest_size=16
        ).digest()
        self._charge(PROFILE, digest, self._release)
        key = Key.root(0, secret_of(self._folder), binds=True).fold(PROFILE).bind(digest)
        ranges = {name: (low, high) for name, (low, high) in question.items()}
        party = profile_table(self._columns, self._table, ranges, self._protection, key)
        content = json.dumps(party.to_dict(), allow_nan=False)
        complete = replace(incomplete, question=question, content=content)
        self._store(
            [
                complete if profile == incomplete else profile
                for profile in sent_profiles(self._folder)
            ]
        )
        return content

    def _charge(self, name: str, digest: bytes, release: Release | None) -> None:
        """Write what will leave to the site's ledger of releases."""
        row = PrivacyCharge.of(0, PROFILE, self._policy.name, name, release, AGAINST_SERVER, DELTA)
        ReleaseLedger(self._folder).charge(
            PROFILE, digest.hex(), [row], self._policy.budget_epsilon
        )

    def _store(self, profiles: list[SentProfile]) -> None:
        content = with_crc({"profiles": [asdict(profile) for profile in profiles]})
        write_atomically(self._folder / STORE, json.dumps(content), private=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time read and change the store."""
        with open_to_update(self._folder / LOCK, create=True) as file:
            lock_file(file)
            yield
