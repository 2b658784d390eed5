"""The seam between methods and engines: whatever an author writes, every engine makes the same of
it, or says the same.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from matrix import GOSSIP, TUNED, compositions, ragged, run, tables, weights
from sweeps import over_methods
from torch import nn

from comity.base.call import CallId, Message
from comity.core import Params
from comity.core.server import Note
from comity.engines.loop import LoopEngine, Sequential
from comity.engines.site_store import SiteStore
from comity.engines.stacked.scheduler import gains_by_stacking
from comity.errors import describe
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet

HERE = Path(__file__).parent
PLACES: dict[str, dict[str, Any]] = {
    "loop": {"engine": "loop"},
    "process": {"engine": "process", "workers": 2},
    "stacked-1": {"engine": "stacked", "workers": 1},
    "stacked-2": {"engine": "stacked", "workers": 2},
    "auto": {"engine": "auto"},
}
ELSEWHERE = [place for place in PLACES if place != "loop"]
SMALL: dict[str, Any] = {"model": "mlp2(width=6)", "rounds": 2, "lr": 0.1}
STEPS = [5, 3, 4, 2]  # of each party in an epoch: batches of 10 of 42, 21, 31 and 11 samples


def author(name: str, **options: Any) -> str:
    """A user's own method, as it is asked for."""
    said = ",".join(f"{k}={v}" for k, v in options.items())
    path = HERE / "authors" / f"{name}.py"
    return f"{path}({said})" if said else str(path)


class Outcome(NamedTuple):
    """What a run leaves behind."""

    tables: dict[str, bytes]
    weights: dict[str, Params]
    summary: dict[str, Any]
    metrics: list[Note]
    warnings: list[str]


def log_of_calls() -> list[tuple[int, int]]:
    """What `logged.py` wrote down in this process."""
    job(author("logged"), "loop")  # imports it
    found: list[tuple[int, int]] = sys.modules["comity_user.logged"].LOG
    return found


def outcome(text: str, place: str, out: Path, **settings: Any) -> Outcome:
    log_of_calls().clear()
    result = run(text, out / place, **SMALL | settings | PLACES[place])
    summary = {k: v for k, v in result.summary.items() if k not in ("seconds", "warnings")}
    return Outcome(
        tables(result.folder),
        weights(result),
        summary,
        result.metrics,
        warning_texts(result.summary, "during"),
    )


@cache
def on_loop(text: str, settings: str = "{}") -> Outcome:
    """The plainest engine says what is right."""
    with TemporaryDirectory() as folder:
        return outcome(text, "loop", Path(folder), **json.loads(settings))


def assert_same_bits(ours: Outcome, right: Outcome) -> None:
    assert ours.tables == right.tables
    assert ours.summary == right.summary
    for party, theta in right.weights.items():
        for name, value in theta.items():
            assert torch.equal(ours.weights[party][name], value), f"{name} of {party} differs"


def assert_agrees(ours: Outcome, right: Outcome, place: str) -> None:
    """Bit for bit where parties are trained one by one, up to rounding where together; what crosses
    is equal everywhere.
    """
    if place in ("loop", "process"):
        assert_same_bits(ours, right)
        return
    assert ours.tables["ledger.csv"] == right.tables["ledger.csv"]
    for mine, other in zip(ours.metrics, right.metrics, strict=True):
        assert mine[:4] == other[:4]
        if other.metric == "loss":
            assert mine.value == pytest.approx(other.value, rel=1e-3, abs=1e-4), mine
    for party, theta in right.weights.items():
        torch.testing.assert_close(ours.weights[party], theta, rtol=1e-3, atol=1e-4)
    for key, value in right.summary.items():
        if key not in ("accuracy", "auc", "newcomers"):
            assert ours.summary[key] == value, key
    assert ours.summary["accuracy"]["mean"] == pytest.approx(
        right.summary["accuracy"]["mean"], abs=0.03
    )


def noted(result: Outcome, metric: str) -> dict[str, list[float]]:
    """What a method noted of each party, round by round."""
    found = defaultdict(list)
    for note in result.metrics:
        if note.metric == metric:
            found[note.party].append(note.value)
    return found


def job(text: str, place: str, **settings: Any) -> SimulatedRun:
    return prepare(
        config.experiment({"algorithm": text} | SMALL | settings | PLACES[place]), ragged()
    )


def warnings(text: str, place: str) -> list[str]:
    """What is said, after a round, of how parties worked."""
    made = job(text, place)
    engine = made.engine()
    try:
        server = made.server(engine, Quiet())
        server.begin(1)
        made.algorithm.round(
            made.algorithm.init_server(made.root.fold("init"), made.info), server, 1
        )
        return list(server.warnings)
    finally:
        engine.close()


def said(text: str, place: str, out: Path, **settings: Any) -> str:
    """What a run that fails says to its user; torch is left as it was."""
    before = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.random.get_rng_state(),
    )
    with pytest.raises(Exception) as failed:  # noqa: PT011 - which one is asked below
        run(text, out / place, **SMALL | settings | PLACES[place])
    after = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.random.get_rng_state(),
    )
    assert after[:3] == before[:3]
    assert torch.equal(after[3], before[3])
    return describe(failed.value)


def line_of(name: str, mark: str) -> str:
    """Where a comment stands in an author's file, as errors say it."""
    for number, text in enumerate((HERE / "authors" / f"{name}.py").read_text().splitlines(), 1):
        if text.endswith(f"# {mark}"):
            return f"{name}.py:{number}"
    raise AssertionError(mark)


def is_one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text


# --- numpy in losses


@pytest.mark.sweep("auto", "stacked-2")
@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("way", ["own", "common", "closure"])
def test_losses_may_use_numpy_arrays(way: str, place: str, tmp_path: Path) -> None:
    """Class weights: of each party's own, of all parties, or in a closure."""
    text = author("weighted", way=way)
    right = on_loop(text)
    assert_agrees(outcome(text, place, tmp_path), right, place)
    plain = on_loop("fedavg").weights["north"]
    assert not torch.allclose(
        right.weights["north"]["fc3.weight"], plain["fc3.weight"], atol=1e-3
    )  # or this shows nothing


def test_arrays_that_all_parties_have_keep_nobody_from_stacking() -> None:
    assert warnings(author("weighted", way="common"), "stacked-1") == []
    (said_of_own,) = warnings(author("weighted", way="own"), "stacked-1")
    assert "Weighted.loss" in said_of_own
    (said_of_closure,) = warnings(author("weighted", way="closure"), "stacked-1")
    assert "enclosed" in said_of_closure


# --- losses that keep count


@pytest.mark.parametrize("place", PLACES)
def test_a_closure_that_counts_is_called_once_a_step(place: str, tmp_path: Path) -> None:
    result = outcome(author("counting"), place, tmp_path)
    assert (
        noted(result, "calls")
        == noted(result, "steps")
        == {n: [k, k] for n, k in zip(ragged().names, STEPS, strict=True)}
    )
    assert result.summary["steps"] == 2 * sum(STEPS)
    assert_agrees(result, on_loop(author("counting")), place)
    assert len(result.warnings) == (place not in ("loop", "process")), (
        "the summary keeps the server's warnings"
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_run_says_that_a_closure_was_trained_one_by_one(place: str) -> None:
    found = warnings(author("counting"), place)
    if place in ("loop", "process"):  # as everything is there
        assert found == []
        return
    (warning,) = found
    assert "Counting.local.<locals>.counted" in warning
    assert "one by one" in warning
    assert is_one_sentence(warning)


@pytest.mark.parametrize("place", PLACES)
def test_a_counter_is_nothing_that_losses_are_given(place: str, tmp_path: Path) -> None:
    sentence = (
        "The aux argument of a loss must be a record of tensors and plain values, but it holds a"
        " Calls."
    )
    assert said(author("counting", where="own"), place, tmp_path) == sentence


# --- steps, newcomers, finishing methods and users' own, everywhere


FINISHING = ["fed-sps(tune=end)", TUNED]
USERS = [GOSSIP]
LATE = {"newcomers": 1, "join_epochs": 1}
EVERYTHING = [*compositions(), *FINISHING, *USERS]


def test_the_matrix_is_whole() -> None:
    assert {"fedbabu(finetune_epochs=2)", "centralized", "adcol", "fedgen(gen_steps=5)"} <= set(
        EVERYTHING
    )
    finishing = [text for text in EVERYTHING if job(text, "loop").algorithm.traits.finishes]
    assert set(finishing) >= {"fedbabu(finetune_epochs=2)", *FINISHING}


@pytest.mark.parametrize(
    "place", ["stacked-1", "stacked-2", "auto"]
)  # on processes: test_newcomers.py
@pytest.mark.parametrize("text", over_methods(compositions()))
def test_every_method_is_the_same_everywhere(text: str, place: str, tmp_path: Path) -> None:
    """With a newcomer: its steps, the server's, bytes, and what is tuned at the end."""
    right = on_loop(text, json.dumps(LATE))
    ours = outcome(text, place, tmp_path, **LATE)
    assert ours.summary["steps"] == right.summary["steps"] > 0 or text == "centralized"
    assert ours.summary["server_steps"] == right.summary["server_steps"]
    assert ours.summary["newcomers"].keys() == right.summary["newcomers"].keys() == {"west"}
    assert_agrees(ours, right, place)


@pytest.mark.sweep("auto", "stacked-2")
@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("text", [*FINISHING, *USERS], ids=lambda text: Path(text).name)
def test_so_are_methods_that_finish_and_users_own(text: str, place: str, tmp_path: Path) -> None:
    test_every_method_is_the_same_everywhere(text, place, tmp_path)


def test_the_server_has_trained() -> None:
    """The test above compares numbers that are there."""
    for text in ("centralized", "adcol", "fedgen(gen_steps=5)"):
        assert on_loop(text, json.dumps(LATE)).summary["server_steps"] > 0


# --- works that are none


MODES = (
    "local awaits a training inside torch.no_grad() or another mode of torch: leave the mode first,"
    " since it would also apply to other parties."
)


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("plain", "local must be an `async def`, even if it awaits nothing."),
        ("foreign", "local awaits None, but only party.fit(...), party.fold(...) and its own methods can be awaited."),
        ("single", "local must return (its new state, a reply), but returned a Model."),
        ("three", "local must return (its new state, a reply), but returned a tuple."),
        ("no_grad", MODES),
        ("inference", MODES),
        ("dtype", MODES),
        ("model", "deployed_model must return parameters, but returned a FitRequest: training belongs in party functions."),
    ],
    ids=lambda text: text if " " not in text else "",
)  # fmt: skip
def test_mistakes_are_told_in_one_sentence(
    mistake: str, sentence: str, place: str, tmp_path: Path
) -> None:
    assert said(author("mistaken", mistake=mistake), place, tmp_path) == sentence


@pytest.mark.parametrize("place", PLACES)
def test_a_forgotten_await_is_no_untrained_model(place: str, tmp_path: Path) -> None:
    """What is asked for and what comes of it have nothing in common, so the author's next line
    fails, and is named.
    """
    words = said(author("mistaken", mistake="forgotten"), place, tmp_path)
    assert words.startswith("AttributeError in worked")
    assert line_of("mistaken", "the author's line") in words
    assert "has no 'theta' before it is awaited: write `await party.fit(...)`" in words


# --- losses that fail


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("how", "words"),
    [("raised", "ValueError"), ("shapes", "RuntimeError"), ("in torch", "ValueError")],
    ids=lambda text: text,
)
def test_an_error_in_a_loss_names_its_authors_line(
    how: str, words: str, place: str, tmp_path: Path
) -> None:
    found = said(author("failing"), place, tmp_path, how=how)
    assert found.startswith(f"{words} in loss ({line_of('failing', how)}): ")


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["raised", "in torch"])
def test_a_work_may_catch_it_and_go_on(how: str, place: str, tmp_path: Path) -> None:
    """As if it had not been: what follows is FedAvg, and steps that came to nothing are not
    counted.
    """
    ours, right = (
        outcome(author("failing"), place, tmp_path, how=how, caught=True),
        on_loop("fedavg"),
    )
    assert ours.summary["steps"] == right.summary["steps"] == 2 * sum(STEPS)
    assert_agrees(ours._replace(summary=ours.summary | {"algorithm": "fedavg"}), right, place)


# --- works run once


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("trainings", [0, 1, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_work_runs_once_a_call(place: str, trainings: int, tmp_path: Path) -> None:
    text = author("logged", trainings=trainings)
    result = outcome(text, place, tmp_path)
    log = list(log_of_calls())
    assert noted(result, "times") == {name: [1, 1] for name in ragged().names}
    assert result.summary["steps"] == 2 * trainings * sum(STEPS)
    if place in ("loop", "stacked-1"):  # in this process
        assert len(log) == len(set(log)) == 2 * len(STEPS)
    assert_agrees(result, on_loop(text), place)


# --- losses that write


READ_ONLY = (
    "A loss may not write to its arguments: values that it keeps from batch to batch go into"
    " batch.scratch."
)
WROTE = "A loss wrote to a tensor of its aux argument or of its task: create a new tensor instead."


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("to", "sentence"),
    [("dict", READ_ONLY), ("nested", READ_ONLY), ("list", READ_ONLY), ("theta", READ_ONLY), ("tensor", WROTE), ("common", WROTE),
     ("letter", WROTE), ("array", WROTE)],
    ids=lambda text: text if " " not in text else "",
)  # fmt: skip
def test_a_loss_may_not_write(to: str, sentence: str, place: str, tmp_path: Path) -> None:
    assert said(author("writing", to=to), place, tmp_path) == sentence


@pytest.mark.parametrize("place", PLACES)
def test_a_loss_may_not_write_now_and_then(place: str, tmp_path: Path) -> None:
    """In the third step only: with two epochs a step's whole batches are of parties that do not lie
    side by side.
    """
    assert said(author("writing", to="late"), place, tmp_path, epochs=2) == WROTE


# --- replies that nobody hears


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("then", ["call", "end"])
def test_a_loop_over_replies_is_not_left_early(then: str, place: str, tmp_path: Path) -> None:
    sentence = "A loop over the replies of local was left early: a loop over server.replies must go through all replies."
    assert said(author("leaving", then=then), place, tmp_path) == sentence


# --- layers that draw


DROPS = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5)), nn.Linear(12, 10)


@pytest.mark.parametrize("place", ELSEWHERE)
def test_dropout_in_two_trainings_draws_the_same_everywhere(place: str, tmp_path: Path) -> None:
    """The bits of all weights; figures of models that all parties share are taken in one pass where
    parties are stacked.
    """
    text = author("logged", trainings=2)
    right, ours = (outcome(text, where, tmp_path, model=DROPS) for where in ("loop", place))
    if place.startswith("stacked"):
        assert_agrees(ours, right, place)
        ours = ours._replace(tables=right.tables)
    assert_same_bits(ours, right)


def test_works_that_take_turns_keep_their_own_draws() -> None:
    """Two parties, training by training in turns: the bits of one after the other."""
    made = prepare(
        config.experiment({"algorithm": author("logged", trainings=2), **SMALL}), ragged(), DROPS
    )
    assert not gains_by_stacking(made.info.task.network)
    s = made.algorithm.init_server(made.root.fold("init"), made.info)
    call = CallId("local", 0, 1, 0)
    replies: dict[str, list[Params]] = {"in turns": [], "one by one": []}
    for order in replies:
        engine = LoopEngine(SiteStore(made.algorithm, made.parties, made.root), Sequential())
        works = [
            engine.sites[i].begin(call, Message(made.algorithm.message_for(s, i), None), {})
            for i in (0, 1)
        ]
        turns = [0, 1, 0, 1] if order == "in turns" else [0, 0, 1, 1]
        for i in turns:
            works[i].train()
        replies[order] = [engine.sites[i].end(works[i]).reply.theta for i in (0, 1)]
    for ours, right in zip(*replies.values(), strict=True):
        assert all(torch.equal(ours[k], v) for k, v in right.items())
