"""Secure aggregation between honest sites and an honest server: the mean is right or the round is
refused, whichever sites are lost; secret sharing, encoding and noise do what their docstrings
state.

What a malicious server can do is in tests/adversary/test_secure_aggregation_attacks.py.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from secure_rounds import (
    CallsInMemory,
    SecureRound,
    identities,
    names_of,
    replies_of,
    terms_of,
    weighted_mean,
)

from comity.algorithms import compose
from comity.base.record import Params
from comity.errors import ComityError, CorruptedFile, UsageError
from comity.privacy.accounting import sampled_gaussian_epsilon
from comity.privacy.secagg import (
    Encoding,
    Layout,
    MaskedReply,
    RoundFiles,
    SecureAggregationError,
    SiteKeys,
    SiteLimits,
    SiteRound,
    Survivors,
    Terms,
    check_only_averages,
    from_bytes,
    least_threshold,
    masks,
    noise,
    shamir,
    to_bytes,
)
from comity.privacy.secagg.encoding import LARGEST
from comity.privacy.secagg.masks import RING
from comity.privacy.secagg.site import context_of

STEPS = (1, 2, 3, 4, 5)


def error(mean: Params, expected: Params) -> float:
    return max((mean[key] - expected[key]).abs().max().item() for key in expected)


# -- the protocol ----------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize(("sites", "colluders"), [(2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (9, 2)])
def test_the_mean_of_all_sites(sites: int, colluders: int) -> None:
    names = names_of(sites)
    replies = replies_of(names)
    terms = terms_of(names, replies, colluders)
    result = SecureRound(terms).all_steps(replies)
    assert result.survivors == list(names)
    expected = weighted_mean(replies, dict.fromkeys(names, 1.0), result.survivors)
    assert result.weight == pytest.approx(sites)
    assert error(result.mean, expected) < 0.5 / terms.encoding.scale + 1e-7


def test_weights_are_in_the_masked_reply() -> None:
    names = names_of(5)
    replies = replies_of(names)
    weights = dict(zip(names, (10.0, 2500.0, 3.0, 77.0, 1000.0), strict=True))
    terms = terms_of(names, replies, largest_weight=2500.0)
    result = SecureRound(terms, lost={names[1]: 3}).all_steps(replies, weights)
    expected = weighted_mean(replies, weights, result.survivors)
    assert result.weight == pytest.approx(1090, rel=1e-6)
    assert error(result.mean, expected) < 1e-7


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("lost_count", [1, 2, 3])
def test_sites_lost_at_each_step(step: int, lost_count: int) -> None:
    """Six sites with a threshold of 4: two may be lost."""
    names = names_of(6)
    replies = replies_of(names)
    secure = SecureRound(
        terms_of(names, replies), lost=dict.fromkeys(names[1 : 1 + lost_count], step)
    )
    assert secure.terms.threshold == 4
    if lost_count > 2:
        with pytest.raises(SecureAggregationError, match=r"3 sites .*, and 4 must"):
            secure.all_steps(replies)
        return
    result = secure.all_steps(replies)
    in_sum = [name for name in names if secure.lost.get(name, 9) > 3]
    assert result.survivors == in_sum
    expected = weighted_mean(replies, dict.fromkeys(names, 1.0), in_sum)
    assert error(result.mean, expected) < 1e-7


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, int, int, dict[int, int], list[float]]:
    """Sites, colluders, a threshold (of any size), who is lost at which step, and weights."""
    sites = draw(st.integers(1, 8))
    colluders = draw(st.integers(0, 3))
    threshold = draw(st.integers(0, sites + 1))
    loss_steps = draw(st.dictionaries(st.integers(0, sites - 1), st.integers(1, 5), max_size=sites))
    weights = draw(st.lists(st.integers(0, 100).map(float), min_size=sites, max_size=sites))
    return sites, colluders, threshold, loss_steps, weights


@given(plans())
@settings(max_examples=150, deadline=None)
def test_the_right_mean_or_a_refusal(
    plan: tuple[int, int, int, dict[int, int], list[float]],
) -> None:
    """A round is refused if, and only if, its terms are invalid, too few sites remain at a step, or
    no weight is above 0.
    """
    sites, colluders, threshold, loss_steps, all_weights = plan
    names = names_of(sites)
    replies = replies_of(names, size=1)
    weights = dict(zip(names, all_weights, strict=True))
    are_terms_valid = 2 * threshold > sites + colluders and colluders + 2 <= threshold <= sites
    losses = {names[i]: step for i, step in loss_steps.items()}
    remaining = [[name for name in names if losses.get(name, 9) > step] for step in STEPS]
    in_sum = remaining[2]
    enough_sites = all(len(names_left) >= threshold for names_left in remaining)
    try:
        layout = Layout.of(replies[names[0]])
        encoding = Encoding(layout, 1.0, Encoding.largest_scale(1.0, sites), 100.0)
        call = terms_of(names_of(4), replies_of(names_of(4))).call
        terms = Terms("run", call, "model", names, threshold, colluders, encoding)
        result = SecureRound(terms, lost=losses).all_steps(replies, weights)
    except ComityError:
        assert not (are_terms_valid and enough_sites and any(weights[name] > 0 for name in in_sum))
        return
    assert are_terms_valid
    assert enough_sites
    assert result.survivors == in_sum
    total = sum(weights[name] for name in in_sum)
    assert result.weight == pytest.approx(total, rel=1e-6)
    bound = sites * 100 / total * (0.5 / encoding.scale + 1e-8) + 1e-7
    assert error(result.mean, weighted_mean(replies, weights, in_sum)) < bound


def test_no_mask_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two rounds with the same sites: each pair's mask is used by its two ends, and each self
    mask by one site and the server. All are different.
    """
    keys_at_sites: list[bytes] = []
    original = masks.key_stream

    def record_key(key: bytes) -> Any:
        keys_at_sites.append(key)
        return original(key)

    monkeypatch.setattr(masks, "key_stream", record_key)
    names = names_of(5)
    replies = replies_of(names)
    signatories = identities(names)
    logs = {name: CallsInMemory() for name in names}
    for round in (1, 2):
        secure = SecureRound(terms_of(names, replies, round=round), signatories, logs)
        secure.step1()
        secure.step2()
        secure.step3(replies)
    uses = sorted(keys_at_sites.count(key) for key in set(keys_at_sites))
    assert uses == [1] * 10 + [2] * 20  # 5 self masks and 10 pairs in each round


def test_a_pairs_key_is_bound_to_pair_and_round() -> None:
    first_key, second_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    publics = [key.public_key().public_bytes_raw().hex() for key in (first_key, second_key)]
    key = masks.pair_key(first_key, publics[1], b"context", "a", "b")
    assert masks.pair_key(second_key, publics[0], b"context", "b", "a") == key
    other_keys = {
        masks.pair_key(first_key, publics[1], b"context", "a", "c"),
        masks.pair_key(first_key, publics[1], b"another context", "a", "b"),
        masks.agree(first_key, publics[1], "shares", b"context", "a", "b"),
        masks.pair_key(first_key, publics[1], b"context", "", "ab"),
    }
    assert len(other_keys | {key}) == 5
    terms = [
        terms_of(names_of(3), replies_of(names_of(3)), round=round, run=run)
        for round in (1, 2)
        for run in ("a", "b")
    ]
    assert len({context_of(round_terms, {}) for round_terms in terms}) == 4


def test_all_keys_are_fresh() -> None:
    names = names_of(4)
    replies = replies_of(names)
    signatories = identities(names)
    rounds = [SecureRound(terms_of(names, replies), signatories) for _ in range(3)]
    keys = [keys for secure in rounds for keys in secure.step1().keys]
    texts = [text for key in keys for text in (key.cipher_key, key.mask_key, key.commitment)]
    assert len(set(texts)) == 3 * 4 * 3


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_masked_replies_are_uniform(value: float) -> None:
    """Each of the four bytes, by a χ² test, for the same reply of constant numbers. A masked reply
    is as likely to be rejected as random bytes: with probability 1e-6.
    """
    names = names_of(3)
    replies = {name: {"weight": torch.full([200_000], value)} for name in names}
    secure = SecureRound(terms_of(names, replies))
    secure.step1()
    secure.step2()
    secure.step3(replies)
    for name in names:
        values = secure.masked[name].values.numpy()
        for column in values.view(np.uint8).reshape(-1, 4).T:
            assert stats.chisquare(np.bincount(column, minlength=256)).pvalue > 1e-6
        unsigned = values.view(np.uint32)
        steps = (unsigned[1:] - unsigned[:-1]) >> 24
        assert stats.chisquare(np.bincount(steps, minlength=256)).pvalue > 1e-6


def test_a_site_reports_what_it_clipped() -> None:
    names = names_of(3)
    replies = replies_of(names)
    replies[names[0]]["bias"][:2] = torch.tensor([3.0, -4.0])
    secure = SecureRound(terms_of(names, replies))
    result = secure.all_steps(replies)
    assert [secure.sites[name].clipped for name in names] == [2, 0, 0]
    replies[names[0]]["bias"][:2] = torch.tensor([1.0, -1.0])
    expected = weighted_mean(replies, dict.fromkeys(names, 1.0), list(names))
    assert error(result.mean, expected) < 1e-7


# -- terms and limits ------------------------------------------------------------------------------


@pytest.mark.quick
def test_the_least_threshold() -> None:
    """The smallest with 2t > n + c and two honest replies; the paper's ⌊2n/3⌋ + 1 satisfies it for
    c < n/3.
    """
    for sites, colluders in itertools.product(range(1, 40), range(6)):
        least = least_threshold(sites, colluders)
        assert 2 * least > sites + colluders
        assert least - colluders >= 2
        assert 2 * (least - 1) <= sites + colluders or least - 1 - colluders < 2
        if 3 * colluders < sites and sites > 3:
            assert least <= 2 * sites // 3 + 1
    assert [least_threshold(n, 1) for n in (3, 4, 5, 10)] == [3, 3, 4, 6]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"threshold": 5}, "threshold of 10 sites with 1 colluders must be from 6 to 10, not 5"),
        ({"threshold": 11}, "must be from 6 to 10, not 11"),
        ({"colluders": 9}, "cannot withstand 9 colluders"),
        ({"colluders": -1}, "colluders must be a number from 0 on, not -1"),
        ({"roster": ("b", "a", "c", "d")}, "distinct names in ascending order"),
        ({"roster": ("a", "a", "b", "c", "d")}, "distinct names in ascending order"),
        ({"roster": ("a",)}, "Secure aggregation of 1 sites cannot"),
    ],
)
def test_terms_that_are_refused(change: dict[str, Any], reason: str) -> None:
    names = names_of(10)
    terms = terms_of(names, replies_of(names))
    with pytest.raises(UsageError, match=reason):
        replace(terms, **change)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SiteLimits(7, 4, 1), "threshold of at least 7, not 6"),
        (SiteLimits(6, 11, 1), "at least 11 sites, not of 10"),
        (SiteLimits(6, 10, 2), "at least 2 colluders, not 1"),
    ],
)
def test_terms_below_the_limits_of_a_site(limits: SiteLimits, reason: str) -> None:
    names = names_of(10)
    with pytest.raises(UsageError, match=reason):
        SecureRound(terms_of(names, replies_of(names)), limits=limits)


def test_too_few_sites_sent_keys() -> None:
    names = names_of(6)
    replies = replies_of(names)
    secure = SecureRound(terms_of(names, replies), lost={names[0]: 1}, limits=SiteLimits(4, 6, 1))
    with pytest.raises(SecureAggregationError, match=r"5 sites sent keys.* requires 6"):
        secure.all_steps(replies)


def test_a_site_that_is_not_on_the_roster() -> None:
    names = names_of(4)
    terms = terms_of(names[:3], replies_of(names))
    with pytest.raises(SecureAggregationError, match="site03 is not on the roster"):
        SiteRound(terms, SiteLimits(3, 3, 1), identities(names)[names[3]], CallsInMemory())


@pytest.mark.parametrize("text", ["fedavg+median", "fedavg+trimmed", "fedavg+krum", "fedproto"])
def test_methods_that_need_single_replies(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{text} cannot have secure aggregation")):
        check_only_averages(compose(text), text)


@pytest.mark.parametrize("text", ["fedavg", "fedprox", "fedavg+dp"])
def test_methods_that_only_average(text: str) -> None:
    check_only_averages(compose(text), text)


def test_a_log_of_calls_survives_a_restart(tmp_path: Path) -> None:
    names = names_of(3)
    replies = replies_of(names)
    first, second = (terms_of(names, replies, round=round) for round in (1, 2))
    RoundFiles(tmp_path / "log").claim(first)
    with pytest.raises(SecureAggregationError, match="already sent a masked reply for round 1"):
        RoundFiles(tmp_path / "log").claim(first)
    with pytest.raises(SecureAggregationError, match="already"):  # with another model
        RoundFiles(tmp_path / "log").claim(replace(first, message="other"))
    RoundFiles(tmp_path / "log").claim(second)
    RoundFiles(tmp_path / "log").claim(replace(first, run="other"))


# -- messages --------------------------------------------------------------------------------------


def test_a_message_of_another_kind() -> None:
    data = to_bytes(Survivors(["a"]))
    assert from_bytes(Survivors, data) == Survivors(["a"])
    with pytest.raises(CorruptedFile):
        from_bytes(MaskedReply, data)
    with pytest.raises(SecureAggregationError, match="should be Survivors, and is SiteKeys"):
        from_bytes(Survivors, to_bytes(SiteKeys("a", "", "", "", "", "")))
    with pytest.raises(CorruptedFile):
        from_bytes(Survivors, b"nonsense")


@pytest.mark.parametrize(
    "values", [torch.zeros(4, dtype=torch.int32), torch.zeros(16), torch.zeros(2, 8).int()]
)
def test_a_masked_reply_of_another_form(values: torch.Tensor) -> None:
    names = names_of(3)
    replies = replies_of(names)
    secure = SecureRound(terms_of(names, replies))
    secure.step1()
    secure.step2()
    with pytest.raises(SecureAggregationError, match="must have 16 32-bit integers"):
        secure.server.add_masked(MaskedReply(names[0], values))


def test_the_server_accepts_each_site_once_and_in_turn() -> None:
    names = names_of(3)
    replies = replies_of(names)
    secure = SecureRound(terms_of(names, replies))
    with pytest.raises(SecureAggregationError, match="out of turn"):
        secure.server.close()
    keys = [site.keys() for site in secure.sites.values()]
    with pytest.raises(SecureAggregationError, match="answered before, sent keys: 'site00'"):
        secure.server.collect_keys([*keys, keys[0]])
    secure = SecureRound(terms_of(names, replies))
    secure.step1()
    secure.step2()
    masked = secure.sites[names[0]].masked(secure.inboxes[names[0]], replies[names[0]])
    secure.server.add_masked(masked)
    with pytest.raises(SecureAggregationError, match="one masked reply"):
        secure.server.add_masked(masked)
    with pytest.raises(SecureAggregationError, match="one masked reply"):
        secure.server.add_masked(replace(masked, name="stranger"))


# -- Shamir's secret sharing -----------------------------------------------------------------------


def is_prime(n: int) -> bool:
    """Miller and Rabin's test with 40 bases."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@pytest.mark.quick
def test_the_field() -> None:
    assert is_prime(shamir.PRIME)
    assert not any(is_prime(n) for n in range(2**256, shamir.PRIME))


@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.randoms())
@settings(max_examples=50, deadline=None)
def test_any_shares_of_the_threshold_give_the_secret(
    secret: bytes, threshold: int, random: Any
) -> None:
    points = random.sample(range(1, 100), 8)
    shares = shamir.split(secret, threshold, points)
    chosen_points = random.sample(points, threshold)
    assert shamir.join({x: shares[x] for x in chosen_points}, threshold) == secret
    assert all(len(share) == shamir.SHARE for share in shares.values())
    with pytest.raises(SecureAggregationError, match=f"needs {threshold} shares"):
        shamir.join({x: shares[x] for x in chosen_points[1:]}, threshold)


@pytest.mark.parametrize("threshold", range(2, 9))
def test_the_polynomial_has_full_degree(threshold: int) -> None:
    """One share less than the threshold does not determine the secret."""
    shares = shamir.split(b"s" * 32, threshold, range(1, 9))
    fewer = {x: shares[x] for x in range(1, threshold)}
    try:
        guess = shamir.join(fewer, threshold - 1)
    except SecureAggregationError:  # a number above 2^256, which is no secret
        return
    assert guess != b"s" * 32


def test_shares_of_no_secret() -> None:
    """A constant polynomial whose value has more than 256 bits."""
    share = (shamir.PRIME - 1).to_bytes(shamir.SHARE, "big")
    with pytest.raises(SecureAggregationError, match="do not fit together"):
        shamir.join(dict.fromkeys((1, 2, 3), share), 3)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets(secret: bytes) -> None:
    assert shamir.join(shamir.split(secret, 3, range(1, 6)), 3) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """With t - 1 shares, each other secret has a polynomial through them."""
    shares = shamir.split(b"s" * 32, 3, range(1, 6))
    known_shares = {1: shares[1], 2: shares[2]}
    for guess in (b"s" * 32, b"x" * 32, bytes(32)):
        # The third share that would make it so: Lagrange interpolation through (0, guess).
        x, y = [0, 1, 2], [int.from_bytes(part, "big") for part in (guess, shares[1], shares[2])]
        third = 0
        for i in range(3):
            numerator = math.prod(3 - x[j] for j in range(3) if j != i)
            denominator = math.prod(x[i] - x[j] for j in range(3) if j != i)
            third += y[i] * numerator * pow(denominator, -1, shamir.PRIME)
        share = (third % shamir.PRIME).to_bytes(shamir.SHARE, "big")
        assert shamir.join(known_shares | {3: share}, 3) == guess


@pytest.mark.parametrize(
    ("secret", "threshold", "points"),
    [(b"short", 2, (1, 2)), (bytes(32), 3, (1, 2)), (bytes(32), 2, (1, 1)), (bytes(32), 2, (0, 1))],
)
def test_sharing_that_is_refused(secret: bytes, threshold: int, points: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"secret|threshold|points"):
        shamir.split(secret, threshold, points)


# -- encoding --------------------------------------------------------------------------------------


def encoding_of(size: int, **options: Any) -> Encoding:
    return Encoding(Layout.of({"x": torch.zeros(size)}), **options)


@pytest.mark.quick
@pytest.mark.parametrize("sites", [2, 3, 7, 10, 1000])
@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_sums_do_not_overflow(sites: int, sign: int) -> None:
    """All sites send the largest values with the largest scale; a larger scale is refused."""
    clip = 3.7
    encoding = encoding_of(2, clip=clip, scale=Encoding.largest_scale(clip, sites))
    encoding.check(sites, sites, 0)
    total = np.zeros(encoding.length, dtype=RING)
    reply = {"x": torch.full([2], sign * 1e9)}
    for _ in range(sites):
        total += encoding.encode(reply, 1.0, sites).vector
    mean, weight = encoding.decode(total, sites)
    assert weight == pytest.approx(sites)
    assert mean["x"].tolist() == pytest.approx([sign * clip] * 2, rel=1e-6)
    with pytest.raises(UsageError, match="overflow beyond 2147483647: use a smaller scale"):
        replace(encoding, scale=(LARGEST / sites + 1) / clip).check(sites, sites, 0)
    for huge in (1e12, 1e300, 1.7e308):
        with pytest.raises(UsageError, match="overflow beyond"):
            replace(encoding, scale=huge).check(sites, sites, 0)
    noise_of_1000_steps = 1000 * math.sqrt(sites) / (LARGEST // sites)
    with pytest.raises(UsageError, match="overflow beyond"):  # by the noise alone
        replace(encoding, noise=noise_of_1000_steps).check(sites, sites, 0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clip": 0.0, "scale": 1.0}, "clip must be a number above 0"),
        ({"clip": 1.0, "scale": math.nan}, "scale must be a number above 0"),
        ({"clip": math.inf, "scale": 1.0}, "clip must be"),
        ({"clip": 1.0, "scale": 1.0, "largest_weight": -1.0}, "largest_weight must be"),
        ({"clip": 1.0, "scale": 1.0, "noise": -1.0}, "noise must be a number from 0 on"),
    ],
)
def test_encodings_that_are_refused(options: dict[str, float], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        encoding_of(2, **options)


def test_replies_that_are_refused() -> None:
    encoding = encoding_of(2, clip=1.0, scale=1000.0, largest_weight=5.0)
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(UsageError, match="x has values that are not finite"):
            encoding.encode({"x": torch.tensor([0.0, value])}, 1.0, 3)
    for weight in (-1.0, 5.1, math.nan):
        with pytest.raises(UsageError, match="A weight must be from 0 to 5"):
            encoding.encode({"x": torch.zeros(2)}, weight, 3)
    for tree in ({"x": torch.zeros(3)}, {"y": torch.zeros(2)}, {"x": torch.zeros(1, 2)}):
        with pytest.raises(UsageError, match="other tensors than those agreed on"):
            encoding.encode(tree, 1.0, 3)
    with pytest.raises(UsageError, match="averages floating-point tensors, and x is int64"):
        encoding.encode({"x": torch.zeros(2, dtype=torch.int64)}, 1.0, 3)
    with pytest.raises(UsageError, match="at least one number"):
        encoding_of(0, clip=1.0, scale=1.0)
    with pytest.raises(UsageError, match="all sites count alike, so the weight must be 5"):
        replace(encoding, noise=1.0).encode({"x": torch.zeros(2)}, 1.0, 3)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30),
    st.floats(0.01, 100),
    st.floats(1, 1e6),
)
@settings(max_examples=200, deadline=None)
def test_the_sensitivity_bounds_every_reply(values: list[float], clip: float, scale: float) -> None:
    """The norm of the integers, for every reply, is at most scale·clip + √d/2."""
    encoding = encoding_of(len(values), clip=clip, scale=scale, noise=1.0)
    vector = encoding.encode({"x": torch.tensor(values)}, 1.0, 4).vector
    norm = math.sqrt(sum(int(x) ** 2 for x in vector[:-1].view(np.int32)))
    assert norm <= encoding.sensitivity


# -- noise -----------------------------------------------------------------------------------------


def exact_table(sigma: float) -> np.ndarray:
    """P(|k| > j) for j from 0 on, in float64."""
    k = np.arange(math.ceil(20 * sigma))
    mass = np.exp(-(k**2) / (2 * sigma**2))
    mass[1:] *= 2
    tails = np.cumsum(mass[::-1])[::-1]
    return tails[1:] / tails[0]


@pytest.mark.parametrize("sigma", [4.0, 5.3, 100.0, 1234.5])
def test_the_table_of_the_sampler(sigma: float) -> None:
    table = noise.tail_table(sigma)
    computed = (table.high.astype(np.float64) + table.low / 2.0**64) / 2.0**63
    assert computed[::-1] == pytest.approx(exact_table(sigma)[: len(computed)], rel=1e-9, abs=2e-32)
    assert (np.diff(table.high.astype(np.float64)) >= 0).all()


@pytest.mark.parametrize("sigma", [4.0, 30.0])
def test_noise_is_discrete_gaussian(sigma: float) -> None:
    """By a χ² test over all values with at least 20 expected; it fails by chance once in 1e6."""
    count = 300_000
    samples = noise.discrete_gaussian(b"k" * 32, count, sigma)
    values = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    mass = np.exp(-(values**2) / (2 * sigma**2))
    expected = count * mass / mass.sum()
    observed = np.array([(samples == value).sum() for value in values])
    is_frequent = expected >= 20
    other_values = [expected[~is_frequent].sum()], [observed[~is_frequent].sum()]
    statistic = stats.chisquare(
        np.append(observed[is_frequent], other_values[1]),
        np.append(expected[is_frequent], other_values[0]),
    )
    assert statistic.pvalue > 1e-6
    assert samples.var() == pytest.approx(sigma**2, rel=0.02)


def test_low_bits_decide_where_high_bits_are_equal() -> None:
    """The far tail: all entries have equal high bits and are distinguished by 64 more bits."""
    table = noise.tail_table(4.0)
    far = int((table.high == 0).sum())
    assert far > 5

    class Stream:
        def __init__(self, value: int) -> None:
            self.value = value

        def update(self, zeros: bytes) -> bytes:
            assert zeros == bytes(8)
            return self.value.to_bytes(8, "little")

    def size(low: int) -> int:
        stream: Any = Stream(low)
        return int(noise._sizes(table, np.zeros(1, dtype=np.uint64), stream)[0])

    assert size(0) == len(table.high) - int(((table.high == 0) & (table.low == 0)).sum())
    assert size(2**64 - 1) == len(table.high) - far
    for i in range(far):
        if table.low[i]:
            assert size(int(table.low[i]) - 1) == len(table.high) - i
            assert size(int(table.low[i])) <= len(table.high) - i - 1
    # An entry in the middle: the next number of 127 bits below it counts it, the entry does not.
    middle = len(table.high) // 4
    high = table.high[-middle : -middle + 1].copy()
    for low, count in (
        (int(table.low[-middle]) - 1, middle),
        (int(table.low[-middle]), middle - 1),
    ):
        stream: Any = Stream(low)
        assert noise._sizes(table, high, stream).tolist() == [count]


def test_noise_depends_on_its_key_only() -> None:
    first, repeated, of_other_key = (
        noise.discrete_gaussian(key * 32, 100_000, 50.0) for key in (b"a", b"a", b"b")
    )
    assert (first == repeated).all()
    assert abs(np.corrcoef(first, of_other_key)[0, 1]) < 0.02
    assert (noise.discrete_gaussian(b"a" * 32, 70_000, 50.0) == first[:70_000]).all()


@pytest.mark.parametrize("lost_count", [0, 2])
def test_noise_on_the_sum(lost_count: int) -> None:
    """At the fewest survivors, the honest ones among them add the declared variance; with more
    survivors there is more.
    """
    names = names_of(6)
    replies = {name: {"x": torch.zeros(100_000)} for name in names}
    terms = terms_of(names, replies, 1, 4, scale=2000.0, noise=1.5)
    losses = dict.fromkeys(names[:lost_count], 3)
    result = SecureRound(terms, lost=losses).all_steps(replies)
    survivors = 6 - lost_count
    encoding = terms.encoding
    on_sum = result.mean["x"].double() * survivors * encoding.scale
    declared_sigma = encoding.noise * encoding.sensitivity
    honest = terms.threshold - terms.colluders
    assert on_sum.var().item() == pytest.approx(declared_sigma**2 * survivors / honest, rel=0.03)
    assert encoding.sigma(4, 1) ** 2 * honest == pytest.approx(declared_sigma**2)
    assert encoding.sensitivity == 2000 + math.sqrt(100_000) / 2


def test_two_rounds_have_different_noise() -> None:
    names = names_of(3)
    replies = {name: {"x": torch.zeros(1000)} for name in names}
    first, second = (
        SecureRound(terms_of(names, replies, round=round, scale=100.0, noise=1.0))
        .all_steps(replies)
        .mean["x"]
        for round in (1, 2)
    )
    assert (first != second).float().mean() > 0.9


@pytest.mark.parametrize(("scale", "word"), [(0.1, "larger"), (1e6, "smaller"), (1e-300, "larger")])
def test_noise_that_cannot_be_drawn(scale: float, word: str) -> None:
    encoding = encoding_of(1, clip=1.0, scale=scale, noise=1.0)
    with pytest.raises(UsageError, match=f"use a {word} scale than"):
        encoding.check(10, 7, 1)


def test_privacy_of_the_noisy_sum() -> None:
    """The privacy loss of the sum of discrete Gaussians, computed from their exact distribution in
    one dimension, is below what the account says of Gaussian noise with this multiplier.
    """
    multiplier, threshold, colluders = 2.0, 4, 1
    encoding = encoding_of(1, clip=1.0, scale=40.0, noise=multiplier)
    shift = math.floor(encoding.sensitivity)
    sigma = encoding.sigma(threshold, colluders)
    k = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    mass = np.exp(-(k**2) / (2 * sigma**2))
    mass /= mass.sum()
    total = mass
    for _ in range(threshold - colluders - 1):
        total = np.convolve(total, mass)
    delta = 1e-5
    epsilon = sampled_gaussian_epsilon(1.0, multiplier, 1, delta)
    shifted, unshifted = np.append(np.zeros(shift), total), np.append(total, np.zeros(shift))
    assert np.maximum(shifted - math.exp(epsilon) * unshifted, 0).sum() < delta
    assert np.maximum(shifted - math.exp(epsilon / 3) * unshifted, 0).sum() > delta
