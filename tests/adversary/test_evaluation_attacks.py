"""A malicious server against the records that a site evaluates models on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process_sites import OPEN, Sites
from malicious_server import METHOD, SETTINGS, SIZES, MaliciousServer, Refused, attack, weights

from comity.base.record import Model
from comity.deploy.data import SiteSplit, fixed_split

USUAL = SETTINGS | {"test": "own(0.25)"}


def sites_with(folder: Path, **changes: str) -> Sites:
    rules = {"epsilon": 'epsilon = "inf"', "digits": "digits = 17", "held_out": "held_out = 1.0"}
    rules["evaluations"] = "evaluations = 1100"
    sites = Sites(folder / "sites", SIZES, OPEN)
    for name in sites.names:
        sites.change(name, {rules[rule]: value for rule, value in changes.items()})
    return sites


def parts(sites: Sites) -> tuple[int, int, int]:
    """Sizes of the site's training, validation and test parts in its latest run."""
    folder, name = sites.site("north"), "north"
    data = fixed_split(folder, name, folder / "data", SiteSplit(9, "own(0.5)", 0.3))
    party = data[1].parties[name]
    return len(party.train), len(party.validation), len(party.test)


def test_a_model_of_the_site_alone_is_not_reported_under_a_budget(tmp_path: Path) -> None:
    """It would be trained without noise, and its test loss tells of the training records."""
    sites = sites_with(tmp_path, epsilon="epsilon = 5.0")
    server = attack(sites, newcomers=0)
    with pytest.raises(Refused, match="trained without noise"):
        server.evaluate_alone(1)


def test_the_first_run_decides_on_the_split(tmp_path: Path) -> None:
    """Another seed or test share in a later run moves no record from the test to the training
    part.
    """
    sites = sites_with(tmp_path)
    MaliciousServer(sites, "north", "first", METHOD, **USUAL).introduce()
    before = parts(sites)
    folder = sites.site("north")
    first = fixed_split(folder, "north", folder / "data", SiteSplit(0, "own(0.25)", 0.1))[1]
    changes: tuple[dict[str, Any], ...] = (
        {"seed": 1},
        {"test": "own(0.5)"},
        {"validation": 0.3},
        {"test": "official"},
    )
    for number, change in enumerate(changes):
        changed = USUAL | change
        server = MaliciousServer(sites, "north", f"later{number}", METHOD, **changed)
        described = server.introduce()
        assert parts(sites) == before
        assert described.split == "seed=0, test=own(0.25), validation=0.1"
        again = fixed_split(folder, "north", folder / "data", SiteSplit.of(server.experiment))[1]
        assert again.split == first.split


def test_nearly_all_records_cannot_be_held_out(tmp_path: Path) -> None:
    sites = sites_with(tmp_path, held_out="held_out = 0.5")
    server = MaliciousServer(sites, "north", "most", METHOD, **USUAL | {"test": "own(0.9)"})
    with pytest.raises(Refused, match="held_out"):
        server.introduce()


def test_a_refused_split_is_not_the_first_one(tmp_path: Path) -> None:
    sites = sites_with(tmp_path, held_out="held_out = 0.5")
    server = MaliciousServer(sites, "north", "most", METHOD, **USUAL | {"test": "own(0.9)"})
    with pytest.raises(Refused, match="held_out"):
        server.introduce()
    assert MaliciousServer(sites, "north", "right", METHOD, **USUAL).introduce().said.train > 30


def test_evaluations_are_limited(tmp_path: Path) -> None:
    """Each evaluation of weights that the server chooses tells something about the test records."""
    sites = sites_with(tmp_path, evaluations="evaluations = 3")
    server = attack(sites)
    for number in range(3):
        server.evaluate(Model(weights(number / 10)))
    with pytest.raises(Refused, match="evaluates 3 at most"):
        server.evaluate(Model(weights(0.5)))
    again = attack(sites)  # the count is on the disk
    with pytest.raises(Refused, match="evaluates 3 at most"):
        again.evaluate(Model(weights(0.6)))


def test_losses_leave_with_few_digits(tmp_path: Path) -> None:
    sites = sites_with(tmp_path, digits="digits = 3")
    server = attack(sites)
    score = server.evaluate(Model(weights())).test
    assert score.loss == float(f"{score.loss:.3g}")
    assert all(value == float(f"{value:.3g}") for value in score.figures.values())
    sites.change("north", {"digits = 3": "digits = 17"})
    exact = server.evaluate(Model(weights())).test
    assert exact.loss != score.loss
    assert exact.loss == pytest.approx(score.loss, rel=0.01)
