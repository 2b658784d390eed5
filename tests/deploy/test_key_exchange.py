"""Keys for parcels between sites: whose they are is proven, and a parcel opens where, when and for
whom it was meant only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from in_process_sites import Root, Sites, ended, watched

from comity.base.call import CallId
from comity.base.record import Cipher, Model, Sealed, leaves, seal, set_origin, unseal
from comity.deploy import site_results
from comity.deploy.key_exchange import Identity, Signer, keys_of
from comity.deploy.messages import (
    REPLIES,
    REQUESTS,
    Begin,
    Failed,
    Introduced,
    RunCall,
    SignedKey,
    pack,
    unpack,
)
from comity.deploy.server import FAILURE
from comity.errors import ComityError, UsageError
from comity.runs.run_warnings import warning_texts
from comity.wire.sealing import Lock

NAMES = ("east", "north", "south")
RUN = b"r" * 16


@pytest.fixture(scope="module")
def root() -> Root:
    return Root()


def own_key() -> X25519PrivateKey:
    return X25519PrivateKey.generate()


def refused(identity: Identity, name: str, signed_key: SignedKey, run: str = "run") -> None:
    with pytest.raises(UsageError, match=f"The key that is said to be {name}'s is not"):
        identity.public_key(run, name, signed_key)


def test_a_passport_that_is_what_it_should_be(root: Root) -> None:
    key = own_key()
    found = root.identity("north").public_key(
        "run", "east", root.identity("east").signed_key("run", key)
    )
    assert found.public_bytes_raw() == key.public_key().public_bytes_raw()


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_certificates_of_every_kind_that_kits_have(kind: str) -> None:
    """FLARE's are RSA."""
    made = Root()
    signer: Signer = (
        rsa.generate_private_key(65537, 2048)
        if kind == "rsa"
        else ec.generate_private_key(ec.SECP256R1())
    )
    certificate = made.certified("east", signer, 10)
    east = Identity(certificate, signer, made.certificate)
    signed_key = east.signed_key("run", own_key())
    made.identity("north").public_key("run", "east", signed_key)
    refused(made.identity("north"), "east", signed_key, run="other")


def test_passports_that_are_refused(root: Root) -> None:
    north, east, south = (root.identity(name) for name in ("north", "east", "south"))
    right = east.signed_key("run", own_key())
    north.public_key("run", "east", right)
    refused(north, "east", right, run="another")  # of another run
    refused(north, "south", right)  # another's name
    refused(north, "south", replace(right, name="south"))
    refused(north, "east", south.signed_key("run", own_key()))
    refused(north, "east", replace(south.signed_key("run", own_key()), name="east"))
    refused(north, "east", Root().identity("east").signed_key("run", own_key()))  # another root
    other = own_key().public_key().public_bytes_raw().hex()
    refused(north, "east", replace(right, public=other))  # a key that somebody put in on the way
    refused(north, "east", replace(right, signature=south.signed_key("run", own_key()).signature))
    for broken in ("", "zz", right.public[:-2]):
        refused(north, "east", replace(right, public=broken))
        refused(north, "east", replace(right, signature=broken))
    for broken in ("", "no certificate", right.certificate[:200]):
        refused(north, "east", replace(right, certificate=broken))


def test_a_certificate_that_has_expired_or_is_not_valid_yet(root: Root) -> None:
    refused(
        root.identity("north"), "east", root.identity("east", days=-1).signed_key("run", own_key())
    )
    refused(
        root.identity("north"),
        "east",
        root.identity("east", days=20, since=-5).signed_key("run", own_key()),
    )


def test_a_kit_that_cannot_be_read(tmp_path: Path, root: Root) -> None:
    with pytest.raises(UsageError, match="comity deploy accept makes them"):
        Identity.read(tmp_path)
    east = root.identity("east")
    pem = serialization.Encoding.PEM
    plain = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "client.crt").write_bytes(east.certificate.public_bytes(pem))
    (tmp_path / "rootCA.pem").write_bytes(root.certificate.public_bytes(pem))
    (tmp_path / "client.key").write_bytes(own_key().private_bytes(*plain))
    with pytest.raises(UsageError, match="cannot sign"):
        Identity.read(tmp_path)
    assert isinstance(east.signer, type(root.key))
    (tmp_path / "client.key").write_bytes(east.signer.private_bytes(*plain))
    assert Identity.read(tmp_path).name == "east"


# Parcels


class Parcels:
    """Three sites that have checked each other's passports."""

    def __init__(self, root: Root, run: str = "run") -> None:
        keys = {name: own_key() for name in NAMES}
        identities = {name: root.identity(name) for name in NAMES}
        signed_keys = {name: identities[name].signed_key(run, keys[name]) for name in NAMES}
        self.keys = {
            name: keys_of(identities[name], run, keys[name], NAMES, signed_keys) for name in NAMES
        }

    def lock(self, name: str, run: bytes = RUN) -> Lock:
        return Lock(self.keys[name], run)


def locked(lock: Lock, sender: int, to: int, round: int = 1) -> Sealed[Any]:
    sealed = seal(Model({"w": torch.arange(6.0)}), to=to)
    set_origin(sealed, sender, round)
    closed: Sealed[Any] = lock.close(sealed)
    return closed


def opened(lock: Lock, sealed: Sealed[Any], sender: int, to: int, call: CallId) -> Any:
    return unseal(lock.open({to: {sender: sealed}}, call)[to][sender])


CALL = CallId("assist", 0, 1, 0)


def test_a_parcel_opens_for_whom_it_is(root: Root) -> None:
    sites = Parcels(root)
    sealed = locked(sites.lock("east"), 0, 1)
    lock = sites.lock("north")
    assert torch.equal(opened(lock, sealed, 0, 1, CALL).theta["w"], torch.arange(6.0))
    opened(lock, sealed, 0, 1, CALL)  # the same call again, whose answer was lost
    with pytest.raises(ComityError, match="a second time"):
        opened(lock, sealed, 0, 1, CALL._replace(occurrence=1))


def readdressed(sealed: Sealed[Any], **changes: Any) -> Sealed[Any]:
    """What a server could make of a parcel."""
    cipher = replace(unseal(sealed), **changes)
    mark = type(sealed.origin)(cipher.sender, cipher.round)  # type: ignore[misc]
    return Sealed(cipher, sealed.size, tuple(cipher.to), mark)


WRONG: dict[str, Callable[[Parcels, Sealed[Any]], Any]] = {
    "another recipient": lambda sites, p: opened(sites.lock("south"), p, 0, 2, CALL),
    "readdressed": lambda sites, p: opened(sites.lock("south"), readdressed(p, to=[2]), 0, 2, CALL),
    "another round": lambda sites, p: opened(sites.lock("north"), p, 0, 1, CALL._replace(round=2)),
    "replayed": lambda sites, p: opened(
        sites.lock("north"), readdressed(p, round=2), 0, 1, CALL._replace(round=2)
    ),
    "another run": lambda sites, p: opened(sites.lock("north", b"s" * 16), p, 0, 1, CALL),
    "another sender": lambda sites, p: opened(
        sites.lock("north"), readdressed(p, sender=2), 2, 1, CALL
    ),
    "another size": lambda sites, p: opened(
        sites.lock("north"), Sealed(unseal(p), 7, p.to, p.origin), 0, 1, CALL
    ),
    "changed": lambda sites, p: opened(
        sites.lock("north"), readdressed(p, blob=unseal(p).blob ^ 1), 0, 1, CALL
    ),
    "other keys": lambda sites, p: opened(Parcels(Root()).lock("north"), p, 0, 1, CALL),
    "between others": lambda sites, p: sites.keys["south"](0, 1),
}


@pytest.mark.parametrize("how", WRONG)
def test_parcels_that_do_not_open(how: str, root: Root) -> None:
    sites = Parcels(root)
    with pytest.raises(ComityError):
        WRONG[how](sites, locked(sites.lock("east"), 0, 1))


def test_the_same_run_name_with_other_keys(root: Root) -> None:
    """A site that came back has another key: what was sealed for it before does not open any more."""
    sealed = locked(Parcels(root).lock("east"), 0, 1)
    with pytest.raises(ComityError, match="changed on its way, or is not of this run"):
        opened(Parcels(root).lock("north"), sealed, 0, 1, CALL)


# Between sites

USUAL: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official", "lr": 0.05}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(
        tmp_path_factory.mktemp("sites"), {"north": (31, 12), "east": (23, 9), "south": (26, 11)}
    )


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.mark.parametrize("method", ["fed-sps", "relay-p2p"])
def test_what_is_in_parcels_is_not_in_what_the_server_carries(
    method: str, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tensor that was sealed is known here, and looked for as it lies in memory."""
    inside: list[bytes] = []
    right = Lock._close

    def close(self: Lock, sealed: Sealed[Any]) -> Sealed[Any]:
        floats = [
            leaf
            for leaf in leaves(unseal(sealed))
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        ]
        blobs = [leaf.contiguous().numpy().tobytes() for leaf in floats]
        parts = [blob[at : at + 24] for blob in blobs for at in range(0, len(blob), 24)]
        inside.extend(part for part in parts if len(set(part)) > 12)  # not zeros
        return right(self, sealed)

    monkeypatch.setattr(Lock, "_close", close)
    transport = sites.transport()
    seen = watched(transport)
    ended(
        sites.run(method, "carried" + "".join(c for c in method if c.isalnum()), transport, **USUAL)
    )
    carried = b"".join(message for _, message in seen)
    assert len(inside) > 5
    assert not [part for part in inside if part in carried]


def test_a_server_that_puts_in_a_key_of_its_own(sites: Sites) -> None:
    """It cannot sign it: the sites refuse to begin, and nothing is sealed for it."""
    mine = own_key().public_key().public_bytes_raw().hex()
    transport = sites.transport(server=None)
    original = transport.ask

    def ask(requests: Any, seconds: float) -> Any:
        changed = {}
        for name, request in requests.items():
            head, body = unpack(request, REQUESTS, 1 << 30)
            if isinstance(head, Begin):
                swapped = {
                    who: replace(one, public=mine) if who == "east" else one
                    for who, one in head.signed_keys.items()
                }
                head = replace(head, signed_keys=swapped)
            changed[name] = pack(head, body)
        return original(changed, seconds)

    transport.ask = ask
    folder = sites.run("fed-sps", "swapped", transport, **USUAL)
    why = (folder / FAILURE).read_text()
    assert "The key that is said to be east's is not" in why


def test_a_server_that_withholds_keys(sites: Sites) -> None:
    """Then nothing can be sealed for that site, and nobody sends it in the open."""
    transport = sites.transport(server=None)
    seen = watched(transport)
    original = transport.ask

    def ask(requests: Any, seconds: float) -> Any:
        changed = {}
        for name, request in requests.items():
            head, body = unpack(request, REQUESTS, 1 << 30)
            changed[name] = (
                pack(replace(head, signed_keys={}), body) if isinstance(head, Begin) else request
            )
        return original(changed, seconds)

    transport.ask = ask
    folder = sites.run("fed-sps", "withheld", transport, **USUAL)
    refusals = [unpack(message, REPLIES, 1 << 30)[0] for _, message in seen if _is_answer(message)]
    assert any(isinstance(one, Failed) and "There is no key of" in one.why for one in refusals)
    assert not (folder / "summary.json").exists() or ended(folder)["discarded"]


def _is_answer(message: bytes) -> bool:
    try:
        unpack(message, REPLIES, 1 << 30)
    except ComityError:
        return False
    return True


def test_a_parcel_of_another_round_between_sites(sites: Sites) -> None:
    """A server that keeps a parcel, and delivers it again in the next round, is refused by its
    recipient.
    """
    transport = sites.transport(server=None)
    original = transport.ask
    kept: dict[str, Any] = {}

    def ask(requests: Any, seconds: float) -> Any:
        changed = {}
        for name, request in requests.items():
            head, body = unpack(request, REQUESTS, 1 << 30)
            if isinstance(head, RunCall) and head.inbox:
                old = kept.setdefault(name, head.inbox)
                head = replace(head, inbox=old) if name == "north" else head
            changed[name] = pack(head, body)
        return original(changed, seconds)

    transport.ask = ask
    summary = ended(sites.run("fed-sps", "replays", transport, **USUAL))
    assert any(
        text.startswith("north was not heard in round") and "sealed message" in text
        for text in warning_texts(summary, "during")
    )


def test_a_parcel_that_holds_something_else(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site seals what no work of the method declares: its recipients refuse it and say whose it
    was.
    """
    right = Lock._close

    def close(self: Lock, sealed: Sealed[Any]) -> Sealed[Any]:
        if sealed.origin and sealed.origin.sender == 0 and isinstance(unseal(sealed), Model):
            foreign = Cipher(0, 0, [], torch.zeros(0), torch.zeros(sealed.size // 4 - 2))
            return right(self, Sealed(foreign, sealed.size, sealed.to, sealed.origin))
        return right(self, sealed)

    monkeypatch.setattr(Lock, "_close", close)
    summary = ended(sites.run("fed-sps", "foreign", **USUAL))
    assert any(
        "A sealed message of east is refused" in text for text in warning_texts(summary, "during")
    )


def test_without_certificates_nothing_is_sealed(tmp_path: Path) -> None:
    plain = Sites(tmp_path, {"north": (31, 12), "east": (23, 9)})
    transport = plain.transport(server=None)
    for handler in transport.desks.values():
        handler._identity = None
    summary = ended(plain.run("fedavg", "open", transport, **USUAL))
    assert summary["absent"] == {}
    folder = plain.run("fed-sps", "sealed", transport, **USUAL)
    told = (
        (folder / FAILURE).read_text()
        if (folder / FAILURE).exists()
        else str(warning_texts(ended(folder), "during"))
    )
    assert "Without certificates no message can be sealed between sites." in told


def test_introductions_hold_nothing_but_public_halves(sites: Sites) -> None:
    transport = sites.transport(server=None)
    seen = watched(transport)
    ended(sites.run("fedavg", "public", transport, **USUAL))
    secrets = [(sites.site(name) / "secret").read_bytes() for name in sites.names]
    carried = b"".join(message for _, message in seen)
    assert not any(secret in carried or secret.hex().encode() in carried for secret in secrets)
    assert (
        sum(
            isinstance(unpack(m, REPLIES, 1 << 30)[0], Introduced) for _, m in seen if _is_answer(m)
        )
        == 3
    )
