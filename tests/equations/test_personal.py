"""FedFomo, pFedMe, APPLE, Fed-MTL and FML: their steps by hand, their known answers, and what they are with their extras off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toys import assert_near, federation, net_of, noise, party_of, rounds, same, samples, task_of, worked

import comity
from comity.algorithms.fedfomo import Affinities, FedFomo, FomoState, Offered, chosen
from comity.core import Empty, Key, Params, Party, Samples, Task, Training

SIZES = (9, 14, 6)
SETTINGS: dict[str, Any] = {"model": "mlp2(width=7)", "rounds": 3, "engine": "loop", "lr": 0.1, "batch": 4}


def small() -> Task:
    return task_of("mlp2(width=5)", (6,), 3)


def deployed(method: str, fed: comity.Federation | None = None, **settings: Any) -> list[Params]:
    result = comity.run(method, fed or federation(SIZES), **SETTINGS | settings)
    return [result.model(name).theta for name in result.job.info.names]


def all_same(ours: list[Params], theirs: list[Params]) -> bool:
    return all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def flat(theta: Params) -> torch.Tensor:
    return torch.cat([v.flatten() for v in theta.values()])


# --- FedFomo


def fomo_party(count: int = 10) -> Party:
    return party_of(small(), samples(count, (6,), 3), Training(lr=0.1, batch=4), parties=3)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_fedfomo_weights_and_update_by_hand(norm: str) -> None:
    party, method = fomo_party(), FedFomo(norm=norm)
    task, data = party.task, party.data.train
    before, trained, *others = (task.init(Key(k)) for k in range(1, 6))
    held = Samples(data.x[[4, 9]], data.y[[4, 9]])  # every fifth sample

    def loss(theta: Params) -> float:
        return F.cross_entropy(task.logits(theta, held.x), held.y).item()

    models = dict(enumerate([trained, *others]))
    by_hand = {
        n: (loss(before) - loss(m)) / torch.linalg.vector_norm(flat(m) - flat(before), int(norm[1])).item()
        for n, m in models.items()
    }
    state = FomoState(trained, before, False)
    mine, w = worked(method.weigh(state, Offered({j: models[j] for j in (1, 2, 3)}), party, Key(0)))
    assert w == pytest.approx(by_hand, rel=1e-4)
    better = {n: value for n, value in by_hand.items() if value > 0}
    assert 0 < len(better) < 4, "some do better, and some do not"
    total = sum(better.values())
    expected = {k: v + sum(x / total * (models[n][k] - v) for n, x in better.items()) for k, v in before.items()}
    assert_near(mine.begin, expected)
    assert mine.weighed
    assert same(method.model(mine, Empty(), party), trained)


def test_fedfomo_stays_where_it_was_if_no_model_does_better() -> None:
    """θ + Σ w⁺ (θ_n − θ) with all w⁺ = 0, though the party has trained since."""
    party = fomo_party()
    models = sorted((party.task.init(Key(k)) for k in range(1, 6)), key=lambda m: fomo_loss(party, m))
    best, *worse = models
    mine, w = worked(FedFomo().weigh(FomoState(worse[0], best, False), Offered(dict(enumerate(worse[1:], 1))), party, Key(0)))
    assert all(value < 0 for value in w.values())
    assert same(mine.begin, best)


def fomo_loss(party: Party, theta: Params) -> float:
    data = party.data.train
    return F.cross_entropy(party.task.logits(theta, data.x[4::5]), data.y[4::5]).item()


def test_fedfomo_a_model_that_overflows_is_not_taken() -> None:
    party = fomo_party()
    theta, other = party.task.init(Key(1)), party.task.init(Key(2))
    broken = {k: v * 1e30 for k, v in other.items()}
    _, w = worked(FedFomo().weigh(FomoState(theta, theta, False), Offered({1: broken}), party, Key(0)))
    assert w == {0: 0.0, 1: 0.0}


def test_fedfomo_with_its_own_model_only_is_solo_on_what_is_not_held_out() -> None:
    def less(part: Samples) -> Samples:
        return part.take([k for k in range(len(part)) if k % 5 != 4])

    fed = federation(SIZES)
    without = comity.Federation.from_arrays(
        {
            name: ((less(party.train).x, less(party.train).y), (party.test.x, party.test.y))
            for name, party in fed.parties.items()
        },
        validation=0.0,
        classes=3,
    )
    assert all_same(deployed("fedfomo(models=1)", fed), deployed("solo", without))


def test_fedfomo_weighs_by_validation_samples_if_there_are_any() -> None:
    party = fomo_party()
    validated = replace(party, data=replace(party.data, validation=samples(4, (6,), 3, seed=9)))
    method = FedFomo()
    assert len(method.samples(validated.data, held_out=False)) == 10
    assert len(method.samples(validated.data, held_out=True)) == 4
    assert (len(method.samples(party.data, False)), len(method.samples(party.data, True))) == (8, 2)
    few = fomo_party(4).data
    assert len(method.samples(few, held_out=False)) == len(method.samples(few, held_out=True)) == 4


def test_fedfomo_takes_the_nearest_and_explores_with_chance_epsilon() -> None:
    affinity = [0.0, 0.3, -0.2, 0.9, 0.1, 0.0]
    others = [0, 1, 2, 4, 5]
    assert chosen(affinity, others, 2, 0.0, Key(1)) == [1, 4]
    drawn = [tuple(chosen(affinity, others, 2, 1.0, Key(k))) for k in range(60)]
    assert len(set(drawn)) == 10, "each pair of five"
    ties = {chosen([0.0] * 3, [0, 1, 2], 1, 0.0, Key(k))[0] for k in range(30)}
    assert ties == {0, 1, 2}


def test_fedfomo_affinities_add_up() -> None:
    """After a round P_ij = δ_ij + w_ij for the models that i weighed; each weighs both others and its own."""
    task, how = small(), Training(lr=0.1, batch=4)
    method = FedFomo(models=3)
    data = [samples(n, (6,), 3, seed=n) for n in (10, 15, 20)]
    net, s = net_of(method, task, data, how)
    assert torch.equal(s.P, torch.eye(3))
    one = rounds(method, net, s, 1)
    begin = task.init(Key.root(0).fold("init"))
    trained = {i: net.state(i).trained for i in range(3)}
    for i in range(3):
        party = party_of(task, data[i], how, i, 3)
        w = method.weights(begin, trained, party)
        assert one.P[i].tolist() == pytest.approx([float(i == j) + w[j] for j in range(3)], abs=1e-6)
    assert isinstance(one, Affinities)


def test_fedfomo_who_missed_the_exchange_goes_on_from_what_it_trained() -> None:
    party, method = fomo_party(), FedFomo()
    begin, trained = party.task.init(Key(1)), party.task.init(Key(2))
    missed, _ = worked(method.local(FomoState(trained, begin, False), Empty(), party, Key(3)))
    took, _ = worked(method.local(FomoState(begin, trained, True), Empty(), party, Key(3)))
    assert same(missed.begin, trained)
    assert same(missed.trained, took.trained)


def test_fedfomo_no_option_is_without_effect() -> None:
    usual = deployed("fedfomo", epsilon=0)
    for options in ({"models": 2}, {"norm": "l1"}):
        assert not all_same(deployed("fedfomo", **{"epsilon": 0, **options}), usual)
    greedy, always, once = (
        deployed(f"fedfomo(models=2,{options})", rounds=6)
        for options in ("epsilon=0", "epsilon=1,epsilon_decay=0", "epsilon=1,epsilon_decay=1")
    )
    assert not all_same(greedy, always)
    assert all_same(greedy, once), "ε is 0 from round 1 on"


def test_fedfomo_takes_mr_and_no_offset() -> None:
    assert not all_same(deployed("fedfomo+mr", kappa=50), deployed("fedfomo"))
    assert all_same(deployed("fedfomo+mr", kappa=0), deployed("fedfomo"))
    with pytest.raises(comity.Refusal, match=r"use fedfomo\+mr"):
        comity.run("fedfomo+dbe", federation(SIZES), **SETTINGS)


def test_mr_sends_no_model_to_parties_that_have_theirs() -> None:
    """Before round 1: K floats up and K down (the consensus), and nothing else."""
    charged = [row for row in comity.run("fedfomo+mr", federation(SIZES), **SETTINGS).ledger if row.round == 0]
    of_start = {(row.work, row.kind): row.bytes for row in charged if row.work in ("mean", "agree")}
    assert of_start == {("mean", "up"): 4 * 7, ("agree", "down"): 4 * 7}
