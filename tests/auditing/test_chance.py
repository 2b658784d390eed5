"""Figures of attacks: intervals that hold what they promise, and an epsilon that is never larger
than the truth.
"""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from comity.auditing.chance import (
    Scored,
    area,
    epsilon_from_guesses,
    one_run_epsilon,
    positive_rates,
    share,
)
from comity.auditing.finding import Finding, membership
from comity.base.key import Key


def test_shares_are_clopper_and_pearsons() -> None:
    """0 of 10: [0, 1 - (alpha/2)^(1/10)]; 5 of 10 is printed in every table: 0.187 to 0.813."""
    assert share(0, 10, 0.05) == pytest.approx((0.0, 0.0, 1 - 0.025**0.1))
    assert share(10, 10, 0.05) == pytest.approx((1.0, 0.025**0.1, 1.0))
    assert share(5, 10, 0.05) == pytest.approx((0.5, 0.18709, 0.81291), abs=1e-5)


def normal(members: int, others: int, apart: float, seed: int = 0) -> Scored:
    source = torch.Generator().manual_seed(seed)
    member = torch.arange(members + others) < members
    return Scored(torch.randn(members + others, generator=source) + apart * member, member)


def test_the_area_is_scikit_learns_where_there_is_one_party() -> None:
    one = normal(80, 60, 1.0)
    found = area([one], Key(0))
    assert found.value == pytest.approx(roc_auc_score(one.member, one.scores))
    assert found.low < found.value < found.high


def test_parties_are_compared_within_themselves() -> None:
    """A party whose scores are all larger, and who has more members, must not look like an attack
    that works.
    """
    parties = [normal(300, 30, 0.0, 1), normal(30, 300, 0.0, 2)]
    moved = [Scored(parties[0].scores + 100, parties[0].member), parties[1]]
    assert area(moved, Key(0)) == area(parties, Key(0))
    assert area(moved, Key(0)).low < 0.5


def test_an_attack_that_guesses_seldom_looks_as_if_it_knew() -> None:
    """Of 100 that guess, the interval may lie above one half in 0.25%: three would be one in 400."""
    assert sum(area([normal(60, 40, 0.0, seed)], Key(seed)).low > 0.5 for seed in range(100)) <= 2


def test_true_positives_where_false_ones_are_few() -> None:
    member = torch.arange(1200) < 200
    scores = torch.cat([torch.full((200,), 5.0), torch.arange(1000) / 1000])
    scores[:50] = -1.0
    found = positive_rates([Scored(scores, member)], 0.01)
    assert found is not None
    assert found.members.value == pytest.approx(0.75)
    assert found.others.value == pytest.approx(0.01)
    assert found.significant
    assert not any(
        few.significant
        for seed in range(50)
        if (few := positive_rates([normal(300, 300, 0.0, seed)], 0.01))
    )
    assert positive_rates([Scored(scores, member)], 0.001) is not None
    assert positive_rates([Scored(scores[:300], member[:300])], 0.001) is None, (
        "100 others cannot show one in a thousand"
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_randomized_response_never_shows_more_than_its_epsilon(epsilon: float) -> None:
    """Each of 400 candidates is told truly with e^eps / (1 + e^eps): the best attack there is, on a
    known epsilon.
    """
    member = torch.arange(400) < 200
    found = []
    for seed in range(8):
        source = torch.Generator().manual_seed(seed)
        truly = torch.rand(400, generator=source) < 1 / (1 + math.exp(-epsilon))
        said = torch.where(truly, member, ~member)
        found.append(
            epsilon_from_guesses(
                [Scored(said + 0.01 * torch.rand(400, generator=source), member)], 0.0, Key(seed)
            )
        )
    assert max(found) <= epsilon
    assert max(found) > epsilon / 3, "it would be no bound worth having"


@pytest.mark.long
def test_few_samples_that_are_found_for_sure_are_power() -> None:
    """One in a hundred was in a batch that was seen: the AUC says nothing of it, true positives at
    few false ones do.
    """
    one = normal(6000, 6000, 0.0)
    one.scores[:60] = 10.0
    found = membership("by batches", "", [one], True, 1e-5, Key(0))
    assert isinstance(found, Finding)
    assert found.low < 0.5
    assert found.power
    assert "over all no better than guessing" in found.sentence
    assert "0.10% of others" in found.sentence


def test_who_knows_everything_shows_much() -> None:
    member = torch.arange(2000) < 1000
    assert epsilon_from_guesses([Scored(member.float(), member)], 1e-5, Key(0)) > 3


def test_one_run_epsilon_by_hand() -> None:
    """All of r guesses right come with q^r: the epsilon of q = level^(1/r)."""
    q = 0.05 ** (1 / 30)
    assert one_run_epsilon(30, 30, 100, 0.0, 0.05) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert one_run_epsilon(30, 30, 100, 1e-3, 0.05) < one_run_epsilon(30, 30, 100, 0.0, 0.05)
    assert one_run_epsilon(15, 30, 100, 0.0, 0.05) == 0.0
