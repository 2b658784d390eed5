"""The server's side of secure aggregation in a run: it asks the sites step by step, and stores each
sum until a checkpoint contains it.

A site masks one reply for each call, so a sum cannot be computed a second time. A server that is
stopped after a sum, and before the next checkpoint, therefore reads the sum from its disk. If it is
stopped within the steps, the sites refuse the call when it is repeated, and the round is discarded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from comity.base.call import CallId, Message, PartyResult
from comity.base.record import payload, record
from comity.core.aggregate import PartialSum
from comity.core.runner import Overhead
from comity.core.validate import MessageValidator
from comity.deploy.messages import Done, Prepared, SecureCall, SecureStep, call_name
from comity.deploy.secure_terms import (
    SecureRun,
    averaged_type,
    flat_reply,
    joined_reply,
    layout_of,
    meta_reply,
    overhead_of,
)
from comity.errors import ComityError
from comity.privacy.secagg import (
    MaskedReply,
    RevealedShares,
    SecureAggregationError,
    ServerRound,
    SiteKeys,
    SiteShares,
    SurvivorSignature,
    Terms,
    from_bytes,
)
from comity.safe_files import flush_to_disk
from comity.wire.codec import decode, encode

S = TypeVar("S", SiteKeys, SiteShares, MaskedReply, SurvivorSignature, RevealedShares)
Ask = Callable[[Mapping[int, Any], Mapping[int, Any], type], Iterator[tuple[int, Any, memoryview]]]
"""Sends requests to sites: from heads, contents and the type of the expected replies to (party,
head, body), as they arrive.
"""
EXPERIMENTAL = (
    "Secure aggregation is experimental: nobody outside of the project has reviewed it, so do not"
    " rely on it alone."
)


@record
class StoredSum:
    """A sum on the server's disk."""

    request: str
    """A digest of the requests that it came from."""
    total: Any
    weight: float
    heard: list[int]
    results: dict[int, tuple[int, bool, str, str, str]]
    """By party: steps, keeps, ruined, unfit, warning."""
    overhead: list[tuple[int, bool, int]]


class SumFiles:
    """Stored sums in a folder, one file for each call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, call: CallId, request: str, records: frozenset[type]) -> StoredSum | None:
        """The sum of a call, if it came from the same requests."""
        try:
            stored = decode(self._path(call).read_bytes(), records=records | {StoredSum})
        except (OSError, ComityError):
            return None
        return stored if isinstance(stored, StoredSum) and stored.request == request else None

    def write(self, call: CallId, stored: StoredSum) -> None:
        """Store the sum of a call; it is on the disk when this returns."""
        self._folder.mkdir(exist_ok=True)
        new = self._folder / "new"
        new.write_bytes(encode(stored))
        flush_to_disk(new)
        os.replace(new, self._path(call))

    def forget(self) -> None:
        """Delete all sums: a checkpoint contains them."""
        for path in self._folder.glob("*") if self._folder.exists() else ():
            path.unlink()

    def _path(self, call: CallId) -> Path:
        return self._folder / blake2b(repr(call).encode(), digest_size=16).hexdigest()


class Limits(NamedTuple):
    """The terms that all sites of a run accept."""

    threshold: int
    colluders: int


class Summed(NamedTuple):
    """The results of the sites, without their replies, and the sum of the replies, if there is
    one.
    """

    results: dict[int, PartyResult]
    total: PartialSum | None


@dataclass
class SecureSums:
    """The server in all secure aggregation of a run.

    Arguments:
        run: what the server and all sites know of the run
        limits: the threshold and the number of colluders
        names: the names of all parties, by number
        validators: validate the replies of each party
        files: the sums that no checkpoint contains
        ask: sends requests to sites
        warn: is told what is wrong with the message of a party, or, with None, with the round
    """

    run: SecureRun
    limits: Limits
    names: tuple[str, ...]
    validators: list[MessageValidator]
    files: SumFiles
    ask: Ask
    warn: Callable[[int | None, str], None]
    overhead: list[Overhead] = field(default_factory=list)

    def sum(
        self, call: CallId, messages: Mapping[int, Message], weights: Mapping[int, float]
    ) -> Summed:
        """Call the parties that have a weight, and add up their replies."""
        by_samples = self._by_samples(weights)
        heads = {
            i: SecureCall(
                self.run.run,
                (call.function, call.depth, call.round, call.occurrence),
                call_name(messages[i].after),
                messages[i].first,
                self.limits.threshold,
                self.limits.colluders,
                by_samples,
            )
            for i in weights
        }
        contents = {i: messages[i].content for i in weights}
        kind = averaged_type(self.validators[0].algorithm, call.depth, call.function)
        if kind is None:
            raise ComityError(f"The replies to {call.function} cannot be averaged securely.")
        request = _digest_of(heads, contents)
        if stored := self.files.read(call, request, self.validators[0].records):
            self.overhead += [Overhead(*item) for item in stored.overhead]
            results = {i: _result(stored.total, values) for i, values in stored.results.items()}
            return Summed(results, PartialSum(stored.total, stored.weight, stored.heard))
        exchange = _Exchange(self, call, kind)
        try:
            total = exchange.sum(heads, contents)
        except SecureAggregationError as why:
            self.warn(None, str(why))
            return Summed(exchange.unusable, None)
        results = exchange.results(total.heard) | exchange.unusable
        self.files.write(
            call,
            StoredSum(
                request,
                total.total,
                total.weight,
                total.heard,
                {
                    i: (r.steps, r.keeps, r.ruined, r.unfit or "", r.warning)
                    for i, r in results.items()
                },
                [(item.party, item.from_party, item.bytes) for item in self.overhead],
            ),
        )
        return Summed(results, total)

    def _by_samples(self, weights: Mapping[int, float]) -> bool:
        """Whether replies are weighted by the numbers of training samples. Sites accept no other
        weights, because with weights of the server's choice a mean could be a single reply.
        """
        if self.run.noise:
            return False  # the noise hides a site only if all count alike
        for by_samples in (False, True):
            weight_of = self.run.weights(by_samples)
            if all(weight == weight_of.get(self.names[i]) for i, weight in weights.items()):
                return by_samples
        raise ComityError(
            "Secure aggregation weights replies by numbers of training samples, or equally: this"
            " method has other weights."
        )


class _Exchange:
    """One call, step by step."""

    def __init__(self, sums: SecureSums, call: CallId, kind: type) -> None:
        self.unusable: dict[int, PartyResult] = {}
        """The results of sites whose reply or state is not finite."""
        self._sums = sums
        self._call = call
        self._kind = kind
        self._prepared: dict[int, Prepared] = {}
        self._tensors: dict[str, list[int]] = {}

    def results(self, parties: list[int]) -> dict[int, PartyResult]:
        """The results of parties whose replies are in the sum, with meta tensors as replies."""
        reply = meta_reply(self._kind, self._tensors)
        return {i: _result(reply, _values(self._prepared[i])) for i in parties}

    def sum(self, heads: Mapping[int, SecureCall], contents: Mapping[int, Any]) -> PartialSum:
        """All steps."""
        sums = self._sums
        keys = self._first_step(heads, contents)
        first = next(iter(heads))
        terms = self._common_terms(keys, heads[first], encode(contents[first]))
        server = ServerRound(terms)
        roster_keys = server.collect_keys(keys.values())
        shares = self._step("shares", SiteShares, dict.fromkeys(keys, roster_keys))
        inboxes = server.collect_shares(shares.values())
        numbers = {sums.names[i]: i for i in shares}
        by_party = {numbers[name]: inbox for name, inbox in inboxes.items()}
        in_sum = []
        for i, masked in self._replies("masked", MaskedReply, by_party):
            try:
                server.add_masked(masked)
            except SecureAggregationError as why:
                sums.warn(i, str(why))
                continue
            in_sum.append(i)
        survivors = server.close()
        signed = self._step("signature", SurvivorSignature, dict.fromkeys(in_sum, survivors))
        signatures = server.collect_signatures(signed.values())
        revealed = self._step("reveal", RevealedShares, dict.fromkeys(signed, signatures))
        mean, weight, _ = server.unmask(revealed.values())
        if sums.run.noise:  # the sites have sent the changes of the model
            received = flat_reply(contents[first])
            mean = {name: received[name] + change for name, change in mean.items()}
        total = joined_reply(self._kind, {name: mean[name] * weight for name in self._tensors})
        return PartialSum(total, weight, sorted(in_sum))

    def _first_step(
        self, heads: Mapping[int, SecureCall], contents: Mapping[int, Any]
    ) -> dict[int, SiteKeys]:
        """The keys of all sites that computed a usable reply."""
        sums = self._sums
        keys: dict[int, SiteKeys] = {}
        for i, prepared, body in sums.ask(heads, contents, Prepared):
            try:
                reply = meta_reply(self._kind, prepared.tensors)
                sums.validators[i].check_reply(self._call, reply)
                if prepared.steps < 0:
                    raise ComityError(f"it says that it took {prepared.steps} steps.")
                if prepared.unfit or prepared.ruined:
                    self.unusable[i] = _result(reply, _values(prepared))
                    continue
                keys[i] = self._from_site(i, SiteKeys, body)
            except (ComityError, RuntimeError) as why:  # torch refuses some shapes
                sums.warn(i, str(why))
                continue
            self._prepared[i] = prepared
        return keys

    def _common_terms(self, keys: dict[int, SiteKeys], head: SecureCall, body: bytes) -> Terms:
        """The terms that most sites take part under. Other sites are lost."""
        sums = self._sums
        if not keys:
            raise SecureAggregationError("No site sent keys: the round has no sum.")
        layouts = {i: layout_of(self._prepared[i].tensors) for i in keys}
        layout = Counter(layouts.values()).most_common(1)[0][0]
        terms = sums.run.terms(head, body, layout)
        digest = terms.digest().hex()
        for i in list(keys):
            if layouts[i] != layout or keys[i].terms != digest:
                sums.warn(i, "it takes part in secure aggregation under other terms.")
                del keys[i]
        if keys:  # a reply has its own order of tensors, a layout that of their names
            self._tensors = self._prepared[min(keys)].tensors
        return terms

    def _step(self, step: str, kind: type[S], messages: Mapping[int, Any]) -> dict[int, S]:
        return dict(self._replies(step, kind, messages))

    def _replies(
        self, step: str, kind: type[S], messages: Mapping[int, Any]
    ) -> Iterator[tuple[int, S]]:
        """Ask sites for a step, and yield what they send."""
        sums = self._sums
        call = self._call
        head = SecureStep(
            sums.run.run, (call.function, call.depth, call.round, call.occurrence), step
        )
        sums.overhead += [Overhead(i, False, payload(message)) for i, message in messages.items()]
        for i, _, body in sums.ask(dict.fromkeys(messages, head), messages, Done):
            try:
                message = self._from_site(i, kind, body)
            except ComityError as why:
                sums.warn(i, str(why))
                continue
            yield i, message

    def _from_site(self, i: int, kind: type[S], body: memoryview) -> S:
        """A site's message, which must bear its name."""
        message = from_bytes(kind, bytes(body))
        if message.name != self._sums.names[i]:
            raise SecureAggregationError("it sent a message in the name of another site.")
        self._sums.overhead.append(Overhead(i, True, overhead_of(message)))
        return message


def _values(prepared: Prepared) -> tuple[int, bool, str, str, str]:
    return (
        prepared.steps,
        prepared.keeps,
        prepared.ruined,
        prepared.unfit,
        prepared.warning,
    )


def _result(reply: Any, values: tuple[int, bool, str, str, str]) -> PartyResult:
    """A party's result, with something of the reply's shape in its place."""
    steps, keeps, ruined, unfit, warning = values
    return PartyResult(reply, steps, keeps, ruined, warning, (), unfit)


def _digest_of(heads: Mapping[int, SecureCall], contents: Mapping[int, Any]) -> str:
    """A digest of the requests for a call."""
    digest = blake2b(digest_size=32)
    bodies = {id(content): content for content in contents.values()}
    encoded = {key: encode(content) for key, content in bodies.items()}
    for i in sorted(heads):
        digest.update(encode(heads[i]) + encoded[id(contents[i])])
    return digest.hexdigest()
