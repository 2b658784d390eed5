"""Attacks on real runs: each is shown to work where it must, and to say so where it cannot."""

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

HOMES: list[TemporaryDirectory[str]] = []
SETTINGS: dict[str, Any] = {
    "partition": "iid",
    "parties": 4,
    "model": "mlp2(width=100)",
    "rounds": 2,
}


@cache
def attacked(method: str, **settings: Any) -> RunAudit:
    """What attacks find in a run."""
    HOMES.append(TemporaryDirectory())
    folder = Path(HOMES[-1].name) / "run"
    comity.run(method, out=folder, record_messages=True, **(SETTINGS | settings))
    return audit_run(folder)


def finding(audited: RunAudit, attack: str) -> Finding:
    found = {one.attack: one for one in audited.findings}
    assert attack in found, (sorted(found), audited.untried)
    return found[attack]


# --- rows


def test_rows_give_members_away() -> None:
    """Nearly all: first rows are made by weights that hardly differ from those that everybody
    starts from.
    """
    found = finding(attacked("adcol"), "membership: rows, first weights")
    assert found.power
    assert found.success > 0.95
    assert found.figures["members"] + found.figures["others"] == sum(
        len(party.train) + len(party.test)
        for party in comity.load("digits").partition("iid", parties=4, seed=0).parties.values()
    )
    assert found.figures["tpr_at_0.01"][0] > 0.5
    assert found.figures["tpr_at_0.001"] is None, "450 samples cannot show one in a thousand"
    assert "0.1% of false positives cannot be measured" in " ".join(found.notes)
    assert found.epsilon is not None
    assert found.epsilon > 1


def test_rows_can_be_decoded() -> None:
    found = finding(attacked("adcol"), "decoder, first weights")
    assert found.power
    assert found.success > 0.5
    assert found.prior < 0.1
    assert found.figures["squared_error"] < found.figures["squared_error_of_a_mean_picture"]


def test_rows_of_the_same_round_decode_better_than_first_weights() -> None:
    """After three epochs at a large learning rate first weights have little in common with the
    encoders, but the colluder's own encoder has.
    """
    result = attacked("adcol", lr=0.1, epochs=3)
    by_weights = finding(result, "decoder, first weights")
    by_rows = finding(result, "decoder, rows of the same round")
    assert by_rows.low > by_weights.high
    assert by_rows.prior == by_weights.prior
    assert by_rows.figures["samples"] == by_weights.figures["samples"]


def test_noise_takes_the_power_away_and_that_is_said() -> None:
    noisy = attacked("adcol(noise=lap_l1,epsilon=0.1)")
    for attack in ("membership: rows, first weights", "membership: rows, colluder's model"):
        found = finding(noisy, attack)
        assert not found.power
        assert "has no power here" in found.sentence
        assert "does not show that nothing can be learned" in found.sentence
        assert found.epsilon == 0.0


def test_own_first_weights_leave_the_colluders_model_only() -> None:
    assert {one.attack for one in attacked("adcol", init="own").findings} == {
        "membership: rows, colluder's model",
        "decoder, colluder's model",
        "decoder, rows of the same round",
    }


def test_of_some_rows_nobody_knows_whose_they_are() -> None:
    (untried,) = attacked("adcol(sampling=0.5)").untried
    assert untried.attack == "decoder"
    assert "it is not known which sample a row is of" in untried.sentence


def test_a_linear_encoder_is_inverted_exactly() -> None:
    source = torch.Generator().manual_seed(0)
    x, mixing = torch.randn(400, 5, generator=source), torch.randn(5, 20, generator=source)
    decoded = ridge(x @ mixing, x)(x[:7] @ mixing)
    assert torch.cdist(decoded, x).argmin(1).tolist() == list(range(7))


# --- means


def test_first_means_give_members_away() -> None:
    found = finding(attacked("relay"), "membership: class means, first weights")
    assert found.power
    assert found.success > 0.6


def test_means_of_nothing_are_not_attacked() -> None:
    assert not attacked("relay(secret=1.0)").findings


SCATTERED: dict[str, Any] = {
    "parties": 10,
    "partition": "dirichlet(0.3)",
    "seed": 3,
    "model": "mlp2",
}


def test_means_of_two_or_three_samples_name_them() -> None:
    result = attacked("relay", **SCATTERED)
    by_weights = finding(result, "decoder: class means of few samples, first weights")
    assert by_weights.power
    assert by_weights.success > 0.5
    assert by_weights.prior < 0.01
    assert by_weights.figures["cosine"] > 0.95
    parties = View(result.folder).job.parties
    counts = [int((party.data.train.y == c).sum()) for party in parties for c in range(10)]
    assert by_weights.figures["means"] == sum(count in (2, 3) for count in counts)


def test_means_of_many_samples_name_none() -> None:
    assert not [one for one in attacked("relay").findings if "few samples" in one.attack]


# --- weights and updates


def test_fedavg_sends_weights_and_is_attacked_by_them() -> None:
    """With few samples that are trained on often, weights give their members away."""
    found = attacked("fedavg", parties=20, epochs=20, rounds=3)
    by_updates = finding(found, "membership: updates")
    assert by_updates.power
    assert finding(found, "membership: weights").success > 0.5
    many = finding(found, "inversion: updates")
    assert not many.power
    assert many.success == 0


@pytest.mark.long
def test_one_small_step_is_inverted() -> None:
    found = finding(attacked("fedavg", steps=1, batch=5, model="mlp2"), "inversion: updates")
    assert found.power
    assert found.figures["samples"] == 4 * 5
    assert found.success >= 0.9
    assert found.prior == 0.0
    assert found.pictures is not None
    scale = (found.pictures.originals - found.pictures.guesses).flatten(1).norm(
        dim=1
    ) / found.pictures.originals.flatten(1).norm(dim=1)
    assert scale[0] < 1e-3, "the best is the sample itself"


# --- gradients


def test_gradients_of_small_batches_give_their_samples_away() -> None:
    found = attacked("fed-sps", rounds=1, batch=6, model="mlp2")
    inverted = finding(found, "inversion: gradients")
    assert inverted.power
    assert inverted.figures["samples"] == 4 * 6
    assert inverted.success >= 0.8
    spanned = finding(found, "membership: gradients")
    assert spanned.figures["tpr_at_0.01"][0] == pytest.approx(
        6 / (spanned.figures["members"] / 4), abs=0.01
    ), "those in batches"


def test_gradients_of_large_batches_are_not() -> None:
    found = attacked("fed-sps", rounds=1, batch=100, steps=1)
    assert "at least as many samples as a sample has values" in found.untried[0].sentence
    assert not finding(found, "inversion: gradients").power


def test_a_first_layer_that_is_no_matrix_is_said() -> None:
    found = attacked("fed-sps", rounds=1, batch=100, steps=1, model="lenet5")
    assert [type(one) for one in found.untried] == [Untried, Untried]
    assert all("not dense" in one.sentence for one in found.untried)


def relu_layer(x: Tensor, units: int, seed: int) -> FirstLayer:
    """The gradient of a dense layer with ReLU after it, whatever is behind."""
    source = torch.Generator().manual_seed(seed)
    weight = torch.randn(units, x.shape[1], generator=source, dtype=torch.float64)
    changes = torch.randn(len(x), units, generator=source, dtype=torch.float64) * (x @ weight.T > 0)
    return FirstLayer(changes.T @ x, changes.sum(0))


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_a_batch_is_computed_from_its_gradient(samples: int) -> None:
    x = torch.randn(
        samples, 30, generator=torch.Generator().manual_seed(samples), dtype=torch.float64
    )
    found = recover_samples(relu_layer(x, 150, 0), Key(0))
    assert found is not None
    assert torch.cdist(found, x).amin(0).max() < 1e-3


def test_a_batch_that_is_too_large_is_not() -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert recover_samples(relu_layer(x, 150, 0), Key(0)) is None
    assert recover_samples(FirstLayer(torch.zeros(4, 3), torch.zeros(4)), Key(0)) is None


def test_what_is_close_to_two_samples_is_neither() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    certain, which, _ = match_samples(torch.tensor([[0.1, 0.0], [0.5, 0.0], [0.0, 4.0]]), x)
    assert certain.tolist() == [True, False, True]
    assert which[[0, 2]].tolist() == [0, 2]


# --- what is true of all


def test_samples_that_are_sent_need_no_attack() -> None:
    """Pooled data, and Fed-SPS's near-copies: an audit that called this nothing would be worse than
    none.
    """
    pooled = finding(attacked("centralized", rounds=1), "samples in the open")
    assert pooled.success == 1.0
    copies = finding(attacked("fed-sps(mode=samples)", rounds=1, batch=10), "samples in the open")
    assert copies.figures["recovered"] == 4 * 10
    assert "samples in the open" not in {one.attack for one in attacked("adcol").findings}


def test_what_is_sent_and_not_attacked_is_said() -> None:
    assert any(
        "how many samples there are of each class was not tried" in text
        for text in attacked("relay").sentences
    )


def test_a_party_alone_tells_nothing() -> None:
    """The one message of SOLO is empty."""
    assert attacked("solo").rows() == [
        ["solo", "none", "", "", "", "", "0", "", attacked("solo").rows()[0][8], "0 B"]
    ]
    assert "Nothing was sent" in attacked("solo").sentences[0]


@pytest.mark.long
def test_the_same_audit_comes_out_again() -> None:
    again = audit_run(attacked("adcol").folder)
    assert again.plain() == attacked("adcol").plain()


def test_test_samples_that_were_not_drawn_show_no_epsilon() -> None:
    found = finding(attacked("relay", test="tail(0.25)"), "membership: class means, first weights")
    assert found.epsilon is None
    assert "not drawn at random" in " ".join(found.notes)


def test_a_claim_that_an_attack_exceeds_is_refuted() -> None:
    claims = replace(attacked("adcol"), claimed=1.0, unit="record")
    assert claims.epsilon_shown is not None
    assert (
        claims.sentences[0]
        == "adcol: The claim is refuted: epsilon 1 is claimed, and an attack shows"
        f" {claims.epsilon_shown:.2f}."
    )
    assert "refuted" not in " ".join(replace(claims, claimed=100.0).sentences)
    assert "refuted" not in " ".join(replace(claims, unit="party").sentences), (
        "what hides a party from others is no claim here"
    )
    assert claims.rows()[0][6] == "1"
    assert replace(claims, unit="party").rows()[0][6] == "1 (party)"


def test_what_a_run_claims_is_read_from_its_summary() -> None:
    view = View(attacked("adcol").folder)
    assert view.claimed is None
    assert view.delta == 1e-5
    view.summary["privacy"] = {"epsilon": 1.5, "delta": 1e-6}
    assert (view.claimed, view.delta) == (1.5, 1e-6)
    view.summary["privacy"] = {"epsilon": "infinite", "delta": 1e-6}
    assert view.claimed is None
