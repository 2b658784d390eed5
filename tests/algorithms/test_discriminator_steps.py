"""How long discriminators are trained: as many steps as the models that they judge, by default."""

from __future__ import annotations

from typing import Any

import pytest
from toys import federation

import comity

SIZES = (11, 7, 9, 6)
SETTINGS: dict[str, Any] = {
    "model": "mlp2(width=7)",
    "rounds": 3,
    "lr": 0.1,
    "batch": 4,
    "engine": "loop",
}


def summary(text: str, **settings: Any) -> dict[str, Any]:
    return comity.run(text, federation(SIZES), **SETTINGS | settings).summary


@pytest.mark.parametrize(
    ("options", "settings", "steps"),
    [
        # Parties of 11, 7, 9 and 6 samples take 3, 2, 3 and 2 steps an epoch: 2.5 on average.
        ("", {}, 2),
        ("", {"epochs": 3}, 8),
        ("", {"steps": 5}, 5),
        ("disc_steps=4", {"steps": 5}, 4),
        ("disc_steps=0", {}, 0),
        # 33 representations in batches of 4 are 9 steps a pass.
        ("disc_steps=epochs", {"steps": 5}, 9),
        ("disc_steps=epochs,disc_epochs=2", {"epochs": 3}, 18),
        # With sampling=0.5 there are 6, 4, 5 and 3 rows.
        ("disc_steps=epochs,sampling=0.5", {}, 5),
        ("sampling=0.5", {}, 2),
    ],
)
def test_adcol_steps_on_the_discriminator(
    options: str, settings: dict[str, Any], steps: int
) -> None:
    assert summary(f"adcol({options})", **settings)["server_steps"] == 3 * steps


@pytest.mark.parametrize(
    ("options", "settings", "steps"),
    [
        ("", {}, 3),
        ("", {"epochs": 3}, 9),
        ("disc_steps=epochs", {"epochs": 3}, 7),
        ("disc_steps=epochs", {"steps": 1, "model": "mlp2(width=9)"}, None),
    ],
)
def test_feduad_steps_of_prior_posterior_and_discriminator(
    options: str, settings: dict[str, Any], steps: int | None
) -> None:
    """In units of a party's steps an epoch: prior, posterior and discriminator."""
    an_epoch = 3 + 2 + 3 + 2
    expected = 3 * (2 * 4 + an_epoch) if steps is None else 3 * steps * an_epoch
    assert summary(f"feduad({options})", **settings)["steps"] == expected


@pytest.mark.parametrize("method", ["adcol", "feduad", "fedufo", "fada"])
def test_passes_without_effect_are_refused(method: str) -> None:
    with pytest.raises(comity.UsageError, match="disc_steps=epochs,disc_epochs=2"):
        summary(f"{method}(disc_epochs=2)")


@pytest.mark.parametrize(
    ("text", "settings", "warns"),
    [
        ("adcol", {"steps": 1}, False),
        ("adcol(disc_steps=epochs)", {"steps": 1}, True),
        ("adcol(disc_steps=epochs)", {"epochs": 3}, False),
        ("adcol(disc_steps=20)", {}, True),
        ("feduad(disc_steps=epochs)", {"steps": 1}, True),
        ("fedufo(disc_steps=epochs,alternate=batch)", {"steps": 1}, False),
        ("fedufo(uad=false,disc_steps=20)", {}, False),
        ("fada(disc_steps=20)", {}, True),
    ],
)
def test_a_discriminator_that_takes_several_times_the_steps_warns(
    text: str, settings: dict[str, Any], warns: bool
) -> None:
    texts = [entry["text"] for entry in summary(text, **settings)["warnings"]]
    assert any("the discriminator takes" in sentence for sentence in texts) == warns


def test_dp_sgd_on_the_discriminator_is_charged_for_its_steps() -> None:
    few, many = (
        summary(f"adcol(disc_noise=2,disc_steps={steps})", budget="delta=1e-3")["privacy"]
        for steps in ("party", 50)
    )
    assert few["trusted_server"]["epsilon"] < many["trusted_server"]["epsilon"]


@pytest.mark.long
def test_a_discriminator_of_equal_steps_leaves_the_representations_usable() -> None:
    """Ten steps a party a round. A pass over all representations is 122 steps on D, and ruins
    the models; as many steps as the parties take leave them as good as SOLO's.
    """
    fed = comity.load("digits").partition("dirichlet(alpha=0.3,min=40)", parties=10, seed=0)
    settings: dict[str, Any] = {
        "model": "mlp2",
        "rounds": 20,
        "steps": 10,
        "batch": 10,
        "lr": 0.05,
        "engine": "stacked",
    }
    solo, adcol, overtrained = (
        comity.run(text, fed, **settings).summary["accuracy"]["mean"]
        for text in ("solo", "adcol", "adcol(disc_steps=epochs)")
    )
    assert adcol > solo - 0.03
    assert overtrained < solo - 0.2
