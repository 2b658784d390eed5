"""DBE's kappa=auto: a pilot before round 1 that is charged, chooses on validation samples only, and
leaves no state.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from absences import absences, plan
from closed_forms import assert_closed_forms
from matrix import BATCHNORM, ragged, run, weights

import comity
from comity.algorithms import compose
from comity.components import pilot
from comity.components.pilot import CANDIDATES, describe_choice, rank_candidates
from comity.core import PartyData, Samples
from comity.core.participation import NoReplies
from comity.metrics.evaluation import Score
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.run_warnings import warning_texts
from comity.studies.plan import plan as planned

AUTO = "kappa=auto,pilot_rounds=2"


def chosen_kappa(result: comity.Result) -> float:
    """The chosen kappa in the run's metrics."""
    (value,) = [row.value for row in result.metrics if row.metric == "kappa"]
    return value


# --- the choice


def score(correct: int, count: int, loss: float) -> Score:
    return Score(correct, count, loss, {})


def test_best_candidate_by_accuracy_then_loss_then_size() -> None:
    """1: accuracy (8 + 1) / (10 + 2) = 0.75 with a loss of (10 * 0.6 + 2 * 1.2) / 12 = 0.7; 5: the
    same accuracy with a loss of 0.5; 50: a lower accuracy.
    """
    scores = {
        1.0: {0: score(8, 10, 0.6), 1: score(1, 2, 1.2)},
        5.0: {0: score(7, 10, 0.5), 1: score(2, 2, 0.5)},
        50.0: {0: score(6, 10, 0.1), 1: score(2, 2, 0.1)},
    }
    best, second, third = rank_candidates(scores)
    assert (best.value, second.value, third.value) == (5.0, 1.0, 50.0)
    assert second.accuracy == 0.75
    assert second.loss == pytest.approx(0.7)
    assert best.count == 12
    alike = {value: {0: score(3, 4, 0.5)} for value in reversed(CANDIDATES)}
    assert [candidate.value for candidate in rank_candidates(alike)] == [0.0, 1.0, 5.0, 50.0]


def test_only_parties_that_judged_every_candidate_count() -> None:
    """Party 1 missed the second candidate, so its scores of the first do not count."""
    scores = {0.0: {0: score(2, 4, 1.0), 1: score(10, 10, 0.1)}, 1.0: {0: score(3, 4, 1.0)}}
    assert rank_candidates(scores)[0].value == 1.0
    with pytest.raises(NoReplies, match="validation samples"):
        rank_candidates({0.0: {0: score(1, 1, 1.0)}, 1.0: {1: score(1, 1, 1.0)}})


def test_text_about_the_choice() -> None:
    ranked = rank_candidates({0.0: {0: score(1, 4, 1.5)}, 5.0: {0: score(3, 4, 0.25)}})
    assert describe_choice(3, ranked, classes=10) == (
        "kappa=auto chose 5, by 4 validation samples after 3 rounds with each candidate: "
        "0: 25.0% (loss 1.5), 5: 75.0% (loss 0.25); 1 and 50 came to nothing."
    )


# --- no state of a pilot remains


@pytest.mark.long
@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("fedavg+dbe", {}),
        ("fedavg+dbe", {"participation": 0.5, "bn": "none"}),
        ("fedavg+dbe", {"optimizer": "sgd(momentum=0.9)", "opt_state": "keep"}),
        ("scaffold+dbe", {"participation": 0.5}),
        ("fedgen(gen_steps=5)+dbe", {"model": "mlp2(width=8)"}),
        ("moon+dbe", {"model": "mlp2(width=8)"}),
        ("fedper+mr", {}),
        ("ditto+mr", {"model": "mlp2(width=8)"}),
    ],
)
def test_rounds_equal_those_of_the_chosen_kappa(
    host: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Weights of all parties, figures of all rounds, and bytes of all rounds but the start are
    equal bit for bit.
    """
    auto = run(f"{host}({AUTO})", tmp_path / "auto", **settings)
    fixed = run(f"{host}(kappa={chosen_kappa(auto)})", tmp_path / "fixed", **settings)
    for name, theta in weights(fixed).items():
        assert all(torch.equal(weights(auto)[name][k], v) for k, v in theta.items())
    rows = [
        [r for r in result.metrics if not r.metric.startswith("kappa")] for result in (auto, fixed)
    ]
    assert rows[0] == rows[1]
    charges = [
        [c for c in result.ledger if c.round or c.kind == "eval"] for result in (auto, fixed)
    ]
    assert charges[0] == charges[1]
    assert all(auto.state(name).extra.kappa.before is None for name in ragged().names)
    assert not any(auto.state(name).extra.kappa.trial for name in ragged().names)


def test_figures_of_candidates_are_in_the_metrics(tmp_path: Path) -> None:
    result = run(f"fedavg+dbe({AUTO})", tmp_path)
    rows = {row.metric: row for row in result.metrics if row.metric.startswith("kappa")}
    assert set(rows) == {
        "kappa",
        *(f"kappa={v:g}/{what}" for v in CANDIDATES for what in ("accuracy", "loss")),
    }
    losses = {v: rows[f"kappa={v:g}/loss"].value for v in CANDIDATES}
    assert len(set(losses.values())) == 4, "not each was trained with its own kappa"
    assert {row.round for row in rows.values()} == {0}
    (warning,) = [
        text
        for text in warning_texts(result.summary, "during")
        if text.startswith("kappa=auto chose")
    ]
    assert f"chose {chosen_kappa(result):g}, by 11 validation samples after 2 rounds" in warning
    assert chosen_kappa(result) in CANDIDATES


def test_metrics_of_the_host_in_a_pilot_are_discarded(tmp_path: Path) -> None:
    result = run(f"fedgen(gen_steps=5)+dbe({AUTO})", tmp_path, model="mlp2(width=8)")
    assert [row.round for row in result.metrics if row.metric == "generator/loss"] == [1, 2]


def _with_other_test_labels(data: PartyData) -> PartyData:
    return replace(data, test=Samples(data.test.x, 9 - data.test.y))


def test_choice_does_not_depend_on_test_samples(tmp_path: Path) -> None:
    """With other test labels the choice and its figures are the same."""
    fed = ragged()
    before = run(f"fedavg+dbe({AUTO})", tmp_path / "before")
    other = replace(
        fed, parties={name: _with_other_test_labels(data) for name, data in fed.parties.items()}
    )
    after = comity.run(
        f"fedavg+dbe({AUTO})",
        other,
        out=tmp_path / "after",
        model=BATCHNORM,
        rounds=2,
        lr=0.1,
        engine="loop",
    )
    figures = [
        [(r.metric, r.value) for r in result.metrics if r.metric.startswith("kappa")]
        for result in (before, after)
    ]
    assert figures[0] == figures[1]


# --- bytes and steps


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("fedavg+dbe", {}),
        ("fedavg+dbe", {"participation": 0.5, "bn": "params_only"}),
        ("fedavg+dbe", {"participation": 0.5, "without": ["east"]}),
        ("scaffold+dbe", {"bn": "none"}),
        ("fedgen(gen_steps=5)+dbe", {"model": "mlp2(width=8)"}),
        ("fedper+mr", {"participation": 0.5}),
        ("ditto+mr", {"model": "mlp2(width=8)"}),
    ],
)
def test_closed_forms_with_the_pilot(text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    assert_closed_forms(run(f"{text}({AUTO})", tmp_path, **settings))


def test_bytes_of_the_pilot(tmp_path: Path) -> None:
    """4 candidates with 2 rounds each: 8 rounds of 2 N S; 4 models to judge, 5 messages of 5 bytes,
    4 replies of 12, and DBE's own messages.
    """
    n, width = 4, 7
    size = 4 * ((64 * width + width) + (width * width + width) + (width * 10 + 10))
    result = run(f"fedavg+dbe({AUTO})", tmp_path, model=f"mlp2(width={width})")
    byte_counts = {
        kind: sum(c.bytes for c in result.ledger if c.round == 0 and c.kind == kind)
        for kind in ("up", "down")
    }
    assert byte_counts["up"] == n * (4 * width + 8 * size + 4 * 12)
    assert byte_counts["down"] == n * (size + 4 * width + 8 * size + 4 * size + 5 * 5)


def test_steps_are_counted_and_planned(tmp_path: Path) -> None:
    """4 candidates with 2 rounds of all parties add the steps of 8 rounds."""
    auto, fixed = (
        run(f"fedavg+dbe({AUTO})", tmp_path / "auto"),
        run("fedavg+dbe", tmp_path / "fixed"),
    )
    round_steps = sum(p.training.steps_for(len(p.data.train)) for p in fixed.job.parties)
    assert auto.summary["steps"] - fixed.summary["steps"] == 8 * round_steps
    plans = planned(auto.job), planned(fixed.job)
    assert plans[0].steps - plans[1].steps == 8 * round_steps
    assert plans[0].start.up > plans[1].start.up
    assert plans[0].total.up - plans[1].total.up == plans[0].start.up - plans[1].start.up


# --- absent parties


def test_party_that_missed_a_candidate_is_left_out(tmp_path: Path) -> None:
    """east misses the message with the third candidate: it is called no more in the pilot, and
    starts again in round 1.
    """
    absent = plan(tmp_path, "east,0,weigh,offline,2", heads="party,round,call,how,occurrence")
    result = run(f"fedavg+dbe({AUTO})", tmp_path / "run", absent=absent)
    missed_calls = [
        (a.call, a.how, a.occurrence)
        for a in absences(result)
        if a.party == "east" and a.round == 0
    ]
    assert missed_calls[0] == ("weigh", "offline", 2)
    assert {how for _, how, _ in missed_calls[1:]} == {"waiting"}
    assert {function for function, _, _ in missed_calls[1:]} == {"local", "judge", "weigh"}
    agree_charges = [c for c in result.ledger if c.call == "agree" and c.dst == "east"]
    assert [c.round for c in agree_charges] == [0, 1]
    assert agree_charges[1].bytes == agree_charges[0].bytes + 5
    (warning,) = [
        text
        for text in warning_texts(result.summary, "during")
        if text.startswith("kappa=auto chose")
    ]
    assert "by 9 validation samples" in warning, "east's 2 samples count for some candidates"
    states = [result.state(name).extra for name in ragged().names]
    assert {(s.kappa.value, s.kappa.trial) for s in states} == {(chosen_kappa(result), False)}
    fixed = run(
        f"fedavg+dbe(kappa={chosen_kappa(result)})",
        tmp_path / "fixed",
        absent=plan(tmp_path / "p", "east,0,agree,lost"),
    )
    for name, theta in weights(fixed).items():
        assert all(torch.equal(weights(result)[name][k], v) for k, v in theta.items()), (
            "a party has state of the pilot"
        )


def test_lost_reply_in_a_pilot_does_not_change_the_run(tmp_path: Path) -> None:
    absent = plan(
        tmp_path,
        "north,0,local,lost,3",
        "west,0,judge,lost,0",
        heads="party,round,call,how,occurrence",
    )
    result = run(f"scaffold+dbe({AUTO})", tmp_path / "run", absent=absent)
    fixed = run(f"scaffold+dbe(kappa={chosen_kappa(result)})", tmp_path / "fixed")
    for name, theta in weights(fixed).items():
        assert all(torch.equal(weights(result)[name][k], v) for k, v in theta.items())


def test_diverging_candidate_is_not_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pilot, "CANDIDATES", (0.0, 1e37))
    result = run(f"fedavg+dbe({AUTO})", tmp_path, model="mlp2(width=8)")
    assert chosen_kappa(result) == 0
    assert not result.summary["diverged"]


def test_run_fails_if_all_parties_are_offline(tmp_path: Path) -> None:
    absent = plan(tmp_path, *(f"{name},0,local,offline" for name in ragged().names))
    with pytest.raises(comity.errors.ComityError, match="cannot begin"):
        run(f"fedavg+dbe({AUTO})", tmp_path / "run", absent=absent)


# --- errors and warnings


def test_auto_without_validation_samples_is_refused() -> None:
    fed = comity.load("digits").partition("iid", parties=2, validation=0.0)
    with pytest.raises(comity.UsageError, match="kappa=auto is chosen on validation samples"):
        prepare(config.experiment({"algorithm": "fedavg+dbe(kappa=auto)"}), fed)
    prepare(config.experiment({"algorithm": "fedavg+dbe"}), fed)


@pytest.mark.parametrize(
    "wrong", ["kappa=often", "kappa=-1", "kappa=auto,pilot_rounds=0", "pilot_rounds=0.5"]
)
def test_invalid_kappa_is_refused(wrong: str) -> None:
    with pytest.raises(comity.UsageError):
        compose(f"fedavg+dbe({wrong})")


@pytest.mark.parametrize(
    ("text", "model", "warns"),
    [
        ("fedavg+dbe(kappa=50)", BATCHNORM, True),
        ("fedavg+mr(kappa=1.5)", BATCHNORM, True),
        ("fedavg+dbe(kappa=100)", "mlp2", True),
        ("fedavg+dbe", BATCHNORM, False),
        ("fedavg+mr(kappa=1)", BATCHNORM, False),
        ("fedavg+dbe", "mlp2", False),
        ("fedavg+dbe(kappa=50)", "mlp2", False),
        ("fedavg+dbe(kappa=auto)", BATCHNORM, False),
        ("fedavg+prbm", BATCHNORM, False),
    ],
)
def test_a_kappa_above_the_papers_for_this_kind_of_network_warns(
    text: str, model: str, warns: bool
) -> None:
    job = prepare(config.experiment({"algorithm": text, "model": model}), ragged())
    warnings = [
        sentence for sentence in job.method_warnings() if "network of this kind" in sentence
    ]
    assert bool(warnings) == warns
    assert all("kappa=auto" in sentence for sentence in warnings)


def test_newcomer_and_batched_engine(tmp_path: Path) -> None:
    """A newcomer receives the chosen kappa with the consensus; on `stacked` the pilot is equal up
    to rounding.
    """
    settings: dict[str, Any] = {"model": "mlp2(width=8)", "newcomers": 1}
    loop = run(f"fedavg+dbe({AUTO})", tmp_path / "loop", **settings)
    assert loop.state("west").extra.kappa.value == chosen_kappa(loop)
    (charge,) = [c for c in loop.ledger if c.call == "agree" and c.dst == "west"]
    assert charge.bytes == 4 * 8 + 5
    stacked = run(f"fedavg+dbe({AUTO})", tmp_path / "stacked", **(settings | {"engine": "stacked"}))
    assert chosen_kappa(stacked) == chosen_kappa(loop)
    for row, other in zip(loop.metrics, stacked.metrics, strict=True):
        assert row[:4] == other[:4]
        assert row.value == pytest.approx(other.value, abs=2e-3) or row.metric == "accuracy"
