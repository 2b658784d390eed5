"""The server's setup needs only what parties report about themselves; a party's setup needs only
its own data.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import comity
from comity.base.samples import PartyData, Samples
from comity.errors import UsageError
from comity.metrics.metrics import ACCURACY
from comity.runs.build import prepare
from comity.runs.config import Experiment, experiment
from comity.runs.context import PartyInfo, PartyInfos, Roster, RunContext
from comity.runs.party_side import make_party
from comity.runs.server_side import resolve_method

SETTINGS = {
    "algorithm": "relay",
    "rounds": 3,
    "participation": 0.5,
    "newcomers": 1,
    "without": ["p1"],
    "party": {
        "p2": {"peers": ["p0", "p1"], "lr": 0.5, "epochs": 2},
        "p3": {"model": "mlp2(width=9)"},
    },
    "model": "mlp2(width=9)",
    "augment": "flip",
    "steps": 4,
}


@pytest.fixture(scope="module")
def federation() -> comity.Federation:
    return comity.load("digits").partition("dirichlet(alpha=1)", 5, seed=0)


def context_without_data(settings: Experiment, federation: comity.Federation) -> RunContext:
    """The run context as a server without data builds it: from plain names and numbers."""
    infos = PartyInfos.of(federation, ACCURACY)
    return RunContext(
        settings, PartyInfos(dict(infos.parties), tuple(infos.shape), infos.classes, infos.black)
    )


def test_the_servers_setup_needs_no_data(federation: comity.Federation) -> None:
    settings = experiment(SETTINGS)
    _, info = resolve_method(context_without_data(settings, federation))
    whole = prepare(settings, federation).info
    for field in fields(info):
        if field.name != "tasks":
            assert getattr(info, field.name) == getattr(whole, field.name), field.name
    assert [task.shapes for task in info.tasks] == [task.shapes for task in whole.tasks]
    assert (info.names, info.newcomers, info.places) == (("p0", "p2", "p3"), ("p4",), (0, 2, 3, 4))
    assert info.peers == (None, (0,), None, None)


def test_a_partys_setup_needs_its_own_data_only(federation: comity.Federation) -> None:
    settings = experiment(SETTINGS)
    job = prepare(settings, federation)
    for expected in job.parties:
        party = make_party(
            context_without_data(settings, federation),
            expected.id,
            federation.parties[expected.name],
        )
        for field in fields(party):
            if field.name not in ("task", "data"):
                assert getattr(party, field.name) == getattr(expected, field.name), field.name
        assert party.task.shapes == expected.task.shapes
        assert party.data is expected.data


def test_settings_of_one_party(federation: comity.Federation) -> None:
    job = prepare(experiment(SETTINGS), federation)
    first, second, _, newcomer = (party.training for party in job.parties)
    assert (first.lr, first.steps) == (0.05, 4)
    assert (second.lr, second.epochs, second.steps) == (0.5, 2, None)
    assert (newcomer.epochs, newcomer.steps) == (10, None)


def test_parties_with_one_network_share_one_task(federation: comity.Federation) -> None:
    job = prepare(experiment(SETTINGS), federation)
    assert len({id(party.task) for party in job.parties}) == 1


def least_batch(**settings: object) -> int:
    """The smallest batch of a party with three samples."""
    few = Samples(torch.zeros(3, 3, 32, 32), torch.zeros(3, dtype=torch.int64))
    infos = PartyInfos(
        {"north": PartyInfo(3, 3, 3, ["test"], False)}, (3, 32, 32), 10, (0.0, 0.0, 0.0)
    )
    return make_party(
        RunContext(experiment(settings), infos), 0, PartyData(few, few, few)
    ).training.min_batch


def test_the_smallest_batch() -> None:
    assert least_batch(model="mlp2", batch=1) == 1
    assert least_batch(model="mlp2", batch=8, last_batch="drop") == 3
    assert least_batch(model="fedbn-cnn(scale=0.1)", batch=8) == 2
    with pytest.raises(UsageError, match="BatchNorm, which needs batches of at least 2"):
        least_batch(model="fedbn-cnn(scale=0.1)", batch=1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"without": ["p9"]}, "no party called 'p9'"),
        ({"party": {"p9": {"lr": 1}}}, "no party called 'p9'"),
        ({"newcomers": 3}, "All 3 parties would be newcomers"),
        ({"newcomers": 1, "without": ["p0", "p1"]}, "nobody is there from the start"),
    ],
)
def test_invalid_rosters_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Roster.of(experiment(changes), ["p0", "p1", "p2"])


def test_comity_run_is_the_function_not_the_module() -> None:
    import comity.runs.run

    assert callable(comity.run)
