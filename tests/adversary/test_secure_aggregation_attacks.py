"""A malicious server, alone and with colluding sites, tries to learn more than the sum.

What it tries, in the order of the tests:

- two lists of survivors: every division of the honest sites, with colluders who sign both; one site
  alive in one list and lost in the other; the same with a threshold that is too low, where it works
- different keys (U1), senders (U2), terms or models for different sites
- lists of survivors with strangers, repeated names, without the recipient, or too short
- replaced, replayed, repeated, foreign and degenerate keys; sites that nobody has pinned
- shares for another site, sent back to their sender, of another round, changed, or left out
- signatures of another round, of another list, of another site, or too few of them
- steps left out, repeated or in another order; a second unmasking; copies of a site's state
- a site restarted in the same call, to get a second masked reply
- a masked reply that came late, after its site was declared lost
- all subsets of the honest sites, with everything that the server and the colluders know
- wrong shares, wrong commitments and inconsistent sharing by a malicious site
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_rounds import (
    CallsInMemory,
    PinnedKeys,
    SecureRound,
    identities,
    names_of,
    replies_of,
    terms_of,
    through_bytes,
    weighted_mean,
)

from comity.base.record import Params
from comity.errors import ComityError
from comity.privacy.secagg import (
    Encoding,
    Inbox,
    Layout,
    RosterKeys,
    RoundFiles,
    SecureAggregationError,
    Signatures,
    SiteKeys,
    SiteLimits,
    SiteRound,
    Survivors,
    Terms,
    shamir,
)
from comity.privacy.secagg.masks import RING, Ring, add_mask, pair_key, pair_sign
from comity.privacy.secagg.site import (
    point_of,
    self_mask_key,
    signed_keys_text,
    survivors_text,
)

NAMES = names_of(6)
REPLIES = replies_of(NAMES)
VICTIM = NAMES[2]


def at_step(step: int, **options: Any) -> SecureRound:
    """A round of six sites with one colluder and the threshold 4, before a step."""
    secure = SecureRound(terms_of(NAMES, REPLIES), **options)
    steps = (secure.step1, secure.step2, lambda: secure.step3(REPLIES), secure.step4)
    for action in steps[: step - 1]:
        action()
    return secure


def refused(action: Callable[..., object], reason: str, *arguments: object) -> None:
    with pytest.raises(SecureAggregationError, match=reason):
        action(*arguments)


# -- what the attacker can compute -----------------------------------------------------------------


class Known:
    """Everything that the server and the colluders know: secrets of sites, and masked replies."""

    def __init__(self, secure: SecureRound) -> None:
        self.secure = secure
        self.terms = secure.terms
        self.seeds: dict[str, bytes] = {}
        self.mask_keys: dict[str, X25519PrivateKey] = {}

    @property
    def context(self) -> bytes:
        return self.secure.server._context

    def learn_secrets(self, colluders: list[str]) -> None:
        """The colluders' own secrets, which they have until the third step."""
        for name in colluders:
            mask_key = self.secure.sites[name]._mask_key
            assert mask_key
            self.seeds[name], self.mask_keys[name] = self.secure.sites[name]._seed, mask_key

    def learn(self, shares_of: Mapping[str, Mapping[str, bytes]], kind: str) -> None:
        """Reconstruct every secret of which there are enough shares. They are by owner of the
        secret and holder of the share.
        """
        for owner, shares in shares_of.items():
            if len(shares) < self.terms.threshold:
                continue
            points = {point_of(self.terms, holder): share for holder, share in shares.items()}
            secret = shamir.join(points, self.terms.threshold)
            if kind == "seeds":
                self.seeds[owner] = secret
            else:
                self.mask_keys[owner] = X25519PrivateKey.from_private_bytes(secret)

    def residual(self, names: tuple[str, ...]) -> Ring:
        """The sum of masked replies of some sites, without every mask that the attacker knows."""
        total = np.zeros(self.terms.encoding.length, dtype=RING)
        for name in names:
            total += self.secure.masked[name].values.numpy().view(RING)
        for name in names:
            if name in self.seeds:
                add_mask(total, self_mask_key(self.seeds[name], self.context), -1)
            for other in self.secure.inboxes:
                if other == name or other in names:
                    continue  # the masks of two sites in the sum cancel
                key = self.pair(name, other)
                if key:
                    add_mask(total, key, -pair_sign(name, other))
        return total

    def pair(self, name: str, other: str) -> bytes:
        for one, peer in ((name, other), (other, name)):
            if one in self.mask_keys:
                public = self.secure.keys[peer].mask_key
                return pair_key(self.mask_keys[one], public, self.context, name, other)
        return b""

    def exposes(self, names: tuple[str, ...], replies: Mapping[str, Params]) -> bool:
        """Whether the attacker knows the sum of the replies of some sites."""
        encoding = self.terms.encoding
        true = np.zeros(encoding.length, dtype=RING)
        for name in names:
            true += encoding.encode(replies[name], 1.0, len(self.terms.roster)).vector
        return bool((self.residual(names) == true).all())


def shares_by_owner(
    revealed: Mapping[str, Mapping[str, bytes]],
) -> dict[str, dict[str, bytes]]:
    """Shares by owner and holder, from those by holder and owner."""
    by_owner: dict[str, dict[str, bytes]] = {}
    for holder, shares in revealed.items():
        for owner, share in shares.items():
            by_owner.setdefault(owner, {})[holder] = share
    return by_owner


def proper_subsets(names: list[str]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(names, k) for k in range(1, len(names))))


# -- two lists of survivors ------------------------------------------------------------------------


def two_lists(
    terms: Terms, replies: Mapping[str, Params], first: set[str], colluders: list[str]
) -> tuple[Known, int]:
    """The server tells the sites in `first` that all sites survived, and the others that the victim
    was lost. Colluders sign both lists and reveal both kinds of shares.

    Returns what the attacker knows then, and how many honest sites revealed shares.
    """
    victim = next(name for name in terms.roster if name not in colluders)
    secure = SecureRound(terms)
    known = Known(secure)
    secure.step1()
    known.learn_secrets(colluders)
    secure.step2()
    secure.step3(replies)
    everybody, without = list(terms.roster), [name for name in terms.roster if name != victim]
    lists = {name: everybody if name in first or name == victim else without for name in everybody}
    context, senders = secure.server._context, sorted(everybody)
    signatures: dict[int, dict[str, str]] = {len(everybody): {}, len(without): {}}
    for name in everybody:
        if name in colluders:
            for names in (everybody, without):
                text = survivors_text(context, senders, names)
                signatures[len(names)][name] = secure.signatories[name].sign(text).hex()
        else:
            signed = secure.sites[name].signature(Survivors(lists[name]))
            signatures[len(lists[name])][name] = signed.signature
    seeds: dict[str, dict[str, bytes]] = {}
    mask_keys: dict[str, dict[str, bytes]] = {}
    honest = 0
    for name, site in secure.sites.items():
        if name in colluders:
            seeds[name] = dict(site._seed_shares)
            mask_keys[name] = dict(site._mask_key_shares)
            continue
        try:
            shares = site.reveal(Signatures(signatures[len(lists[name])]))
        except SecureAggregationError:
            continue
        honest += 1
        seeds[name] = {owner: bytes.fromhex(share) for owner, share in shares.seeds.items()}
        mask_keys[name] = {owner: bytes.fromhex(share) for owner, share in shares.mask_keys.items()}
    known.learn(shares_by_owner(seeds), "seeds")
    known.learn(shares_by_owner(mask_keys), "mask keys")
    return known, honest


@pytest.mark.parametrize(("sites", "colluders"), [(4, 0), (4, 1), (5, 1), (6, 1), (6, 2), (7, 2)])
def test_two_lists_of_survivors(sites: int, colluders: int) -> None:
    """For every division of the honest sites, the victim's secrets are not both known, and at most
    one sum is, with at least t - c honest replies.
    """
    names = names_of(sites)
    replies = replies_of(names, size=2)
    terms = terms_of(names, replies, colluders)
    bad = list(names[sites - colluders :])
    honest = [name for name in names if name not in bad]
    victim = honest[0]
    for count in range(sites - colluders):
        first = set(honest[1 : 1 + count])  # all honest sites but the victim are alike
        known, _ = two_lists(terms, replies, first, bad)
        assert not (victim in known.seeds and victim in known.mask_keys)
        subsets = [*proper_subsets(honest), tuple(honest)]
        exposed = [subset for subset in subsets if known.exposes(subset, replies)]
        # The sum of all or of all but the victim, where enough sites got the same list.
        assert exposed in ([], [tuple(honest)], [tuple(honest[1:])])
        assert all(len(subset) >= terms.threshold - colluders for subset in exposed)


def below_the_bound(terms: Terms, threshold: int) -> Terms:
    """Terms with a threshold that `Terms` refuses."""
    low = copy.copy(terms)
    object.__setattr__(low, "threshold", threshold)
    return low


@pytest.mark.parametrize(("sites", "colluders", "threshold"), [(4, 0, 2), (5, 1, 3), (6, 2, 4)])
def test_with_a_lower_threshold_two_lists_expose_a_reply(
    sites: int, colluders: int, threshold: int
) -> None:
    """The bound is tight, and the attack above is a real one: with 2t = n + c it works."""
    assert 2 * threshold == sites + colluders
    names = names_of(sites)
    replies = replies_of(names, size=2)
    terms = below_the_bound(terms_of(names, replies, colluders), threshold)
    bad = list(names[sites - colluders :])
    honest = [name for name in names if name not in bad]
    first = set(honest[1 : threshold - colluders])
    known, answers = two_lists(terms, replies, first, bad)
    assert answers == sites - colluders
    assert known.exposes((honest[0],), replies)


def test_one_site_is_told_another_list() -> None:
    """It signs what it was told, and gets too few signatures of the others."""
    secure = at_step(4)
    short = Survivors([name for name in NAMES if name != VICTIM])
    signatures = {
        name: site.signature(short if name == NAMES[0] else secure.survivors).signature
        for name, site in secure.sites.items()
    }
    refused(lambda: secure.sites[NAMES[0]].reveal(Signatures(signatures)), "1 sites signed")
    for name in NAMES[1:]:  # 5 sites agree, which is enough, and all reveal the same kinds
        assert not secure.sites[name].reveal(Signatures(signatures)).mask_keys


# -- different keys, senders, terms or models ------------------------------------------------------


def test_different_lists_of_keys() -> None:
    """Two sites are told that a third sent no keys. They cannot read the others' shares."""
    secure = at_step(2)
    short = RosterKeys([keys for keys in secure.roster_keys.keys if keys.name != VICTIM])
    shares = {
        name: site.shares(short if name in NAMES[:2] else secure.roster_keys)
        for name, site in secure.sites.items()
    }
    for name in (*NAMES[:2], *NAMES[3:]):
        inbox = Inbox({peer: shares[peer].shares[name] for peer in NAMES if peer != name})
        if name in NAMES[:2]:
            inbox.shares.pop(VICTIM)
        reason = "different keys to different sites"
        refused(secure.sites[name].masked, reason, inbox, REPLIES[name])


@pytest.mark.parametrize("alone", [True, False])
def test_different_senders(alone: bool) -> None:
    """The victim is told that only four sites sent shares, and masks with these only. The server
    would then declare three of them lost, and know all masks of the victim but its own.

    The victim signs a list within its four sites only (`alone`), which no other site signs with the
    same senders. Without the victim's signature, the others can go on, but then its masks remain.
    """
    secure = at_step(3)
    few = [*NAMES[3:], VICTIM]
    for name, site in secure.sites.items():
        shares = secure.inboxes[name].shares
        if name == VICTIM:
            shares = {peer: shares[peer] for peer in NAMES[3:]}
        secure.masked[name] = site.masked(Inbox(shares), REPLIES[name])
    survivors = Survivors(few if alone else list(NAMES))
    signatures = {}
    for name in survivors.names:
        if name == VICTIM and not alone:
            refused(
                lambda: secure.sites[VICTIM].signature(survivors), "only sites that sent shares"
            )
            continue
        signatures[name] = secure.sites[name].signature(survivors).signature
    if alone:
        for name in few:
            count = 1 if name == VICTIM else 3
            reveal = secure.sites[name].reveal
            refused(reveal, f"{count} sites signed", Signatures(signatures))
        return
    known = Known(secure)
    seeds = {}
    for name in signatures:
        shares = secure.sites[name].reveal(Signatures(signatures)).seeds
        seeds[name] = {owner: bytes.fromhex(share) for owner, share in shares.items()}
    known.learn(shares_by_owner(seeds), "seeds")
    assert VICTIM in known.seeds
    for subset in [*proper_subsets(list(NAMES)), NAMES]:
        assert not known.exposes(subset, REPLIES)


@pytest.mark.parametrize(
    "change",
    [
        {"message": "a model for one site"},
        {"run": "another run"},
        {"threshold": 5},
        {"colluders": 0},
    ],
)
def test_different_terms_for_different_sites(change: dict[str, Any]) -> None:
    """Among them another model for one site, which would single out its reply."""
    secure = at_step(1)
    other = replace(secure.terms, **change)
    limits = SiteLimits(4, 4, 0)
    secure.sites[VICTIM] = SiteRound(other, limits, secure.signatories[VICTIM], CallsInMemory())
    keys = secure.step1()
    for name, site in secure.sites.items():
        who = NAMES[0] if name == VICTIM else VICTIM
        refused(site.shares, f"{who} takes part under other terms", keys)


def test_a_different_encoding_for_different_sites() -> None:
    """For instance without noise, or with a clip that only one site has."""
    layout = Layout.of(REPLIES[VICTIM])
    encodings = [
        Encoding(layout, 1.0, 100.0, noise=1.0),
        Encoding(layout, 1.0, 100.0, noise=2.0),
        Encoding(layout, 1.0, 101.0, noise=1.0),
        Encoding(layout, 1.5, 100.0, noise=1.0),
        Encoding(layout, 1.0, 100.0, 2.0, noise=1.0),
        Encoding(layout, 1.0, 100.0),
        Encoding(Layout.of({"bias": torch.zeros(5), "weight": torch.zeros(2, 5)}), 1.0, 100.0),
    ]
    terms = terms_of(NAMES, REPLIES)
    digests = {replace(terms, encoding=encoding).digest() for encoding in encodings}
    assert len(digests) == len(encodings)


# -- lists of survivors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        [*NAMES, "stranger"],
        [*NAMES, NAMES[0]],
        [NAMES[0]] * 6,
        list(NAMES[1:]),
        [],
    ],
)
def test_survivors_that_are_refused(names: list[str]) -> None:
    secure = at_step(4)
    site = secure.sites[NAMES[0]]
    refused(lambda: site.signature(Survivors(names)), "must have this site and only sites that")
    refused(lambda: site.signature(secure.survivors), "this round has ended for site00")


def test_too_few_survivors() -> None:
    secure = at_step(4)
    refused(
        lambda: secure.sites[NAMES[0]].signature(Survivors(list(NAMES[:3]))),
        "3 sites are in the sum, and 4 must",
    )


def test_a_survivor_that_sent_no_shares() -> None:
    secure = at_step(3, lost={VICTIM: 2})
    secure.step3(REPLIES)
    refused(
        lambda: secure.sites[NAMES[0]].signature(Survivors(list(NAMES))), "only sites that sent"
    )


# -- keys ------------------------------------------------------------------------------------------


def replaced(secure: SecureRound, keys: SiteKeys) -> RosterKeys:
    """The list of keys with those of one site replaced."""
    return RosterKeys([keys if old.name == keys.name else old for old in secure.roster_keys.keys])


def own_public_key() -> str:
    return X25519PrivateKey.generate().public_key().public_bytes_raw().hex()


@pytest.mark.parametrize("field", ["cipher_key", "mask_key", "commitment"])
def test_replaced_keys(field: str) -> None:
    secure = at_step(2)
    roster = replaced(secure, replace(secure.keys[VICTIM], **{field: own_public_key()}))
    refused(lambda: secure.sites[NAMES[0]].shares(roster), f"said to be {VICTIM}'s are not signed")
    refused(lambda: secure.sites[VICTIM].shares(roster), "does not have those that site02 sent")


def test_swapped_keys() -> None:
    secure = at_step(2)
    mine = secure.keys[VICTIM]
    swapped = replace(mine, cipher_key=mine.mask_key, mask_key=mine.cipher_key)
    refused(
        lambda: secure.sites[NAMES[0]].shares(replaced(secure, swapped)), "are not signed by it"
    )
    other = replace(secure.keys[NAMES[3]], name=VICTIM)
    refused(lambda: secure.sites[NAMES[1]].shares(replaced(secure, other)), "are not signed by it")


@pytest.mark.parametrize("change", [{"round": 2}, {"run": "other"}, {"message": "other"}])
def test_replayed_keys(change: dict[str, Any]) -> None:
    """Of another round, run or model, with the digest of these terms put in."""
    secure = at_step(2)
    earlier = SecureRound(terms_of(NAMES, REPLIES, **change), secure.signatories)
    earlier.step1()
    replayed = earlier.keys[VICTIM]
    refused(lambda: secure.sites[NAMES[0]].shares(replaced(secure, replayed)), "under other terms")
    replayed = replace(replayed, terms=secure.terms.digest().hex())
    refused(
        lambda: secure.sites[NAMES[1]].shares(replaced(secure, replayed)), "are not signed by it"
    )


def test_replayed_keys_of_an_earlier_attempt() -> None:
    """The victim was restarted in the same call. The others get its earlier keys, which are signed
    for the same terms: they seal shares that the victim cannot read, and nobody goes on.
    """
    secure = at_step(2)
    fresh = SiteRound(secure.terms, secure.limits, secure.signatories[VICTIM], CallsInMemory())
    new = fresh.keys()
    refused(lambda: fresh.shares(secure.roster_keys), "does not have those that site02 sent")
    again = SiteRound(secure.terms, secure.limits, secure.signatories[VICTIM], CallsInMemory())
    again.keys()
    shares = {name: secure.sites[name].shares(secure.roster_keys) for name in NAMES[3:]}
    new_again = again._keys[VICTIM]
    again.shares(replaced(secure, new_again))
    inbox = Inbox({name: message.shares[VICTIM] for name, message in shares.items()})
    refused(lambda: again.masked(inbox, REPLIES[VICTIM]), "different keys to different sites")
    assert new != new_again


def signed_by(secure: SecureRound, keys: SiteKeys) -> SiteKeys:
    """Keys that a colluding site has signed."""
    signature = secure.signatories[keys.name].sign(signed_keys_text(keys))
    return replace(keys, signature=signature.hex())


def test_a_colluder_repeats_the_key_of_another_site() -> None:
    secure = at_step(2)
    colluder = NAMES[5]
    copied = replace(secure.keys[colluder], mask_key=secure.keys[VICTIM].mask_key)
    roster = replaced(secure, signed_by(secure, copied))
    refused(lambda: secure.sites[NAMES[0]].shares(roster), "A public key occurs twice")
    spelled = replace(copied, mask_key=copied.mask_key.upper())
    roster = replaced(secure, signed_by(secure, spelled))
    refused(lambda: secure.sites[NAMES[1]].shares(roster), "hexadecimal digits")


@pytest.mark.parametrize("point", [0, 1])
@pytest.mark.parametrize("field", ["cipher_key", "mask_key"])
def test_a_colluder_sends_a_point_of_low_order(field: str, point: int) -> None:
    """Everybody would know the key that it shares with each site."""
    secure = at_step(2)
    low = point.to_bytes(32, "little").hex()
    keys = signed_by(secure, replace(secure.keys[NAMES[5]], **{field: low}))
    secure.sites[NAMES[5]]._keys[NAMES[5]] = secure.keys[NAMES[5]] = keys
    secure.roster_keys = replaced(secure, keys)
    if field == "mask_key":
        secure.step2()
    step = secure.step2 if field == "cipher_key" else lambda: secure.step3(REPLIES)
    refused(step, "not an X25519 key")
    assert not secure.masked


def test_sites_that_nobody_has_pinned() -> None:
    """The server fills the roster with sites of its own, which sign properly."""
    secure = at_step(1)
    key = Ed25519PrivateKey.generate()
    pinned = secure.signatories[VICTIM].pinned
    false = PinnedKeys(NAMES[5], key, pinned | {NAMES[5]: key.public_key()})
    secure.sites[NAMES[5]] = SiteRound(secure.terms, secure.limits, false, CallsInMemory())
    keys = secure.step1()
    refused(lambda: secure.sites[VICTIM].shares(keys), f"said to be {NAMES[5]}'s are not signed")
    with_stranger = RosterKeys([*keys.keys, replace(keys.keys[5], name="stranger")])
    refused(lambda: secure.sites[NAMES[0]].shares(with_stranger), "sites of the roster only")


def test_a_list_with_repeated_or_few_keys() -> None:
    secure = at_step(2)
    keys = secure.roster_keys.keys
    refused(lambda: secure.sites[NAMES[0]].shares(RosterKeys([*keys, keys[1]])), "each once")
    refused(lambda: secure.sites[NAMES[1]].shares(RosterKeys(keys[:3])), "3 sites sent keys")
    refused(lambda: secure.sites[NAMES[2]].shares(RosterKeys([])), "0 sites sent keys")


# -- shares ----------------------------------------------------------------------------------------


def earlier_round(secure: SecureRound) -> SecureRound:
    """Another round of the same sites, after its fourth step."""
    earlier = SecureRound(terms_of(NAMES, REPLIES, round=7), secure.signatories)
    earlier.step1()
    earlier.step2()
    earlier.step3(REPLIES)
    earlier.step4()
    return earlier


def flipped(text: str) -> str:
    """Hexadecimal digits with one bit changed."""
    return f"{int(text[0], 16) ^ 1:x}" + text[1:]


ONE, TWO, THREE = NAMES[:3]
WRONG_SHARES: dict[str, Callable[[SecureRound], dict[str, str]]] = {
    "changed": lambda r: {TWO: flipped(r.inboxes[ONE].shares[TWO])},
    "of another sender": lambda r: {TWO: r.inboxes[ONE].shares[THREE]},
    "for another site": lambda r: {TWO: r.shares[TWO].shares[THREE]},
    "sent back": lambda r: {TWO: r.shares[ONE].shares[TWO]},
    "of another round": lambda r: {TWO: earlier_round(r).shares[TWO].shares[ONE]},
    "empty": lambda r: {TWO: ""},
    "no digits": lambda r: {TWO: "nonsense"},
    "short": lambda r: {TWO: r.inboxes[ONE].shares[TWO][:-2]},
    "upper case": lambda r: {TWO: r.inboxes[ONE].shares[TWO].upper()},
    "of the site itself": lambda r: {ONE: r.inboxes[ONE].shares[TWO]},
    "of a stranger": lambda r: {"stranger": r.inboxes[ONE].shares[TWO]},
}


@pytest.mark.parametrize("wrong", WRONG_SHARES)
def test_shares_that_are_refused(wrong: str) -> None:
    secure = at_step(3)
    shares = secure.inboxes[ONE].shares | WRONG_SHARES[wrong](secure)
    refused(
        lambda: secure.sites[ONE].masked(Inbox(shares), REPLIES[ONE]),
        "they were changed|hexadecimal digits|other sites that sent keys",
    )


def test_few_senders() -> None:
    secure = at_step(3)
    shares = dict(list(secure.inboxes[VICTIM].shares.items())[:2])
    site = secure.sites[VICTIM]
    refused(lambda: site.masked(Inbox(shares), REPLIES[VICTIM]), "3 sites sent shares, and 4 must")


# -- signatures ------------------------------------------------------------------------------------


def first(secure: SecureRound, count: int) -> dict[str, str]:
    """The right signatures of the first sites."""
    return {name: secure.signatures[name].signature for name in NAMES[:count]}


WRONG_SIGNATURES: dict[str, Callable[[SecureRound], dict[str, str]]] = {
    "too few": lambda r: first(r, 3),
    "none": lambda r: {},
    "of another round": lambda r: (
        {name: signed.signature for name, signed in earlier_round(r).signatures.items()}
        | first(r, 3)
    ),
    "changed": lambda r: (
        first(r, 3) | {name: flipped(r.signatures[name].signature) for name in NAMES[3:]}
    ),
    "copied": lambda r: dict.fromkeys(NAMES, r.signatures[ONE].signature),
    "empty": lambda r: first(r, 3) | dict.fromkeys(NAMES[3:], ""),
    "no digits": lambda r: first(r, 3) | dict.fromkeys(NAMES[3:], "nonsense"),
    "of strangers": lambda r: first(r, 3) | {"a": r.signatures[ONE].signature, "b": ""},
    "of all others": lambda r: {name: first(r, 6)[name] for name in NAMES[1:]},
    "of another list": lambda r: (
        first(r, 3)
        | {
            name: r.signatories[name]
            .sign(survivors_text(r.server._context, list(NAMES), list(NAMES[:5])))
            .hex()
            for name in NAMES[3:]
        }
    ),
}


@pytest.mark.parametrize("wrong", WRONG_SIGNATURES)
def test_signatures_that_do_not_count(wrong: str) -> None:
    secure = at_step(5)
    signatures = WRONG_SIGNATURES[wrong](secure)
    refused(
        lambda: secure.sites[ONE].reveal(Signatures(signatures)),
        r"sites signed the list of survivors that this site signed, and 4 must",
    )


# -- steps -----------------------------------------------------------------------------------------


def requests(secure: SecureRound, name: str) -> list[Callable[[], object]]:
    site = secure.sites[name]
    return [
        site.keys,
        lambda: site.shares(secure.roster_keys),
        lambda: site.masked(secure.inboxes.get(name, Inbox({})), REPLIES[name]),
        lambda: site.signature(Survivors(list(NAMES))),
        lambda: site.reveal(secure.all_signatures),
    ]


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_steps_out_of_turn(step: int) -> None:
    """Every request but the next is refused, changes nothing, and the round goes on."""
    secure = at_step(step)
    for number, request in enumerate(requests(secure, VICTIM), 1):
        if number != step:
            refused(request, rf"Step {number} .* out of turn: the next is step {step}")
    steps = (secure.step1, secure.step2, lambda: secure.step3(REPLIES), secure.step4)
    for action in steps[step - 1 :]:
        action()
    assert secure.step5().survivors == list(NAMES)


def test_a_second_unmasking() -> None:
    """After the sum is known: the same request, another list, and a list without one site."""
    secure = at_step(5)
    secure.step5()
    for request in requests(secure, VICTIM):
        refused(request, "site02 has completed this round")
    assert not secure.sites[VICTIM]._seed_shares
    assert not secure.sites[VICTIM]._mask_key_shares


def test_a_second_list_to_sign() -> None:
    secure = at_step(5)
    short = Survivors([name for name in NAMES if name != NAMES[0]])
    refused(lambda: secure.sites[VICTIM].signature(short), "out of turn: the next is step 5")


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_a_step_that_failed_is_not_tried_again(step: int) -> None:
    secure = at_step(step)
    site = secure.sites[VICTIM]
    wrong: list[Callable[[], object]] = [
        lambda: site.shares(RosterKeys([])),
        lambda: site.masked(Inbox({}), REPLIES[VICTIM]),
        lambda: site.signature(Survivors([])),
        lambda: site.reveal(Signatures({})),
    ]
    with pytest.raises(SecureAggregationError):
        wrong[step - 2]()
    for request in requests(secure, VICTIM):
        refused(request, "this round has ended for site02")
    secrets = (site._cipher_key, site._mask_key, site._seed)
    assert not any((*secrets, site._seed_shares, site._mask_key_shares))


def test_a_site_cannot_be_copied_or_saved() -> None:
    site = at_step(3).sites[VICTIM]
    for action in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            action(site)


def test_a_restarted_site_masks_no_second_reply(tmp_path: Path) -> None:
    """Otherwise two sums, with and without another site, would expose that site's reply."""
    signatories = identities(NAMES)
    logs: Any = {name: RoundFiles(tmp_path / name) for name in NAMES}
    terms = terms_of(NAMES, REPLIES)
    SecureRound(terms, signatories, logs).all_steps(REPLIES)
    logs = {name: RoundFiles(tmp_path / name) for name in NAMES}
    again = SecureRound(terms, signatories, logs, lost={VICTIM: 2})
    again.step1()
    again.step2()
    refused(lambda: again.step3(REPLIES), "already sent a masked reply for round 1")
    assert not again.masked


# -- what the server and colluders know ------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("sites", "colluders"), [(4, 1), (6, 2), (7, 3)])
def test_only_the_sum_of_all_honest_survivors(sites: int, colluders: int, late: bool) -> None:
    """The attacker knows all messages, all secrets of the colluders and all shares that honest
    sites revealed. For each subset of the honest sites it removes all masks that it can compute.
    Only for the set of all honest survivors is the sum of the replies left.

    With `late`, the server declared a site lost whose masked reply came after all.
    """
    names = names_of(sites)
    replies = replies_of(names, size=2)
    terms = terms_of(names, replies, colluders)
    bad = list(names[sites - colluders :])
    late_site = names[1] if late and sites > terms.threshold else ""
    secure = SecureRound(terms)
    secure.step1()
    known = Known(secure)
    known.learn_secrets(bad)
    secure.step2()
    for name in names:
        site = secure.sites[name]
        secure.masked[name] = through_bytes(site.masked(secure.inboxes[name], replies[name]))
        if name != late_site:
            secure.server.add_masked(secure.masked[name])
    secure.survivors = secure.server.close()
    colluders_shares = {
        name: (dict(secure.sites[name]._seed_shares), dict(secure.sites[name]._mask_key_shares))
        for name in bad
    }
    if late_site:
        secure.lost[late_site] = 4
    secure.step4()
    secure.step5()
    seeds = {name: shares[0] for name, shares in colluders_shares.items()}
    mask_keys = {name: shares[1] for name, shares in colluders_shares.items()}
    for name, message in secure.revealed.items():
        if name not in bad:
            seeds[name] = {owner: bytes.fromhex(s) for owner, s in message.seeds.items()}
            mask_keys[name] = {owner: bytes.fromhex(s) for owner, s in message.mask_keys.items()}
    known.learn(shares_by_owner(seeds), "seeds")
    known.learn(shares_by_owner(mask_keys), "mask keys")
    honest = [name for name in names if name not in bad]
    in_sum = tuple(name for name in honest if name != late_site)
    assert known.exposes(in_sum, replies)
    for subset in [*proper_subsets(honest), tuple(honest)]:
        if subset != in_sum:
            assert not known.exposes(subset, replies)


def test_without_unmasking_nothing_is_known() -> None:
    """All masked replies and one share of each kind less than the threshold."""
    secure = at_step(4)
    known = Known(secure)
    holders = list(NAMES[:3])
    sites = secure.sites
    known.learn(shares_by_owner({name: sites[name]._seed_shares for name in holders}), "seeds")
    known.learn(shares_by_owner({n: sites[n]._mask_key_shares for n in holders}), "mask keys")
    assert not known.seeds
    assert not known.mask_keys
    for subset in [*proper_subsets(list(NAMES)), NAMES]:
        assert not known.exposes(subset, REPLIES)


# -- malicious sites -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["seeds", "mask_keys"])
@pytest.mark.parametrize("wrong", ["one more", "huge", "zero", "text", "short", "left out"])
def test_wrong_shares(kind: str, wrong: str) -> None:
    """A site reveals something else than its share: the round has no sum, rather than a wrong
    one.
    """
    secure = at_step(5, lost={NAMES[4]: 3})
    for name in secure.answering(5):
        secure.revealed[name] = secure.sites[name].reveal(secure.all_signatures)
    liar = NAMES[0]
    shares = dict(getattr(secure.revealed[liar], kind))
    owner = min(shares)
    number = int(shares[owner], 16)
    texts = {
        "one more": ((number + 1) % shamir.PRIME).to_bytes(33, "big").hex(),
        "huge": "ff" * 33,
        "zero": "00" * 33,
        "text": "nonsense",
        "short": shares[owner][:-2],
    }
    shares[owner] = texts.get(wrong, "")
    if wrong == "left out":
        del shares[owner]
    changes: dict[str, Any] = {kind: shares}
    secure.revealed[liar] = replace(secure.revealed[liar], **changes)
    refused(lambda: secure.server.unmask(secure.revealed.values()), r"share|hexadecimal")


def test_inconsistent_sharing() -> None:
    """A malicious site commits to another seed than it shares."""
    secure = at_step(1)
    liar = secure.sites[NAMES[0]]
    seed = liar._seed
    liar._seed = bytes(32)
    secure.keys = {name: site.keys() for name, site in secure.sites.items()}
    liar._seed = seed
    secure.roster_keys = secure.server.collect_keys(secure.keys.values())
    secure.step2()
    secure.step3(REPLIES)
    secure.step4()
    refused(secure.step5, f"shares of {NAMES[0]}'s secret do not fit what it committed to")


def test_shares_for_strangers() -> None:
    secure = at_step(2)
    shares = [site.shares(secure.roster_keys) for site in secure.sites.values()]
    shares[0].shares["stranger"] = shares[0].shares.pop(NAMES[1])
    refused(lambda: secure.server.collect_shares(shares), "did not send one share for each other")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_one_changed_text_in_any_message(data: st.DataObject) -> None:
    """Between two steps one text of one message is changed. The mean is right, or the round is
    refused by an error of Comity. (A masked reply can be anything: its site could have sent that.)
    """
    secure = SecureRound(terms_of(NAMES[:4], REPLIES), lost=data.draw(lost_sites))
    actions = (secure.step1, secure.step2, lambda: secure.step3(REPLIES), secure.step4)
    changed_step = data.draw(st.integers(1, 4))
    try:
        for number, action in enumerate(actions, 1):
            action()
            if number == changed_step:
                change_one_text(secure, number, data)
        result = secure.step5()
    except ComityError:
        return
    expected = weighted_mean(REPLIES, dict.fromkeys(NAMES, 1.0), result.survivors)
    assert max((result.mean[key] - expected[key]).abs().max().item() for key in expected) < 1e-6


lost_sites = st.dictionaries(st.sampled_from(NAMES[:4]), st.integers(1, 5), max_size=1)


def change_one_text(secure: SecureRound, step: int, data: st.DataObject) -> None:
    """Replace a text in what the server is about to send, for all recipients or one of them."""
    text = data.draw(
        st.one_of(st.text(max_size=5), st.binary(min_size=32, max_size=82).map(bytes.hex))
    )
    if step == 1:
        keys = secure.roster_keys.keys
        i = data.draw(st.integers(0, len(keys) - 1))
        field = data.draw(st.sampled_from(sorted(vars(keys[i]))))
        keys[i] = replace(keys[i], **{field: text})
    elif step == 2:
        inbox = secure.inboxes[data.draw(st.sampled_from(sorted(secure.inboxes)))]
        inbox.shares[data.draw(st.sampled_from(sorted(inbox.shares)))] = text
    elif step == 3:
        names = secure.survivors.names
        names[data.draw(st.integers(0, len(names) - 1))] = data.draw(
            st.one_of(st.just(text), st.sampled_from(NAMES))
        )
    else:
        signatures = secure.all_signatures.signatures
        signatures[data.draw(st.sampled_from(sorted(signatures)))] = text
