"""A malicious server in a run with secure aggregation: it tries to get a single reply, or a sum of
too few, from real request handlers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from in_process_sites import HUB, Handed, Sites
from malicious_server import Refused, weights

from comity.base.record import Model, Params
from comity.deploy.data import site_settings
from comity.deploy.handler import RequestHandler
from comity.deploy.messages import (
    REPLIES,
    Begin,
    Failed,
    Introduce,
    Introduced,
    Prepared,
    RunCall,
    SecureCall,
    SecureStep,
    pack,
    unpack,
)
from comity.deploy.secure_terms import SecureRun, layout_of
from comity.deploy.session import AuthenticatedTransport
from comity.privacy.secagg import (
    Inbox,
    MaskedReply,
    RevealedShares,
    RosterKeys,
    ServerRound,
    Signatures,
    SiteKeys,
    SiteShares,
    Survivors,
    SurvivorSignature,
    from_bytes,
)
from comity.runs import config
from comity.wire.codec import encode

MOST = 1 << 30
SIZES = {"east": (23, 9), "north": (31, 12), "south": (26, 7), "west": (40, 9)}
THRESHOLD, COLLUDERS = 3, 1
SETTINGS: dict[str, Any] = {
    "algorithm": "fedavg", "data": "sites", "partition": "natural", "model": "linear",
    "rounds": 3, "batch": 16, "test": "official", "secure_aggregation": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"), SIZES)


class Attack:
    """A server that has begun a run at all sites, and sends each of them what it likes.

    Arguments:
        sites: the federation
        run: the name of the run
        settings: other settings than the usual ones, by site
    """

    def __init__(
        self, sites: Sites, run: str, settings: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.run = run
        self.handlers: dict[str, RequestHandler] = {n: sites.handler(n) for n in sites.names}
        self.session = AuthenticatedTransport(Handed(self.handlers), sites.root.identity(HUB), run)
        self.described: dict[str, Introduced] = {}
        experiment = site_settings(config.experiment(SETTINGS))
        for name in sites.names:
            changed = experiment.but(**(settings or {}).get(name, {}))
            content = json.dumps(changed.model_dump(mode="json", exclude_none=True))
            head, _ = self.send(name, Introduce(run, content, version("comity"), ""))
            self.described[name] = head
        self.experiment = experiment
        self.parties = {name: site.said for name, site in self.described.items()}
        self.signed_keys = {n: s.signed_key for n, s in self.described.items() if s.signed_key}
        self.round = 1

    def begin(self, parties: Mapping[str, Mapping[str, Any]] | None = None) -> Attack:
        """Begin the run, with another table of parties for some sites."""
        for name in self.handlers:
            table = dict(self.parties)
            for other, change in (parties or {}).get(name, {}).items():
                table[other] = replace(table[other], **change)
            self.send(name, Begin(self.run, table, self.signed_keys))
        return self

    def send(self, name: str, head: Any, body: bytes = b"") -> tuple[Any, bytes]:
        """Send a request to a site. Raises `Refused`."""
        [(_, packed)] = self.session.ask({name: pack(head, body)}, 1.0)
        assert packed is not None
        answer, reply = unpack(packed, REPLIES, MOST)
        if isinstance(answer, Failed):
            raise Refused(answer.why)
        return answer, reply

    def call(self, theta: Params | None = None, **changes: Any) -> tuple[SecureCall, bytes]:
        head = SecureCall(
            self.run, ("local", 0, self.round, 0), None, False, THRESHOLD, COLLUDERS, True
        )
        return replace(head, **changes), encode(Model(theta or weights(0.0)))

    def keys(self, theta: Params | None = None, **changes: Any) -> RosterKeys:
        """Step 1 at all sites."""
        head, body = self.call(theta, **changes)
        return RosterKeys([self.key(name, head, body) for name in self.handlers])

    def key(self, name: str, head: SecureCall, body: bytes) -> SiteKeys:
        prepared, reply = self.send(name, head, body)
        assert isinstance(prepared, Prepared)
        self.tensors = prepared.tensors
        return from_bytes(SiteKeys, reply)

    def step(self, name: str, step: str, message: Any, kind: type) -> Any:
        head = SecureStep(self.run, ("local", 0, self.round, 0), step)
        return from_bytes(kind, self.send(name, head, encode(message))[1])

    def server(self) -> ServerRound:
        """The server's side of the round, with the terms that honest sites have."""
        secure = SecureRun(self.run, self.experiment, self.parties, tuple(sorted(self.handlers)))
        head, body = self.call()
        return ServerRound(secure.terms(head, body, layout_of(self.tensors)))

    def inboxes(self) -> tuple[ServerRound, dict[str, Inbox]]:
        """Steps 1 and 2 at all sites."""
        keys = self.keys()
        server = self.server()
        roster = server.collect_keys(keys.keys)
        shares = [self.step(name, "shares", roster, SiteShares) for name in self.handlers]
        return server, server.collect_shares(shares)

    def masked(self) -> ServerRound:
        """Steps 1 to 3 at all sites."""
        server, inboxes = self.inboxes()
        for name, inbox in inboxes.items():
            server.add_masked(self.step(name, "masked", inbox, MaskedReply))
        return server


def test_an_honest_round_gives_the_mean(sites: Sites) -> None:
    """Otherwise the refusals of the other tests would prove nothing."""
    attack = Attack(sites, "honest").begin()
    server = attack.masked()
    survivors = server.close()
    signed = [
        attack.step(name, "signature", survivors, SurvivorSignature) for name in attack.handlers
    ]
    signatures = server.collect_signatures(signed)
    revealed = [attack.step(name, "reveal", signatures, RevealedShares) for name in attack.handlers]
    total = server.unmask(revealed)
    assert total.survivors == sites.names
    assert total.weight == pytest.approx(sum(attack.parties[n].train for n in sites.names))


def test_a_call_in_the_clear_is_refused(sites: Sites) -> None:
    attack = Attack(sites, "clear").begin()
    head = RunCall("clear", ("local", 0, 1, 0), None, False, {})
    with pytest.raises(Refused, match="north answers local through secure aggregation only"):
        attack.send("north", head, encode(Model(weights(0.0))))


def test_secure_steps_in_a_run_without_them_are_refused(sites: Sites) -> None:
    changes = {name: {"secure_aggregation": False} for name in sites.names}
    attack = Attack(sites, "without", changes).begin()
    head, body = attack.call()
    with pytest.raises(Refused, match="are not averaged"):
        attack.send("north", head, body)
    with pytest.raises(Refused, match="takes no part in secure aggregation"):
        attack.step("north", "shares", RosterKeys([]), SiteShares)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": 2}, "must be from 3 to 4, not 2"),
        ({"threshold": 3, "colluders": 0}, "withstands at least 1 colluders, not 0"),
        ({"threshold": 2, "colluders": -3}, "colluders must be a number from 0 on"),
    ],
)
def test_weak_terms_are_refused_before_anything_is_computed(
    changes: dict[str, Any], why: str, sites: Sites
) -> None:
    run = "weak" + "".join(str(abs(value)) for value in changes.values())
    attack = Attack(sites, run).begin()
    head, body = attack.call(**changes)
    with pytest.raises(Refused, match=why):
        attack.send("north", head, body)
    assert "local" not in (sites.site("north") / "runs" / run / "steps.csv").read_text()


def test_a_threshold_below_the_policys_share_is_refused(sites: Sites) -> None:
    attack = Attack(sites, "share").begin()
    sites.change("north", {"threshold = 0.5": "threshold = 1.0"})
    try:
        head, body = attack.call()
        with pytest.raises(Refused, match="threshold of at least 4, not 3"):
            attack.send("north", head, body)
    finally:
        sites.change("north", {"threshold = 1.0": "threshold = 0.5"})


@pytest.mark.parametrize("what", ["model", "first", "weights", "settings", "sizes"])
def test_sites_that_are_told_different_things_refuse_each_other(what: str, sites: Sites) -> None:
    """North would be singled out if the replies of the others were known, or had no weight."""
    settings = {"north": {"lr": 0.5}} if what == "settings" else None
    sizes = {"north": {"east": {"train": 1}}} if what == "sizes" else None
    attack = Attack(sites, f"told{what}", settings).begin(sizes)
    usual = attack.call()
    special = {
        "model": lambda: attack.call(weights(1.0)),
        "first": lambda: attack.call(first=True),
        "weights": lambda: attack.call(by_samples=False),
    }.get(what, attack.call)()
    keys = {
        name: attack.key(name, *(special if name == "north" else usual)) for name in attack.handlers
    }
    roster = RosterKeys(list(keys.values()))
    for name in attack.handlers:
        with pytest.raises(Refused, match="takes part under other terms"):
            attack.step(name, "shares", roster, SiteShares)


@pytest.mark.parametrize("what", ["mask_key", "cipher_key", "another site"])
def test_a_swapped_key_is_refused(what: str, sites: Sites) -> None:
    attack = Attack(sites, f"swapped{what[:4]}").begin()
    keys = {keys.name: keys for keys in attack.keys().keys}
    forged = (
        replace(keys["south"], name="east")
        if what == "another site"
        else replace(keys["east"], **{what: keys["south"].mask_key[::-1]})
    )
    roster = RosterKeys([forged if name == "east" else keys[name] for name in keys])
    for name in attack.handlers:
        why = "does not have those that east sent" if name == "east" else "not signed by it"
        with pytest.raises(Refused, match=why):
            attack.step(name, "shares", roster, SiteShares)


def test_a_site_cannot_be_both_alive_and_lost(sites: Sites) -> None:
    """Some sites would reveal a share of south's self seed, and others one of its mask key."""
    attack = Attack(sites, "both").begin()
    attack.masked()
    alive, lost = Survivors(list(sites.names)), Survivors(["east", "north", "west"])
    lists = {"south": alive, "north": alive, "east": lost, "west": lost}
    signatures = Signatures(
        {
            name: attack.step(name, "signature", lists[name], SurvivorSignature).signature
            for name in lists
        }
    )
    for name in sites.names:
        with pytest.raises(Refused, match="2 sites signed the list of survivors"):
            attack.step(name, "reveal", signatures, RevealedShares)


@pytest.mark.parametrize("step", ["shares", "masked", "signature", "reveal"])
def test_a_step_is_answered_once(step: str, sites: Sites) -> None:
    attack = Attack(sites, f"twice{step}").begin()
    kinds = {"shares": SiteShares, "masked": MaskedReply, "signature": SurvivorSignature}
    messages: dict[str, Any] = {"shares": attack.keys()}
    server = attack.server()
    roster = server.collect_keys(messages["shares"].keys)
    shares = [attack.step(name, "shares", roster, SiteShares) for name in attack.handlers]
    inboxes = server.collect_shares(shares)
    messages["masked"] = inboxes["north"]
    if step != "shares":
        for name, inbox in inboxes.items():
            server.add_masked(attack.step(name, "masked", inbox, MaskedReply))
    if step in ("signature", "reveal"):
        messages["signature"] = server.close()
        signed = [
            attack.step(name, "signature", messages["signature"], SurvivorSignature)
            for name in attack.handlers
        ]
        messages["reveal"] = server.collect_signatures(signed)
    if step == "reveal":
        attack.step("north", "reveal", messages["reveal"], RevealedShares)
    with pytest.raises(Refused, match="out of turn"):
        attack.step("north", step, messages[step], kinds.get(step, RevealedShares))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_second_masked_reply_is_refused(restarted: bool, sites: Sites) -> None:
    """Also with another model, and after a restart of the site and of the server."""
    run = f"second{restarted}"
    attack = Attack(sites, run).begin()
    attack.masked()
    if restarted:
        attack = Attack(sites, run).begin()
    for theta in (None, weights(1.0)):
        head, body = attack.call(theta)
        with pytest.raises(Refused, match="already sent a masked reply for round 1"):
            attack.send("north", head, body)
    attack.round = 2
    assert attack.masked().close().names == sites.names  # the next round goes on


def test_a_replayed_request_is_refused(sites: Sites) -> None:
    attack = Attack(sites, "replayed").begin()
    head, body = attack.call()
    request = attack.session.wrap("north", pack(head, body))
    answer, _ = unpack(attack.handlers["north"].answer(request), REPLIES, MOST)
    assert isinstance(answer, Prepared)
    answer, _ = unpack(attack.handlers["north"].answer(request), REPLIES, MOST)
    assert isinstance(answer, Failed)
    assert "answered once" in answer.why


def test_messages_of_another_round_are_refused(sites: Sites) -> None:
    attack = Attack(sites, "other").begin()
    first_keys = attack.keys()
    _, first_inboxes = attack.inboxes()  # a second attempt at the same call
    attack.round = 2
    attack.keys()
    with pytest.raises(Refused, match="does not have those that north sent"):
        attack.step("north", "shares", first_keys, SiteShares)
    attack.inboxes()
    with pytest.raises(Refused, match="are not: they were changed"):
        attack.step("north", "masked", first_inboxes["north"], MaskedReply)
    attack.round = 1
    with pytest.raises(Refused, match="no secure aggregation of local in round 1 under way"):
        attack.step("north", "masked", first_inboxes["north"], MaskedReply)


@pytest.mark.parametrize("step", ["keys", "", "x" * 1000, "unmask"])
def test_an_unknown_step_is_refused(step: str, sites: Sites) -> None:
    attack = Attack(sites, f"step{len(step)}{step[:1]}").begin()
    attack.keys()
    with pytest.raises(Refused, match="There is no step"):
        attack.step("north", step, Survivors([]), SiteShares)


def test_a_site_without_a_certificate_is_not_on_the_roster(sites: Sites) -> None:
    attack = Attack(sites, "invented")
    attack.parties["ghost"] = attack.parties["east"]
    with pytest.raises(Refused, match="ghost has shown none"):
        attack.begin()


def test_a_site_that_was_not_there_when_the_run_began_is_refused(
    tmp_path: Path,
) -> None:
    sites = Sites(tmp_path, SIZES)
    Attack(sites, "later").begin()
    attack = Attack(sites, "later")
    attack.signed_keys["east"] = sites.root.identity("east").signed_key(
        "later",
        attack.handlers["east"]._run.key,  # type: ignore[union-attr]
    )
    with pytest.raises(Refused, match="east has another key than when this run began"):
        attack.begin()
