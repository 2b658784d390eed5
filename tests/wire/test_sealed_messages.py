"""Sealed messages between parties are bound to recipients, sender, run, round, call and size."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from comity.base.call import CallId
from comity.base.record import Cipher, Origin, open_sealed, set_origin, unseal
from comity.core import Model, Sealed, record, seal
from comity.errors import ComityError, CorruptedFile
from comity.wire.channel import Channel
from comity.wire.codec import decode, encode
from comity.wire.sealing import KEY, LOCKED_KEY, Lock, SharedSecret

pytestmark = pytest.mark.quick

SECRET, RUN = bytes(range(32)), b"a run"
CALL = CallId("local", 0, 3, 0)
THETA = {"w": torch.arange(64.0)}
SENDER, RECIPIENT, SECOND_RECIPIENT = 1, 2, 5


def new_lock(secret: bytes = SECRET, run: bytes = RUN) -> Lock:
    return Lock(SharedSecret(secret), run)


def new_sealed_message(
    content: Any = None,
    to: Any = (RECIPIENT, SECOND_RECIPIENT),
    sender: int = SENDER,
    round: int = CALL.round,
) -> Sealed:
    """A sealed message as it leaves its sender's site."""
    sealed = seal(Model(THETA) if content is None else content, to)
    set_origin([sealed], sender, round)
    return sealed


def open_content(
    sealed: Sealed,
    to: int = RECIPIENT,
    sender: int = SENDER,
    call: CallId = CALL,
    lock: Lock | None = None,
) -> Any:
    return unseal((lock or new_lock()).open({to: {sender: sealed}}, call)[to][sender])


def test_sealed_messages_round_trip():
    lock, (sender_end, receiver_end) = new_lock(), Channel.pair()
    sealed = new_sealed_message()
    sender_end.send(lock.close({"a": sealed, "b": sealed}))
    content = receiver_end.receive()
    assert isinstance(content["a"], Sealed)
    assert content["a"] is content["b"]
    assert (content["a"].size, content["a"].to, content["a"].origin) == (
        256,
        (RECIPIENT, SECOND_RECIPIENT),
        Origin(SENDER, CALL.round),
    )
    assert torch.equal(open_content(content["a"], lock=lock).theta["w"], THETA["w"])
    decoded = decode(
        encode(lock.close([new_sealed_message()]), sealed_messages=True), sealed_messages=True
    )
    assert torch.equal(open_content(decoded[0]).theta["w"], THETA["w"])


def test_only_encrypted_sealed_messages_are_encoded():
    with pytest.raises(ComityError, match="encrypted only"):
        encode(seal(Model(THETA), RECIPIENT))
    with pytest.raises(ComityError, match="encrypted only"):
        encode(seal(Model(THETA), RECIPIENT), sealed_messages=True)
    with pytest.raises(ComityError, match="in a party's reply"):
        new_lock().close(seal(Model(THETA), RECIPIENT))


def test_sealed_message_shows_only_size_recipients_and_origin():
    sealed = seal(Model({"w": torch.full((5,), 1234.5)}), RECIPIENT)
    public = [name for name in dir(sealed) if not name.startswith("_")]
    assert public == ["origin", "size", "to"]
    assert "1234" not in repr(sealed) + str(sealed)
    attempts: list[Callable[[Any], object]] = [
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        vars,
        iter,
        len,
    ]
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt(sealed)


def test_ciphertext_has_no_plaintext_and_is_authenticated():
    plain = THETA["w"].numpy().tobytes()
    for field in ("blob", "keys"):
        sealed = new_lock().close(new_sealed_message())
        numbers = getattr(unseal(sealed), field).view(-1)
        ciphertext = numbers.numpy().tobytes()
        assert not any(plain[k : k + 16] in ciphertext for k in range(0, len(plain) - 16, 8))
        numbers[20] ^= 1
        with pytest.raises(CorruptedFile, match="changed on its way"):
            open_content(sealed)


def test_content_is_encrypted_once_for_all_recipients():
    single, multiple = (
        unseal(new_lock().close(new_sealed_message(to=to))) for to in ([RECIPIENT], range(50))
    )
    assert len(single.blob) == len(multiple.blob)
    assert multiple.keys.shape == (50, LOCKED_KEY)
    for to in (0, 49):
        assert torch.equal(
            open_content(new_lock().close(new_sealed_message(to=range(50))), to).theta["w"],
            THETA["w"],
        )


def test_sealed_message_without_recipients_opens_for_nobody():
    with pytest.raises(ComityError, match="not for"):
        open_content(new_lock().close(new_sealed_message(to=[])))


# --- on every engine


def test_in_process_sealed_message_opens_only_for_recipients():
    assert open_sealed(new_sealed_message(), SENDER, RECIPIENT, CALL).theta is THETA
    with pytest.raises(ComityError, match="not for"):
        open_sealed(new_sealed_message(), SENDER, 3, CALL)


@pytest.mark.parametrize(
    ("sender", "round"), [(SECOND_RECIPIENT, CALL.round), (SENDER, CALL.round + 1)]
)
def test_in_process_sealed_message_is_bound_to_sender_and_round(sender, round):
    with pytest.raises(ComityError, match="another"):
        open_sealed(new_sealed_message(), sender, RECIPIENT, CALL._replace(round=round))


def test_in_process_sealed_message_opens_for_one_call():
    sealed = new_sealed_message()
    for _ in range(2):
        assert open_sealed(sealed, SENDER, RECIPIENT, CALL).theta is THETA
    assert (
        open_sealed(sealed, SENDER, SECOND_RECIPIENT, CALL._replace(occurrence=1)).theta is THETA
    )  # of each recipient
    with pytest.raises(ComityError, match="second time"):
        open_sealed(sealed, SENDER, RECIPIENT, CALL._replace(occurrence=1))


def test_sealed_message_leaves_its_site_once():
    sealed = new_sealed_message()
    set_origin({"again": (sealed,)}, SENDER, CALL.round)
    with pytest.raises(ComityError, match="left its site twice"):
        set_origin([sealed], RECIPIENT, CALL.round)


# --- between processes, where the server may be malicious


def test_sealed_message_opens_only_for_recipients():
    sealed = new_lock().close(new_sealed_message())
    with pytest.raises(ComityError, match="not for"):
        open_content(sealed, to=3)


@pytest.mark.parametrize("as_if", [RECIPIENT, SECOND_RECIPIENT])
def test_server_cannot_change_recipients(as_if):
    """The server writes other recipients, and passes on the key of another recipient."""
    cipher = unseal(new_lock().close(new_sealed_message()))
    for to in ([3, 3], [3, as_if]):
        forged = Sealed(replace(cipher, to=to), 256, tuple(to), Origin(SENDER, CALL.round))
        with pytest.raises(CorruptedFile, match="changed on its way"):
            open_content(forged, to=3)


@pytest.mark.parametrize(
    ("lie", "sender", "round", "size"),
    [
        ("its sender", SECOND_RECIPIENT, CALL.round, 256),
        ("its round", SENDER, CALL.round + 1, 256),
        ("its size", SENDER, CALL.round, 255),
    ],
)
def test_server_cannot_change_sender_round_or_size(lie, sender, round, size):
    cipher = unseal(new_lock().close(new_sealed_message()))
    forged = Sealed(
        replace(cipher, sender=sender, round=round),
        size,
        (RECIPIENT, SECOND_RECIPIENT),
        Origin(sender, round),
    )
    with pytest.raises(CorruptedFile, match="changed on its way"):
        open_content(forged, sender=sender, call=CALL._replace(round=round))


def test_a_carrier_cannot_return_it_to_its_sender():
    """Both directions have one key, and an answer must not be what was sent."""
    cipher = unseal(new_lock().close(new_sealed_message()))
    place = cipher.to.index(RECIPIENT)
    reflected = replace(cipher, sender=RECIPIENT, to=[SENDER], keys=cipher.keys[place : place + 1])
    forged = Sealed(reflected, 256, (SENDER,), Origin(RECIPIENT, CALL.round))
    with pytest.raises(CorruptedFile, match="changed on its way"):
        open_content(forged, to=SENDER, sender=RECIPIENT)


def test_sealed_message_is_bound_to_sender_and_round():
    with pytest.raises(ComityError, match="another round"):
        open_content(new_lock().close(new_sealed_message()), call=CALL._replace(round=4))
    with pytest.raises(ComityError, match="another party"):
        open_content(new_lock().close(new_sealed_message()), sender=SECOND_RECIPIENT)


@pytest.mark.parametrize("other", [new_lock(run=b"another"), new_lock(secret=bytes(32))])
def test_sealed_message_is_bound_to_its_run(other):
    with pytest.raises(CorruptedFile, match="changed on its way, or is not of this run"):
        open_content(new_lock().close(new_sealed_message()), lock=other)


def test_sealed_message_opens_for_one_call_also_when_repeated():
    lock = new_lock()
    sealed = lock.close(new_sealed_message())
    for _ in range(3):
        assert torch.equal(open_content(sealed, lock=lock).theta["w"], THETA["w"])
    for other in (
        CALL._replace(occurrence=1),
        CALL._replace(function="another"),
        CALL._replace(depth=1),
    ):
        with pytest.raises(ComityError, match="second time"):
            open_content(sealed, lock=lock, call=other)
    assert open_content(
        sealed, to=SECOND_RECIPIENT, lock=lock, call=CALL._replace(occurrence=1)
    )  # the first call of the other recipient
    forged = Sealed(
        replace(unseal(sealed), to=[RECIPIENT]), 256, (RECIPIENT,), sealed.origin
    )  # another object, the same sealed message
    with pytest.raises(CorruptedFile, match="not encrypted as it should be"):
        open_content(forged, lock=lock, call=CALL._replace(occurrence=1))
    forged = Sealed(
        replace(unseal(sealed), to=[RECIPIENT], keys=unseal(sealed).keys[:1]),
        256,
        (RECIPIENT,),
        sealed.origin,
    )
    with pytest.raises(ComityError, match="second time"):
        open_content(forged, lock=lock, call=CALL._replace(occurrence=1))


def test_server_cannot_return_to_an_earlier_round():
    """A lock remembers the messages that it opened for one round."""
    lock = new_lock()
    old, new = lock.close(new_sealed_message()), lock.close(new_sealed_message(round=4))
    open_content(old, lock=lock)
    open_content(new, lock=lock, call=CALL._replace(round=4))
    with pytest.raises(ComityError, match="round 3 came after"):
        open_content(old, lock=lock, call=CALL._replace(occurrence=1))


def test_sender_cannot_claim_a_wrong_size():
    cheap = seal(Model(THETA), RECIPIENT)
    cheap.size = 4
    set_origin(cheap, SENDER, CALL.round)
    with pytest.raises(CorruptedFile, match="not of the size"):
        open_content(new_lock().close(cheap))


@pytest.mark.parametrize(
    "cipher",
    [
        5,
        Model(THETA),
        Cipher(
            SENDER,
            CALL.round,
            [RECIPIENT],
            torch.zeros(1, LOCKED_KEY).byte(),
            torch.zeros(5).byte(),
        ),
        Cipher(SENDER, CALL.round, [RECIPIENT], torch.zeros(1, LOCKED_KEY).byte(), torch.zeros(50)),
        Cipher(
            SENDER,
            CALL.round,
            [RECIPIENT],
            torch.zeros(1, LOCKED_KEY).byte(),
            torch.zeros(50, dtype=torch.bfloat16),
        ),
        Cipher(
            SENDER,
            CALL.round,
            [RECIPIENT],
            torch.zeros(1, LOCKED_KEY).byte(),
            torch.zeros(5, 10).byte(),
        ),
        Cipher(
            SENDER, CALL.round, [RECIPIENT], torch.zeros(LOCKED_KEY).byte(), torch.zeros(50).byte()
        ),
        Cipher(
            SENDER,
            CALL.round,
            [RECIPIENT],
            torch.zeros(0, LOCKED_KEY).byte(),
            torch.zeros(50).byte(),
        ),
        Cipher(SENDER, CALL.round, [RECIPIENT], torch.zeros(1, LOCKED_KEY), torch.zeros(50).byte()),
    ],
    ids=[
        "a number",
        "not encrypted",
        "short",
        "floats",
        "bf16",
        "a matrix",
        "flat keys",
        "no keys",
        "keys of floats",
    ],
)
def test_invalid_cipher_is_refused(cipher):
    with pytest.raises(CorruptedFile, match="not encrypted as it should be"):
        open_content(Sealed(cipher, 3, (RECIPIENT,), Origin(SENDER, CALL.round)))


@pytest.mark.parametrize(
    "inboxes", [5, {RECIPIENT: 5}, {RECIPIENT: {SENDER: 5}}, {"x": {}}, {RECIPIENT: {"x": 5}}, [[]]]
)
def test_invalid_inboxes_are_refused(inboxes):
    with pytest.raises(CorruptedFile, match="sealed messages by sender"):
        new_lock().open(inboxes, CALL)


def test_invalid_plaintext_is_refused(monkeypatch):
    """A malicious party has the right keys, and may encrypt bytes that are no valid encoding."""
    monkeypatch.setattr("comity.wire.sealing.encode", lambda content: b"\xff" * 100)
    sealed = new_lock().close(new_sealed_message())
    with pytest.raises(CorruptedFile, match="damaged or foreign"):
        open_content(sealed)


# --- keys


def test_each_pair_has_its_own_symmetric_key():
    keys = SharedSecret(SECRET)
    pair_keys = {keys(i, j) for i in range(12) for j in range(i, 12)}
    assert len(pair_keys) == 12 * 13 // 2
    assert {len(key) for key in pair_keys} == {KEY}
    assert keys(1, 2) == keys(2, 1) != SharedSecret(bytes(32))(1, 2)


class KeyExchange:
    """Pair keys from a key exchange: each site has only its own private key."""

    def __init__(self, me: int, private: X25519PrivateKey, public: dict[int, Any]) -> None:
        self._me, self._private, self._public = me, private, public

    def __call__(self, first: int, second: int) -> bytes:
        (peer,) = {first, second} - {self._me}
        return HKDF(SHA256(), KEY, None, b"comity parcels").derive(
            self._private.exchange(self._public[peer])
        )


def test_pair_keys_from_a_key_exchange():
    private = {i: X25519PrivateKey.generate() for i in (SENDER, RECIPIENT, SECOND_RECIPIENT)}
    public = {i: half.public_key() for i, half in private.items()}
    locks = {i: Lock(KeyExchange(i, half, public), RUN) for i, half in private.items()}
    sealed = locks[SENDER].close(new_sealed_message())
    for to in (RECIPIENT, SECOND_RECIPIENT):
        assert torch.equal(open_content(sealed, to, lock=locks[to]).theta["w"], THETA["w"])
    wrong_lock = Lock(KeyExchange(RECIPIENT, X25519PrivateKey.generate(), public), RUN)
    with pytest.raises(CorruptedFile, match="changed on its way"):
        open_content(locks[SENDER].close(new_sealed_message()), lock=wrong_lock)


@record
class Nested:
    sealed_messages: dict[int, Sealed]
    more: list[tuple[int, Sealed | None]]


def test_all_sealed_messages_of_a_reply_are_encrypted():
    reply = Nested({1: new_sealed_message()}, [(1, new_sealed_message()), (2, None)])
    encrypted = new_lock().close((reply, 3, ""))
    assert isinstance(unseal(encrypted[0].sealed_messages[1]), Cipher)
    assert isinstance(unseal(encrypted[0].more[0][1]), Cipher)
    assert encrypted[1:] == (3, "")
    plain = (Model(THETA), 3, "")
    assert new_lock().close(plain) is plain
