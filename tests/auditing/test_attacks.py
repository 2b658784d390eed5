"""Attacks on real runs: each has power where it must, and reports where it has none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

import comity
from comity.auditing.audit import RunAudit, audit_run
from comity.auditing.decoding import ridge
from comity.auditing.finding import Finding, Untried
from comity.auditing.first_layer import FirstLayer
from comity.auditing.inverting import match_samples, recover_samples
from comity.auditing.view import View
from comity.base.key import Key

FOLDERS: list[TemporaryDirectory[str]] = []
SETTINGS: dict[str, Any] = {
    "partition": "iid",
    "parties": 4,
    "model": "mlp2(width=100)",
    "rounds": 2,
}


@cache
def attack_run(method: str, **settings: Any) -> RunAudit:
    """The findings of all attacks on a new run."""
    FOLDERS.append(TemporaryDirectory())
    folder = Path(FOLDERS[-1].name) / "run"
    comity.run(method, out=folder, record_messages=True, **(SETTINGS | settings))
    return audit_run(folder)


def finding(audited: RunAudit, attack: str) -> Finding:
    by_attack = {item.attack: item for item in audited.findings}
    assert attack in by_attack, (sorted(by_attack), audited.untried)
    return by_attack[attack]


# --- rows


def test_membership_attack_on_rows_has_power() -> None:
    """The first rows come from weights that are close to the common initial weights, so nearly all
    members are found.
    """
    result = finding(attack_run("adcol"), "membership: rows, first weights")
    assert result.power
    assert result.success > 0.95
    assert result.figures["members"] + result.figures["others"] == sum(
        len(party.train) + len(party.test)
        for party in comity.load("digits").partition("iid", parties=4, seed=0).parties.values()
    )
    assert result.figures["tpr_at_0.01"][0] > 0.5
    assert result.figures["tpr_at_0.001"] is None, "450 samples cannot show one in a thousand"
    assert "0.1% of false positives cannot be measured" in " ".join(result.notes)
    assert result.epsilon is not None
    assert result.epsilon > 1


def test_decoder_attack_on_rows_has_power() -> None:
    result = finding(attack_run("adcol"), "decoder, first weights")
    assert result.power
    assert result.success > 0.5
    assert result.prior < 0.1
    assert result.figures["squared_error"] < result.figures["squared_error_of_a_mean_picture"]


def test_rows_of_the_same_round_decode_better_than_first_weights() -> None:
    """After three epochs at a large learning rate first weights have little in common with the
    encoders, but the colluder's own encoder has.
    """
    result = attack_run("adcol", lr=0.1, epochs=3)
    by_weights = finding(result, "decoder, first weights")
    by_rows = finding(result, "decoder, rows of the same round")
    assert by_rows.low > by_weights.high
    assert by_rows.prior == by_weights.prior
    assert by_rows.figures["samples"] == by_weights.figures["samples"]


def test_attacks_on_noisy_rows_have_no_power() -> None:
    noisy = attack_run("adcol(noise=lap_l1,epsilon=0.1)")
    for attack in ("membership: rows, first weights", "membership: rows, colluder's model"):
        result = finding(noisy, attack)
        assert not result.power
        assert "has no power here" in result.sentence
        assert "does not show that nothing can be learned" in result.sentence
        assert result.epsilon == 0.0


def test_with_own_initial_weights_only_the_colluder_attacks() -> None:
    assert {item.attack for item in attack_run("adcol", init="own").findings} == {
        "membership: rows, colluder's model",
        "decoder, colluder's model",
        "decoder, rows of the same round",
    }


def test_decoder_is_not_tried_on_sampled_rows() -> None:
    (untried,) = attack_run("adcol(sampling=0.5)").untried
    assert untried.attack == "decoder"
    assert "it is not known which sample a row is of" in untried.sentence


def test_a_linear_encoder_is_inverted_exactly() -> None:
    source = torch.Generator().manual_seed(0)
    x, mixing = torch.randn(400, 5, generator=source), torch.randn(5, 20, generator=source)
    decoded = ridge(x @ mixing, x)(x[:7] @ mixing)
    assert torch.cdist(decoded, x).argmin(1).tolist() == list(range(7))


# --- means


def test_membership_attack_on_class_means_has_power() -> None:
    result = finding(attack_run("relay"), "membership: class means, first weights")
    assert result.power
    assert result.success > 0.6


def test_secret_means_are_not_attacked() -> None:
    assert not attack_run("relay(secret=1.0)").findings


SCATTERED: dict[str, Any] = {
    "parties": 10,
    "partition": "dirichlet(0.3)",
    "seed": 3,
    "model": "mlp2",
}


def test_means_of_two_or_three_samples_name_them() -> None:
    result = attack_run("relay", **SCATTERED)
    by_weights = finding(result, "decoder: class means of few samples, first weights")
    assert by_weights.power
    assert by_weights.success > 0.5
    assert by_weights.prior < 0.01
    assert by_weights.figures["cosine"] > 0.95
    parties = View(result.folder).job.parties
    counts = [int((party.data.train.y == c).sum()) for party in parties for c in range(10)]
    assert by_weights.figures["means"] == sum(count in (2, 3) for count in counts)


def test_means_of_many_samples_name_none() -> None:
    assert not [item for item in attack_run("relay").findings if "few samples" in item.attack]


# --- weights and updates


def test_membership_attack_on_weights_has_power() -> None:
    """With few samples and many epochs, weights reveal members."""
    audited = attack_run("fedavg", parties=20, epochs=20, rounds=3)
    by_updates = finding(audited, "membership: updates")
    assert by_updates.power
    assert finding(audited, "membership: weights").success > 0.5
    many = finding(audited, "inversion: updates")
    assert not many.power
    assert many.success == 0


@pytest.mark.long
def test_update_of_one_small_step_is_inverted() -> None:
    result = finding(attack_run("fedavg", steps=1, batch=5, model="mlp2"), "inversion: updates")
    assert result.power
    assert result.figures["samples"] == 4 * 5
    assert result.success >= 0.9
    assert result.prior == 0.0
    assert result.pictures is not None
    scale = (result.pictures.originals - result.pictures.guesses).flatten(1).norm(
        dim=1
    ) / result.pictures.originals.flatten(1).norm(dim=1)
    assert scale[0] < 1e-3, "the best guess is not the sample itself"


# --- gradients


def test_gradients_of_small_batches_are_inverted() -> None:
    audited = attack_run("fed-sps", rounds=1, batch=6, model="mlp2")
    inversion = finding(audited, "inversion: gradients")
    assert inversion.power
    assert inversion.figures["samples"] == 4 * 6
    assert inversion.success >= 0.8
    membership = finding(audited, "membership: gradients")
    assert membership.figures["tpr_at_0.01"][0] == pytest.approx(
        6 / (membership.figures["members"] / 4), abs=0.01
    ), "more or fewer members than those in batches"


def test_gradients_of_large_batches_are_not_inverted() -> None:
    audited = attack_run("fed-sps", rounds=1, batch=100, steps=1)
    assert "at least as many samples as a sample has values" in audited.untried[0].sentence
    assert not finding(audited, "inversion: gradients").power


def test_convolutional_first_layer_is_reported_as_untried() -> None:
    audited = attack_run("fed-sps", rounds=1, batch=100, steps=1, model="lenet5")
    assert [type(item) for item in audited.untried] == [Untried, Untried]
    assert all("not dense" in item.sentence for item in audited.untried)


def relu_layer(x: Tensor, units: int, seed: int) -> FirstLayer:
    """The gradient of a dense layer followed by ReLU, with random gradients from later layers."""
    source = torch.Generator().manual_seed(seed)
    weight = torch.randn(units, x.shape[1], generator=source, dtype=torch.float64)
    changes = torch.randn(len(x), units, generator=source, dtype=torch.float64) * (x @ weight.T > 0)
    return FirstLayer(changes.T @ x, changes.sum(0))


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_batch_is_recovered_from_its_gradient(samples: int) -> None:
    x = torch.randn(
        samples, 30, generator=torch.Generator().manual_seed(samples), dtype=torch.float64
    )
    recovered_samples = recover_samples(relu_layer(x, 150, 0), Key(0))
    assert recovered_samples is not None
    assert torch.cdist(recovered_samples, x).amin(0).max() < 1e-3


def test_too_large_batch_is_not_recovered() -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert recover_samples(relu_layer(x, 150, 0), Key(0)) is None
    assert recover_samples(FirstLayer(torch.zeros(4, 3), torch.zeros(4)), Key(0)) is None


def test_guess_close_to_two_samples_matches_neither() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    certain, which, _ = match_samples(torch.tensor([[0.1, 0.0], [0.5, 0.0], [0.0, 4.0]]), x)
    assert certain.tolist() == [True, False, True]
    assert which[[0, 2]].tolist() == [0, 2]


# --- all attacks


def test_samples_that_are_sent_are_found() -> None:
    """Pooled data, and the near-copies of Fed-SPS."""
    pooled_data = finding(attack_run("centralized", rounds=1), "samples in the open")
    assert pooled_data.success == 1.0
    copies = finding(attack_run("fed-sps(mode=samples)", rounds=1, batch=10), "samples in the open")
    assert copies.figures["recovered"] == 4 * 10
    assert "samples in the open" not in {item.attack for item in attack_run("adcol").findings}


def test_untried_contents_are_reported() -> None:
    assert any(
        "how many samples there are of each class was not tried" in text
        for text in attack_run("relay").sentences
    )


def test_solo_run_has_nothing_to_attack() -> None:
    """The one message of SOLO is empty."""
    assert attack_run("solo").rows() == [
        ["solo", "none", "", "", "", "", "0", "", attack_run("solo").rows()[0][8], "0 B"]
    ]
    assert "Nothing was sent" in attack_run("solo").sentences[0]


@pytest.mark.long
def test_audit_is_deterministic() -> None:
    again = audit_run(attack_run("adcol").folder)
    assert again.plain() == attack_run("adcol").plain()


def test_test_samples_that_were_not_drawn_show_no_epsilon() -> None:
    result = finding(
        attack_run("relay", test="tail(0.25)"), "membership: class means, first weights"
    )
    assert result.epsilon is None
    assert "not drawn at random" in " ".join(result.notes)


def test_a_claim_that_an_attack_exceeds_is_refuted() -> None:
    claims = replace(attack_run("adcol"), claimed=1.0, unit="record")
    assert claims.epsilon_shown is not None
    assert (
        claims.sentences[0]
        == "adcol: The claim is refuted: epsilon 1 is claimed, and an attack shows"
        f" {claims.epsilon_shown:.2f}."
    )
    assert "refuted" not in " ".join(replace(claims, claimed=100.0).sentences)
    assert "refuted" not in " ".join(replace(claims, unit="party").sentences), (
        "a claim about parties is taken for one about records"
    )
    assert claims.rows()[0][6] == "1"
    assert replace(claims, unit="party").rows()[0][6] == "1 (party)"


def test_claimed_epsilon_is_that_of_the_summary() -> None:
    view = View(attack_run("adcol").folder)
    assert view.claimed is None
    assert view.delta == 1e-5
    view.summary["privacy"] = {"epsilon": 1.5, "delta": 1e-6}
    assert (view.claimed, view.delta) == (1.5, 1e-6)
    view.summary["privacy"] = {"epsilon": "infinite", "delta": 1e-6}
    assert view.claimed is None
