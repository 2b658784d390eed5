"""Statistics of attacks: confidence intervals, and lower bounds on epsilon that do not exceed the
true epsilon.
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


def test_share_is_the_clopper_pearson_interval() -> None:
    """0 of 10: [0, 1 - (alpha/2)^(1/10)]; 5 of 10: 0.187 to 0.813, as in printed tables."""
    assert share(0, 10, 0.05) == pytest.approx((0.0, 0.0, 1 - 0.025**0.1))
    assert share(10, 10, 0.05) == pytest.approx((1.0, 0.025**0.1, 1.0))
    assert share(5, 10, 0.05) == pytest.approx((0.5, 0.18709, 0.81291), abs=1e-5)


def normal(members: int, others: int, apart: float, seed: int = 0) -> Scored:
    source = torch.Generator().manual_seed(seed)
    member = torch.arange(members + others) < members
    return Scored(torch.randn(members + others, generator=source) + apart * member, member)


def test_area_of_one_party_is_that_of_scikit_learn() -> None:
    scored = normal(80, 60, 1.0)
    interval = area([scored], Key(0))
    assert interval.value == pytest.approx(roc_auc_score(scored.member, scored.scores))
    assert interval.low < interval.value < interval.high


def test_area_compares_members_within_each_party() -> None:
    """A party with larger scores and more members must not look like a successful attack."""
    parties = [normal(300, 30, 0.0, 1), normal(30, 300, 0.0, 2)]
    shifted_parties = [Scored(parties[0].scores + 100, parties[0].member), parties[1]]
    assert area(shifted_parties, Key(0)) == area(parties, Key(0))
    assert area(shifted_parties, Key(0)).low < 0.5


def test_interval_of_a_guessing_attack_rarely_excludes_one_half() -> None:
    """The interval lies above one half with probability 0.25%: of 100 attacks at most two may."""
    assert sum(area([normal(60, 40, 0.0, seed)], Key(seed)).low > 0.5 for seed in range(100)) <= 2


def test_positive_rates_at_few_false_positives() -> None:
    member = torch.arange(1200) < 200
    scores = torch.cat([torch.full((200,), 5.0), torch.arange(1000) / 1000])
    scores[:50] = -1.0
    rates = positive_rates([Scored(scores, member)], 0.01)
    assert rates is not None
    assert rates.members.value == pytest.approx(0.75)
    assert rates.others.value == pytest.approx(0.01)
    assert rates.significant
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
    """Each of 400 memberships is answered truthfully with probability e^eps / (1 + e^eps), which is
    the best attack on a mechanism of this epsilon.
    """
    member = torch.arange(400) < 200
    epsilons = []
    for seed in range(8):
        source = torch.Generator().manual_seed(seed)
        truly = torch.rand(400, generator=source) < 1 / (1 + math.exp(-epsilon))
        answers = torch.where(truly, member, ~member)
        epsilons.append(
            epsilon_from_guesses(
                [Scored(answers + 0.01 * torch.rand(400, generator=source), member)], 0.0, Key(seed)
            )
        )
    assert max(epsilons) <= epsilon
    assert max(epsilons) > epsilon / 3, "the bound is too loose"


@pytest.mark.long
def test_few_certain_members_give_power() -> None:
    """One in a hundred members is found with certainty: the AUC does not show it, the true positive
    rate at few false positives does.
    """
    scored = normal(6000, 6000, 0.0)
    scored.scores[:60] = 10.0
    finding = membership("by batches", "", [scored], True, 1e-5, Key(0))
    assert isinstance(finding, Finding)
    assert finding.low < 0.5
    assert finding.power
    assert "over all no better than guessing" in finding.sentence
    assert "0.10% of others" in finding.sentence


def test_perfect_attack_shows_a_large_epsilon() -> None:
    member = torch.arange(2000) < 1000
    assert epsilon_from_guesses([Scored(member.float(), member)], 1e-5, Key(0)) > 3


def test_one_run_epsilon() -> None:
    """All of r guesses are right with probability q^r: the bound is the epsilon of q = level^(1/r)."""
    q = 0.05 ** (1 / 30)
    assert one_run_epsilon(30, 30, 100, 0.0, 0.05) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert one_run_epsilon(30, 30, 100, 1e-3, 0.05) < one_run_epsilon(30, 30, 100, 0.0, 0.05)
    assert one_run_epsilon(15, 30, 100, 0.0, 0.05) == 0.0
