"""What parties send each other: for whom it is, from whom, in its run and round, for one call, and
of its size.
"""

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
ME, YOU, THEY = 1, 2, 5


def new_lock(secret: bytes = SECRET, run: bytes = RUN) -> Lock:
    return Lock(SharedSecret(secret), run)


def sent(
    content: Any = None, to: Any = (YOU, THEY), sender: int = ME, round: int = CALL.round
) -> Sealed:
    """A parcel as it leaves its sender's site."""
    sealed = seal(Model(THETA) if content is None else content, to)
    set_origin([sealed], sender, round)
    return sealed


def opened(
    sealed: Sealed, to: int = YOU, sender: int = ME, call: CallId = CALL, lock: Lock | None = None
) -> Any:
    return unseal((lock or new_lock()).open({to: {sender: sealed}}, call)[to][sender])


def test_a_parcel_stays_a_parcel_on_its_way():
    lock, (here, there) = new_lock(), Channel.pair()
    sealed = sent()
    here.send(lock.close({"a": sealed, "b": sealed}))
    got = there.receive()
    assert isinstance(got["a"], Sealed)
    assert got["a"] is got["b"]
    assert (got["a"].size, got["a"].to, got["a"].origin) == (
        256,
        (YOU, THEY),
        Origin(ME, CALL.round),
    )
    assert torch.equal(opened(got["a"], lock=lock).theta["w"], THETA["w"])
    over_a_wire = decode(encode(lock.close([sent()]), sealed_messages=True), sealed_messages=True)
    assert torch.equal(opened(over_a_wire[0]).theta["w"], THETA["w"])


def test_a_parcel_leaves_a_process_locked_or_not_at_all():
    with pytest.raises(ComityError, match="encrypted only"):
        encode(seal(Model(THETA), YOU))
    with pytest.raises(ComityError, match="encrypted only"):
        encode(seal(Model(THETA), YOU), sealed_messages=True)
    with pytest.raises(ComityError, match="in a party's reply"):
        new_lock().close(seal(Model(THETA), YOU))


def test_a_parcel_shows_its_size_and_its_address_and_nothing_else():
    sealed = seal(Model({"w": torch.full((5,), 1234.5)}), YOU)
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


def test_what_is_locked_holds_no_plaintext_and_cannot_be_changed():
    plain = THETA["w"].numpy().tobytes()
    for field in ("blob", "keys"):
        sealed = new_lock().close(sent())
        numbers = getattr(unseal(sealed), field).view(-1)
        seen = numbers.numpy().tobytes()
        assert not any(plain[k : k + 16] in seen for k in range(0, len(plain) - 16, 8))
        numbers[20] ^= 1
        with pytest.raises(CorruptedFile, match="changed on its way"):
            opened(sealed)


def test_a_content_is_encrypted_once_for_all_its_recipients():
    one, many = (unseal(new_lock().close(sent(to=to))) for to in ([YOU], range(50)))
    assert len(one.blob) == len(many.blob)
    assert many.keys.shape == (50, LOCKED_KEY)
    for to in (0, 49):
        assert torch.equal(opened(new_lock().close(sent(to=range(50))), to).theta["w"], THETA["w"])


def test_a_parcel_for_nobody_opens_for_nobody():
    with pytest.raises(ComityError, match="not for"):
        opened(new_lock().close(sent(to=[])))


# --- on every engine


def test_in_one_process_too_a_parcel_is_for_its_recipients():
    assert open_sealed(sent(), ME, YOU, CALL).theta is THETA
    with pytest.raises(ComityError, match="not for"):
        open_sealed(sent(), ME, 3, CALL)


@pytest.mark.parametrize(("sender", "round"), [(THEY, CALL.round), (ME, CALL.round + 1)])
def test_in_one_process_too_a_parcel_is_of_its_sender_and_round(sender, round):
    with pytest.raises(ComityError, match="another"):
        open_sealed(sent(), sender, YOU, CALL._replace(round=round))


def test_in_one_process_too_a_parcel_lives_for_one_call():
    sealed = sent()
    for _ in range(2):
        assert open_sealed(sealed, ME, YOU, CALL).theta is THETA
    assert (
        open_sealed(sealed, ME, THEY, CALL._replace(occurrence=1)).theta is THETA
    )  # of each recipient
    with pytest.raises(ComityError, match="second time"):
        open_sealed(sealed, ME, YOU, CALL._replace(occurrence=1))


def test_a_parcel_leaves_its_site_once():
    sealed = sent()
    set_origin({"again": (sealed,)}, ME, CALL.round)
    with pytest.raises(ComityError, match="left its site twice"):
        set_origin([sealed], YOU, CALL.round)


# --- between processes, where the carrier may try


def test_it_opens_for_its_recipient_only():
    sealed = new_lock().close(sent())
    with pytest.raises(ComityError, match="not for"):
        opened(sealed, to=3)


@pytest.mark.parametrize("as_if", [YOU, THEY])
def test_a_carrier_cannot_readdress_it(as_if):
    """It writes another address on it, and gives the key that was for another."""
    cipher = unseal(new_lock().close(sent()))
    for to in ([3, 3], [3, as_if]):
        forged = Sealed(replace(cipher, to=to), 256, tuple(to), Origin(ME, CALL.round))
        with pytest.raises(CorruptedFile, match="changed on its way"):
            opened(forged, to=3)


@pytest.mark.parametrize(
    ("lie", "sender", "round", "size"),
    [
        ("its sender", THEY, CALL.round, 256),
        ("its round", ME, CALL.round + 1, 256),
        ("its size", ME, CALL.round, 255),
    ],
)
def test_a_carrier_cannot_lie_about(lie, sender, round, size):
    cipher = unseal(new_lock().close(sent()))
    forged = Sealed(
        replace(cipher, sender=sender, round=round), size, (YOU, THEY), Origin(sender, round)
    )
    with pytest.raises(CorruptedFile, match="changed on its way"):
        opened(forged, sender=sender, call=CALL._replace(round=round))


def test_a_carrier_cannot_return_it_to_its_sender():
    """Both directions have one key, and an answer must not be what was sent."""
    cipher = unseal(new_lock().close(sent()))
    place = cipher.to.index(YOU)
    reflected = replace(cipher, sender=YOU, to=[ME], keys=cipher.keys[place : place + 1])
    forged = Sealed(reflected, 256, (ME,), Origin(YOU, CALL.round))
    with pytest.raises(CorruptedFile, match="changed on its way"):
        opened(forged, to=ME, sender=YOU)


def test_it_does_not_open_in_another_round_or_from_another_sender():
    with pytest.raises(ComityError, match="another round"):
        opened(new_lock().close(sent()), call=CALL._replace(round=4))
    with pytest.raises(ComityError, match="another party"):
        opened(new_lock().close(sent()), sender=THEY)


@pytest.mark.parametrize("other", [new_lock(run=b"another"), new_lock(secret=bytes(32))])
def test_it_does_not_open_in_another_run(other):
    with pytest.raises(CorruptedFile, match="changed on its way, or is not of this run"):
        opened(new_lock().close(sent()), lock=other)


def test_it_opens_for_one_call_however_often_that_is_asked():
    lock = new_lock()
    sealed = lock.close(sent())
    for _ in range(3):
        assert torch.equal(opened(sealed, lock=lock).theta["w"], THETA["w"])
    for other in (
        CALL._replace(occurrence=1),
        CALL._replace(function="another"),
        CALL._replace(depth=1),
    ):
        with pytest.raises(ComityError, match="second time"):
            opened(sealed, lock=lock, call=other)
    assert opened(
        sealed, to=THEY, lock=lock, call=CALL._replace(occurrence=1)
    )  # for the other recipient it is the first
    copied = Sealed(
        replace(unseal(sealed), to=[YOU]), 256, (YOU,), sealed.origin
    )  # another object, the same parcel
    with pytest.raises(CorruptedFile, match="not encrypted as it should be"):
        opened(copied, lock=lock, call=CALL._replace(occurrence=1))
    copied = Sealed(
        replace(unseal(sealed), to=[YOU], keys=unseal(sealed).keys[:1]), 256, (YOU,), sealed.origin
    )
    with pytest.raises(ComityError, match="second time"):
        opened(copied, lock=lock, call=CALL._replace(occurrence=1))


def test_a_carrier_cannot_go_back_to_an_earlier_round():
    """What was opened is remembered for the length of a round."""
    lock = new_lock()
    old, new = lock.close(sent()), lock.close(sent(round=4))
    opened(old, lock=lock)
    opened(new, lock=lock, call=CALL._replace(round=4))
    with pytest.raises(ComityError, match="round 3 came after"):
        opened(old, lock=lock, call=CALL._replace(occurrence=1))


def test_a_sender_cannot_claim_another_size_than_that_of_what_it_sends():
    cheap = seal(Model(THETA), YOU)
    cheap.size = 4
    set_origin(cheap, ME, CALL.round)
    with pytest.raises(CorruptedFile, match="not of the size"):
        opened(new_lock().close(cheap))


@pytest.mark.parametrize(
    "cipher",
    [
        5,
        Model(THETA),
        Cipher(ME, CALL.round, [YOU], torch.zeros(1, LOCKED_KEY).byte(), torch.zeros(5).byte()),
        Cipher(ME, CALL.round, [YOU], torch.zeros(1, LOCKED_KEY).byte(), torch.zeros(50)),
        Cipher(
            ME,
            CALL.round,
            [YOU],
            torch.zeros(1, LOCKED_KEY).byte(),
            torch.zeros(50, dtype=torch.bfloat16),
        ),
        Cipher(ME, CALL.round, [YOU], torch.zeros(1, LOCKED_KEY).byte(), torch.zeros(5, 10).byte()),
        Cipher(ME, CALL.round, [YOU], torch.zeros(LOCKED_KEY).byte(), torch.zeros(50).byte()),
        Cipher(ME, CALL.round, [YOU], torch.zeros(0, LOCKED_KEY).byte(), torch.zeros(50).byte()),
        Cipher(ME, CALL.round, [YOU], torch.zeros(1, LOCKED_KEY), torch.zeros(50).byte()),
    ],
    ids=[
        "a number",
        "not locked",
        "short",
        "floats",
        "bf16",
        "a matrix",
        "flat keys",
        "no keys",
        "keys of floats",
    ],
)
def test_what_no_lock_made_is_refused(cipher):
    with pytest.raises(CorruptedFile, match="not encrypted as it should be"):
        opened(Sealed(cipher, 3, (YOU,), Origin(ME, CALL.round)))


@pytest.mark.parametrize("inboxes", [5, {YOU: 5}, {YOU: {ME: 5}}, {"x": {}}, {YOU: {"x": 5}}, [[]]])
def test_inboxes_without_their_form_are_refused(inboxes):
    with pytest.raises(CorruptedFile, match="sealed messages by sender"):
        new_lock().open(inboxes, CALL)


def test_a_sender_may_have_locked_anything(monkeypatch):
    """A party of bad will has the right keys, and may seal bytes that no `encode` wrote."""
    monkeypatch.setattr("comity.wire.sealing.encode", lambda content: b"\xff" * 100)
    sealed = new_lock().close(sent())
    with pytest.raises(CorruptedFile, match="damaged or foreign"):
        opened(sealed)


# --- keys


def test_each_pair_has_a_key_of_its_own_and_both_directions_the_same():
    keys = SharedSecret(SECRET)
    made = {keys(i, j) for i in range(12) for j in range(i, 12)}
    assert len(made) == 12 * 13 // 2
    assert {len(key) for key in made} == {KEY}
    assert keys(1, 2) == keys(2, 1) != SharedSecret(bytes(32))(1, 2)


class Exchanged:
    """How sites on machines of their own come to the same keys, each with its own half only."""

    def __init__(self, me: int, private: X25519PrivateKey, public: dict[int, Any]) -> None:
        self._me, self._private, self._public = me, private, public

    def __call__(self, one: int, other: int) -> bytes:
        (them,) = {one, other} - {self._me}
        return HKDF(SHA256(), KEY, None, b"comity parcels").derive(
            self._private.exchange(self._public[them])
        )


def test_pairs_keys_may_come_from_an_exchange_instead():
    private = {i: X25519PrivateKey.generate() for i in (ME, YOU, THEY)}
    public = {i: half.public_key() for i, half in private.items()}
    locks = {i: Lock(Exchanged(i, half, public), RUN) for i, half in private.items()}
    sealed = locks[ME].close(sent())
    for to in (YOU, THEY):
        assert torch.equal(opened(sealed, to, lock=locks[to]).theta["w"], THETA["w"])
    strange = Lock(Exchanged(YOU, X25519PrivateKey.generate(), public), RUN)
    with pytest.raises(CorruptedFile, match="changed on its way"):
        opened(locks[ME].close(sent()), lock=strange)


@record
class Nested:
    sealed_messages: dict[int, Sealed]
    more: list[tuple[int, Sealed | None]]


def test_all_parcels_of_a_reply_are_locked_wherever_they_are():
    reply = Nested({1: sent()}, [(1, sent()), (2, None)])
    locked = new_lock().close((reply, 3, ""))
    assert isinstance(unseal(locked[0].sealed_messages[1]), Cipher)
    assert isinstance(unseal(locked[0].more[0][1]), Cipher)
    assert locked[1:] == (3, "")
    plain = (Model(THETA), 3, "")
    assert new_lock().close(plain) is plain
