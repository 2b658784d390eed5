"""Key exchange between sites: keys are signed by certificates, and a sealed message opens only for
its recipient, sender, run and round.
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
from comity.deploy.key_exchange import Identity, keys_of
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
from comity.deploy.signatures import Signer
from comity.errors import ComityError, UsageError
from comity.runs.run_warnings import warning_texts
from comity.wire.sealing import Lock

NAMES = ("east", "north", "south")
RUN = b"r" * 16


@pytest.fixture(scope="module")
def root() -> Root:
    return Root()


def new_key() -> X25519PrivateKey:
    return X25519PrivateKey.generate()


def assert_refused(identity: Identity, name: str, signed_key: SignedKey, run: str = "run") -> None:
    with pytest.raises(UsageError, match=f"The key that is said to be {name}'s is not"):
        identity.public_key(run, name, signed_key)


def test_valid_signed_key_is_accepted(root: Root) -> None:
    key = new_key()
    public_key = root.identity("north").public_key(
        "run", "east", root.identity("east").signed_key("run", key)
    )
    assert public_key.public_bytes_raw() == key.public_key().public_bytes_raw()


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_rsa_and_ec_certificates(kind: str) -> None:
    """FLARE's certificates are RSA."""
    authority = Root()
    signer: Signer = (
        rsa.generate_private_key(65537, 2048)
        if kind == "rsa"
        else ec.generate_private_key(ec.SECP256R1())
    )
    certificate = authority.certified("east", signer, 10)
    east = Identity(certificate, signer, authority.certificate)
    signed_key = east.signed_key("run", new_key())
    authority.identity("north").public_key("run", "east", signed_key)
    assert_refused(authority.identity("north"), "east", signed_key, run="other")


def test_invalid_signed_keys_are_refused(root: Root) -> None:
    north, east, south = (root.identity(name) for name in ("north", "east", "south"))
    valid_key = east.signed_key("run", new_key())
    north.public_key("run", "east", valid_key)
    assert_refused(north, "east", valid_key, run="another")  # a key of another run
    assert_refused(north, "south", valid_key)  # a key of another site
    assert_refused(north, "south", replace(valid_key, name="south"))
    assert_refused(north, "east", south.signed_key("run", new_key()))
    assert_refused(north, "east", replace(south.signed_key("run", new_key()), name="east"))
    assert_refused(
        north, "east", Root().identity("east").signed_key("run", new_key())
    )  # another root
    other = new_key().public_key().public_bytes_raw().hex()
    assert_refused(
        north, "east", replace(valid_key, public=other)
    )  # a key that was replaced in transit
    assert_refused(
        north, "east", replace(valid_key, signature=south.signed_key("run", new_key()).signature)
    )
    for invalid_text in ("", "zz", valid_key.public[:-2]):
        assert_refused(north, "east", replace(valid_key, public=invalid_text))
        assert_refused(north, "east", replace(valid_key, signature=invalid_text))
    for invalid_text in ("", "no certificate", valid_key.certificate[:200]):
        assert_refused(north, "east", replace(valid_key, certificate=invalid_text))


def test_certificates_outside_their_validity_are_refused(root: Root) -> None:
    assert_refused(
        root.identity("north"), "east", root.identity("east", days=-1).signed_key("run", new_key())
    )
    assert_refused(
        root.identity("north"),
        "east",
        root.identity("east", days=20, since=-5).signed_key("run", new_key()),
    )


def test_invalid_startup_kit_is_refused(tmp_path: Path, root: Root) -> None:
    with pytest.raises(UsageError, match="comity deploy accept makes them"):
        Identity.read(tmp_path)
    east = root.identity("east")
    pem = serialization.Encoding.PEM
    plain = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "client.crt").write_bytes(east.certificate.public_bytes(pem))
    (tmp_path / "rootCA.pem").write_bytes(root.certificate.public_bytes(pem))
    (tmp_path / "client.key").write_bytes(new_key().private_bytes(*plain))
    with pytest.raises(UsageError, match="cannot sign"):
        Identity.read(tmp_path)
    assert isinstance(east.signer, type(root.key))
    (tmp_path / "client.key").write_bytes(east.signer.private_bytes(*plain))
    assert Identity.read(tmp_path).name == "east"


# Sealed messages


class SitesWithKeys:
    """Three sites that have verified each other's signed keys."""

    def __init__(self, root: Root, run: str = "run") -> None:
        keys = {name: new_key() for name in NAMES}
        identities = {name: root.identity(name) for name in NAMES}
        signed_keys = {name: identities[name].signed_key(run, keys[name]) for name in NAMES}
        self.keys = {
            name: keys_of(identities[name], run, keys[name], NAMES, signed_keys) for name in NAMES
        }

    def lock(self, name: str, run: bytes = RUN) -> Lock:
        return Lock(self.keys[name], run)


def seal_and_close(lock: Lock, sender: int, to: int, round: int = 1) -> Sealed[Any]:
    sealed = seal(Model({"w": torch.arange(6.0)}), to=to)
    set_origin(sealed, sender, round)
    encrypted: Sealed[Any] = lock.close(sealed)
    return encrypted


def open_content(lock: Lock, sealed: Sealed[Any], sender: int, to: int, call: CallId) -> Any:
    return unseal(lock.open({to: {sender: sealed}}, call)[to][sender])


CALL = CallId("assist", 0, 1, 0)


def test_sealed_message_opens_for_its_recipient_in_one_call(root: Root) -> None:
    sites = SitesWithKeys(root)
    sealed = seal_and_close(sites.lock("east"), 0, 1)
    lock = sites.lock("north")
    assert torch.equal(open_content(lock, sealed, 0, 1, CALL).theta["w"], torch.arange(6.0))
    open_content(lock, sealed, 0, 1, CALL)  # the same call again, after its reply was lost
    with pytest.raises(ComityError, match="a second time"):
        open_content(lock, sealed, 0, 1, CALL._replace(occurrence=1))


def forge(sealed: Sealed[Any], **changes: Any) -> Sealed[Any]:
    """A sealed message that a server has changed."""
    cipher = replace(unseal(sealed), **changes)
    origin = type(sealed.origin)(cipher.sender, cipher.round)  # type: ignore[misc]
    return Sealed(cipher, sealed.size, tuple(cipher.to), origin)


WRONG_USES: dict[str, Callable[[SitesWithKeys, Sealed[Any]], Any]] = {
    "another recipient": lambda sites, p: open_content(sites.lock("south"), p, 0, 2, CALL),
    "readdressed": lambda sites, p: open_content(sites.lock("south"), forge(p, to=[2]), 0, 2, CALL),
    "another round": lambda sites, p: open_content(
        sites.lock("north"), p, 0, 1, CALL._replace(round=2)
    ),
    "replayed": lambda sites, p: open_content(
        sites.lock("north"), forge(p, round=2), 0, 1, CALL._replace(round=2)
    ),
    "another run": lambda sites, p: open_content(sites.lock("north", b"s" * 16), p, 0, 1, CALL),
    "another sender": lambda sites, p: open_content(
        sites.lock("north"), forge(p, sender=2), 2, 1, CALL
    ),
    "another size": lambda sites, p: open_content(
        sites.lock("north"), Sealed(unseal(p), 7, p.to, p.origin), 0, 1, CALL
    ),
    "changed": lambda sites, p: open_content(
        sites.lock("north"), forge(p, blob=unseal(p).blob ^ 1), 0, 1, CALL
    ),
    "other keys": lambda sites, p: open_content(SitesWithKeys(Root()).lock("north"), p, 0, 1, CALL),
    "between others": lambda sites, p: sites.keys["south"](0, 1),
}


@pytest.mark.parametrize("how", WRONG_USES)
def test_sealed_message_does_not_open_in_wrong_use(how: str, root: Root) -> None:
    sites = SitesWithKeys(root)
    with pytest.raises(ComityError):
        WRONG_USES[how](sites, seal_and_close(sites.lock("east"), 0, 1))


def test_sealed_message_does_not_open_with_keys_of_another_start(root: Root) -> None:
    """A restarted site has a new key: messages that were sealed for it before do not open."""
    sealed = seal_and_close(SitesWithKeys(root).lock("east"), 0, 1)
    with pytest.raises(ComityError, match="changed on its way, or is not of this run"):
        open_content(SitesWithKeys(root).lock("north"), sealed, 0, 1, CALL)


# Between sites

USUAL: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 2, "test": "official", "lr": 0.05}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(
        tmp_path_factory.mktemp("sites"), {"north": (31, 12), "east": (23, 9), "south": (26, 11)}
    )


@pytest.fixture(autouse=True)
def _without_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_results, "export", lambda *_: [])
    monkeypatch.setattr(site_results, "report", lambda *_, **__: None)


@pytest.mark.parametrize("method", ["fed-sps", "relay-p2p"])
def test_server_traffic_contains_no_plaintext_of_sealed_messages(
    method: str, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of every sealed tensor are searched for in the server's traffic."""
    plaintexts: list[bytes] = []
    original = Lock._close

    def close(self: Lock, sealed: Sealed[Any]) -> Sealed[Any]:
        floats = [
            leaf
            for leaf in leaves(unseal(sealed))
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        ]
        blobs = [leaf.contiguous().numpy().tobytes() for leaf in floats]
        parts = [blob[at : at + 24] for blob in blobs for at in range(0, len(blob), 24)]
        plaintexts.extend(part for part in parts if len(set(part)) > 12)  # not zeros
        return original(self, sealed)

    monkeypatch.setattr(Lock, "_close", close)
    transport = sites.transport()
    traffic = watched(transport)
    ended(
        sites.run(method, "carried" + "".join(c for c in method if c.isalnum()), transport, **USUAL)
    )
    all_traffic = b"".join(message for _, message in traffic)
    assert len(plaintexts) > 5
    assert not [part for part in plaintexts if part in all_traffic]


def test_key_replaced_by_the_server_is_refused(sites: Sites) -> None:
    """The server cannot sign its key: the sites refuse to begin, and seal nothing for it."""
    server_key = new_key().public_key().public_bytes_raw().hex()
    transport = sites.transport(server=None)
    original = transport.ask

    def ask(requests: Any, seconds: float) -> Any:
        forged_requests = {}
        for name, request in requests.items():
            head, body = unpack(request, REQUESTS, 1 << 30)
            if isinstance(head, Begin):
                forged_keys = {
                    who: replace(signed_key, public=server_key) if who == "east" else signed_key
                    for who, signed_key in head.signed_keys.items()
                }
                head = replace(head, signed_keys=forged_keys)
            forged_requests[name] = pack(head, body)
        return original(forged_requests, seconds)

    transport.ask = ask
    folder = sites.run("fed-sps", "swapped", transport, **USUAL)
    why = (folder / FAILURE).read_text()
    assert "The key that is said to be east's is not" in why


def test_keys_withheld_by_the_server_prevent_sealing(sites: Sites) -> None:
    """Nothing can be sealed for a site without a key, and no site sends its messages unsealed."""
    transport = sites.transport(server=None)
    traffic = watched(transport)
    original = transport.ask

    def ask(requests: Any, seconds: float) -> Any:
        forged_requests = {}
        for name, request in requests.items():
            head, body = unpack(request, REQUESTS, 1 << 30)
            forged_requests[name] = (
                pack(replace(head, signed_keys={}), body) if isinstance(head, Begin) else request
            )
        return original(forged_requests, seconds)

    transport.ask = ask
    folder = sites.run("fed-sps", "withheld", transport, **USUAL)
    refusals = [
        unpack(message, REPLIES, 1 << 30)[0] for _, message in traffic if _is_answer(message)
    ]
    assert any(
        isinstance(reply, Failed) and "There is no key of" in reply.why for reply in refusals
    )
    assert not (folder / "summary.json").exists() or ended(folder)["discarded"]


def _is_answer(message: bytes) -> bool:
    try:
        unpack(message, REPLIES, 1 << 30)
    except ComityError:
        return False
    return True


def test_sealed_message_replayed_in_another_round_is_refused(sites: Sites) -> None:
    """A server delivers a sealed message again in the next round; its recipient refuses it."""
    transport = sites.transport(server=None)
    original = transport.ask
    first_inboxes: dict[str, Any] = {}

    def ask(requests: Any, seconds: float) -> Any:
        forged_requests = {}
        for name, request in requests.items():
            head, body = unpack(request, REQUESTS, 1 << 30)
            if isinstance(head, RunCall) and head.inbox:
                old = first_inboxes.setdefault(name, head.inbox)
                head = replace(head, inbox=old) if name == "north" else head
            forged_requests[name] = pack(head, body)
        return original(forged_requests, seconds)

    transport.ask = ask
    summary = ended(sites.run("fed-sps", "replays", transport, **USUAL))
    assert any(
        text.startswith("north was not heard in round") and "sealed message" in text
        for text in warning_texts(summary, "during")
    )


def test_sealed_message_of_an_undeclared_type_is_refused(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site seals a value of a type that the method does not declare; recipients refuse it and
    name the sender.
    """
    original = Lock._close

    def close(self: Lock, sealed: Sealed[Any]) -> Sealed[Any]:
        if sealed.origin and sealed.origin.sender == 0 and isinstance(unseal(sealed), Model):
            other_content = Cipher(0, 0, [], torch.zeros(0), torch.zeros(sealed.size // 4 - 2))
            return original(self, Sealed(other_content, sealed.size, sealed.to, sealed.origin))
        return original(self, sealed)

    monkeypatch.setattr(Lock, "_close", close)
    summary = ended(sites.run("fed-sps", "foreign", **USUAL))
    assert any(
        "A sealed message of east is refused" in text for text in warning_texts(summary, "during")
    )


def test_sealing_needs_certificates(tmp_path: Path) -> None:
    sites_without_certificates = Sites(tmp_path, {"north": (31, 12), "east": (23, 9)})
    transport = sites_without_certificates.transport(server=None)
    for handler in transport.desks.values():
        handler._identity = None
    summary = ended(sites_without_certificates.run("fedavg", "open", transport, **USUAL))
    assert summary["absent"] == {}
    folder = sites_without_certificates.run("fed-sps", "sealed", transport, **USUAL)
    reason = (
        (folder / FAILURE).read_text()
        if (folder / FAILURE).exists()
        else str(warning_texts(ended(folder), "during"))
    )
    assert "Without certificates no message can be sealed between sites." in reason


def test_traffic_contains_no_secret_of_a_site(sites: Sites) -> None:
    transport = sites.transport(server=None)
    traffic = watched(transport)
    ended(sites.run("fedavg", "public", transport, **USUAL))
    secrets = [(sites.site(name) / "secret").read_bytes() for name in sites.names]
    all_traffic = b"".join(message for _, message in traffic)
    assert not any(
        secret in all_traffic or secret.hex().encode() in all_traffic for secret in secrets
    )
    assert (
        sum(
            isinstance(unpack(m, REPLIES, 1 << 30)[0], Introduced)
            for _, m in traffic
            if _is_answer(m)
        )
        == 3
    )
