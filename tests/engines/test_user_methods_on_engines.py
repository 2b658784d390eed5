"""User methods on every engine: each engine gives the same results, or raises the same error."""

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
from comity.errors import ComityError, describe
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.run_warnings import warning_texts
from comity.runs.server_run import Quiet

HERE = Path(__file__).parent
ENGINES: dict[str, dict[str, Any]] = {
    "loop": {"engine": "loop"},
    "process": {"engine": "process", "workers": 2},
    "stacked-1": {"engine": "stacked", "workers": 1},
    "stacked-2": {"engine": "stacked", "workers": 2},
    "auto": {"engine": "auto"},
}
OTHER_ENGINES = [engine_name for engine_name in ENGINES if engine_name != "loop"]
SMALL: dict[str, Any] = {"model": "mlp2(width=6)", "rounds": 2, "lr": 0.1}
STEPS = [5, 3, 4, 2]  # of each party in an epoch: batches of 10 of 42, 21, 31 and 11 samples


def user_method(name: str, **options: Any) -> str:
    """The spec of a user method in `authors/`, with its options."""
    settings = ",".join(f"{k}={v}" for k, v in options.items())
    path = HERE / "authors" / f"{name}.py"
    return f"{path}({settings})" if settings else str(path)


class Outcome(NamedTuple):
    """The results of a run."""

    tables: dict[str, bytes]
    weights: dict[str, Params]
    summary: dict[str, Any]
    metrics: list[Note]
    warnings: list[str]


def log_of_calls() -> list[tuple[int, int]]:
    """The calls that `logged.py` logged in this process."""
    job(user_method("logged"), "loop")  # imports it
    log: list[tuple[int, int]] = sys.modules["comity_user.logged"].LOG
    return log


def outcome(text: str, engine_name: str, out: Path, **settings: Any) -> Outcome:
    log_of_calls().clear()
    result = run(text, out / engine_name, **SMALL | settings | ENGINES[engine_name])
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
    """Outcome on the loop engine, the reference."""
    with TemporaryDirectory() as folder:
        return outcome(text, "loop", Path(folder), **json.loads(settings))


def assert_same_bits(result: Outcome, expected: Outcome) -> None:
    assert result.tables == expected.tables
    assert result.summary == expected.summary
    for party, theta in expected.weights.items():
        for name, value in theta.items():
            assert torch.equal(result.weights[party][name], value), f"{name} of {party} differs"


def assert_agrees(result: Outcome, expected: Outcome, engine_name: str) -> None:
    """Check that the outcome equals the expected one: to the bit where parties train one by one, up
    to rounding where they are stacked. Ledgers are always equal.
    """
    if engine_name in ("loop", "process"):
        assert_same_bits(result, expected)
        return
    assert result.tables["ledger.csv"] == expected.tables["ledger.csv"]
    for row, expected_row in zip(result.metrics, expected.metrics, strict=True):
        assert row[:4] == expected_row[:4]
        if expected_row.metric == "loss":
            assert row.value == pytest.approx(expected_row.value, rel=1e-3, abs=1e-4), row
    for party, theta in expected.weights.items():
        torch.testing.assert_close(result.weights[party], theta, rtol=1e-3, atol=1e-4)
    for key, value in expected.summary.items():
        if key not in ("accuracy", "auc", "newcomers"):
            assert result.summary[key] == value, key
    assert result.summary["accuracy"]["mean"] == pytest.approx(
        expected.summary["accuracy"]["mean"], abs=0.03
    )


def recorded_values(result: Outcome, metric: str) -> dict[str, list[float]]:
    """Values of a metric for each party, by round."""
    values = defaultdict(list)
    for note in result.metrics:
        if note.metric == metric:
            values[note.party].append(note.value)
    return values


def job(text: str, engine_name: str, **settings: Any) -> SimulatedRun:
    return prepare(
        config.experiment({"algorithm": text} | SMALL | settings | ENGINES[engine_name]), ragged()
    )


def warnings(text: str, engine_name: str) -> list[str]:
    """The warnings of the first round."""
    simulated_run = job(text, engine_name)
    engine = simulated_run.engine()
    try:
        server = simulated_run.server(engine, Quiet())
        server.begin(1)
        simulated_run.algorithm.round(
            simulated_run.algorithm.init_server(
                simulated_run.root.fold("init"), simulated_run.info
            ),
            server,
            1,
        )
        return list(server.warnings)
    finally:
        engine.close()


def error_message(text: str, engine_name: str, out: Path, **settings: Any) -> str:
    """The error message of a run that must fail; the global state of torch must not change."""
    before = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.random.get_rng_state(),
    )
    with pytest.raises(Exception) as error:  # noqa: PT011 - callers check the message
        run(text, out / engine_name, **SMALL | settings | ENGINES[engine_name])
    after = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.random.get_rng_state(),
    )
    assert after[:3] == before[:3]
    assert torch.equal(after[3], before[3])
    return describe(error.value)


def line_of(name: str, mark: str) -> str:
    """The file and line of a comment in a user method, in the format of error messages."""
    for number, text in enumerate((HERE / "authors" / f"{name}.py").read_text().splitlines(), 1):
        if text.endswith(f"# {mark}"):
            return f"{name}.py:{number}"
    raise AssertionError(mark)


def is_one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text


# --- numpy in losses


@pytest.mark.sweep("auto", "stacked-2")
@pytest.mark.parametrize("engine_name", OTHER_ENGINES)
@pytest.mark.parametrize("way", ["own", "common", "closure"])
def test_losses_may_use_numpy_arrays(way: str, engine_name: str, tmp_path: Path) -> None:
    """Class weights per party, common to all parties, or in a closure."""
    text = user_method("weighted", way=way)
    expected = on_loop(text)
    assert_agrees(outcome(text, engine_name, tmp_path), expected, engine_name)
    plain = on_loop("fedavg").weights["north"]
    assert not torch.allclose(
        expected.weights["north"]["fc3.weight"], plain["fc3.weight"], atol=1e-3
    )  # otherwise the test checks nothing


def test_common_arrays_do_not_prevent_stacking() -> None:
    assert warnings(user_method("weighted", way="common"), "stacked-1") == []
    (aux_warning,) = warnings(user_method("weighted", way="own"), "stacked-1")
    assert "Weighted.loss" in aux_warning
    (closure_warning,) = warnings(user_method("weighted", way="closure"), "stacked-1")
    assert "closure_loss" in closure_warning


# --- losses that count their calls


@pytest.mark.parametrize("engine_name", ENGINES)
def test_closure_that_counts_is_called_once_per_step(engine_name: str, tmp_path: Path) -> None:
    result = outcome(user_method("counting"), engine_name, tmp_path)
    assert (
        recorded_values(result, "calls")
        == recorded_values(result, "steps")
        == {n: [k, k] for n, k in zip(ragged().names, STEPS, strict=True)}
    )
    assert result.summary["steps"] == 2 * sum(STEPS)
    assert_agrees(result, on_loop(user_method("counting")), engine_name)
    assert len(result.warnings) == (engine_name not in ("loop", "process")), (
        "the summary keeps the server's warnings"
    )


@pytest.mark.parametrize("engine_name", ENGINES)
def test_run_warns_about_a_closure_that_is_not_stacked(engine_name: str) -> None:
    texts = warnings(user_method("counting"), engine_name)
    if engine_name in ("loop", "process"):  # as everything is there
        assert texts == []
        return
    (warning,) = texts
    assert "Counting.local.<locals>.counting_loss" in warning
    assert "one by one" in warning
    assert is_one_sentence(warning)


@pytest.mark.parametrize("engine_name", ENGINES)
def test_object_as_aux_is_refused(engine_name: str, tmp_path: Path) -> None:
    sentence = (
        "The aux argument of a loss must be a record of tensors and plain values, but it holds a"
        " Calls."
    )
    assert error_message(user_method("counting", where="aux"), engine_name, tmp_path) == sentence


# --- steps, newcomers, finishing methods and user methods, on every engine


FINISHING = ["fed-sps(tune=end)", TUNED]
USER_METHODS = [GOSSIP]
WITH_NEWCOMER = {"newcomers": 1, "join_epochs": 1}
ALL_METHODS = [*compositions(), *FINISHING, *USER_METHODS]


def test_matrix_contains_methods_that_finish() -> None:
    assert {"fedbabu(finetune_epochs=2)", "centralized", "adcol", "fedgen(gen_steps=5)"} <= set(
        ALL_METHODS
    )
    finishing = [text for text in ALL_METHODS if job(text, "loop").algorithm.traits.finishes]
    assert set(finishing) >= {"fedbabu(finetune_epochs=2)", *FINISHING}


@pytest.mark.parametrize(
    "engine_name", ["stacked-1", "stacked-2", "auto"]
)  # on processes: test_newcomers.py
@pytest.mark.parametrize("text", over_methods(compositions()))
def test_every_method_agrees_on_every_engine(text: str, engine_name: str, tmp_path: Path) -> None:
    """With a newcomer: steps of parties and server, bytes, and models that are tuned at the end."""
    expected = on_loop(text, json.dumps(WITH_NEWCOMER))
    result = outcome(text, engine_name, tmp_path, **WITH_NEWCOMER)
    assert result.summary["steps"] == expected.summary["steps"] > 0 or text == "centralized"
    assert result.summary["server_steps"] == expected.summary["server_steps"]
    assert result.summary["newcomers"].keys() == expected.summary["newcomers"].keys() == {"west"}
    assert_agrees(result, expected, engine_name)


@pytest.mark.sweep("auto", "stacked-2")
@pytest.mark.parametrize("engine_name", OTHER_ENGINES)
@pytest.mark.parametrize("text", [*FINISHING, *USER_METHODS], ids=lambda text: Path(text).name)
def test_finishing_and_user_methods_agree_on_every_engine(
    text: str, engine_name: str, tmp_path: Path
) -> None:
    test_every_method_agrees_on_every_engine(text, engine_name, tmp_path)


def test_server_trains_in_some_methods() -> None:
    """The test above compares server steps that are not all zero."""
    for text in ("centralized", "adcol", "fedgen(gen_steps=5)"):
        assert on_loop(text, json.dumps(WITH_NEWCOMER)).summary["server_steps"] > 0


# --- invalid party functions


MODE_ERROR = (
    "local awaits a training inside torch.no_grad() or another mode of torch: leave the mode first,"
    " since it would also apply to other parties."
)


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("plain", "local must be an `async def`, even if it awaits nothing."),
        ("foreign", "local awaits None, but only party.fit(...), party.fold(...) and its own methods can be awaited."),
        ("single", "local must return (its new state, a reply), but returned a Model."),
        ("three", "local must return (its new state, a reply), but returned a tuple."),
        ("no_grad", MODE_ERROR),
        ("inference", MODE_ERROR),
        ("dtype", MODE_ERROR),
        ("model", "deployed_model must return parameters, but returned a FitRequest: training belongs in party functions."),
    ],
    ids=lambda text: text if " " not in text else "",
)  # fmt: skip
def test_mistakes_have_the_same_error_message_on_every_engine(
    mistake: str, sentence: str, engine_name: str, tmp_path: Path
) -> None:
    assert (
        error_message(user_method("mistaken", mistake=mistake), engine_name, tmp_path) == sentence
    )


@pytest.mark.parametrize("engine_name", ENGINES)
def test_forgotten_await_is_an_error(engine_name: str, tmp_path: Path) -> None:
    """A request is not a result, so the next line of the method fails, and the error names it."""
    message = error_message(user_method("mistaken", mistake="forgotten"), engine_name, tmp_path)
    assert message.startswith("AttributeError in local_coroutine")
    assert line_of("mistaken", "the author's line") in message
    assert "has no 'theta' before it is awaited: write `await party.fit(...)`" in message


# --- losses that fail


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize(
    ("how", "words"),
    [("raised", "ValueError"), ("shapes", "RuntimeError"), ("in torch", "ValueError")],
    ids=lambda text: text,
)
def test_error_in_a_loss_names_the_line(
    how: str, words: str, engine_name: str, tmp_path: Path
) -> None:
    message = error_message(user_method("failing"), engine_name, tmp_path, how=how)
    assert message.startswith(f"{words} in loss ({line_of('failing', how)}): ")


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("how", ["raised", "in torch"])
def test_party_function_may_catch_an_error_and_continue(
    how: str, engine_name: str, tmp_path: Path
) -> None:
    """The run then equals FedAvg, and the steps of the failed training are not counted."""
    result, expected = (
        outcome(user_method("failing"), engine_name, tmp_path, how=how, caught=True),
        on_loop("fedavg"),
    )
    assert result.summary["steps"] == expected.summary["steps"] == 2 * sum(STEPS)
    assert_agrees(
        result._replace(summary=result.summary | {"algorithm": "fedavg"}), expected, engine_name
    )


# --- party functions run once


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("trainings", [0, 1, 3])
@pytest.mark.parametrize("engine_name", ENGINES)
def test_party_function_runs_once_per_call(
    engine_name: str, trainings: int, tmp_path: Path
) -> None:
    text = user_method("logged", trainings=trainings)
    result = outcome(text, engine_name, tmp_path)
    log = list(log_of_calls())
    assert recorded_values(result, "times") == {name: [1, 1] for name in ragged().names}
    assert result.summary["steps"] == 2 * trainings * sum(STEPS)
    if engine_name in ("loop", "stacked-1"):  # in this process
        assert len(log) == len(set(log)) == 2 * len(STEPS)
    assert_agrees(result, on_loop(text), engine_name)


# --- losses that write to their arguments


READ_ONLY_ERROR = (
    "A loss may not write to its arguments: values that it keeps from batch to batch go into"
    " batch.scratch."
)
WRITE_ERROR = (
    "A loss wrote to a tensor of its aux argument or of its task: create a new tensor instead."
)


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize(
    ("to", "sentence"),
    [("dict", READ_ONLY_ERROR), ("nested", READ_ONLY_ERROR), ("list", READ_ONLY_ERROR), ("theta", READ_ONLY_ERROR), ("tensor", WRITE_ERROR), ("common", WRITE_ERROR),
     ("message", WRITE_ERROR), ("array", WRITE_ERROR)],
    ids=lambda text: text if " " not in text else "",
)  # fmt: skip
def test_loss_must_not_write_to_its_arguments(
    to: str, sentence: str, engine_name: str, tmp_path: Path
) -> None:
    assert error_message(user_method("writing", to=to), engine_name, tmp_path) == sentence


@pytest.mark.parametrize("engine_name", ENGINES)
def test_loss_must_not_write_in_a_later_step(engine_name: str, tmp_path: Path) -> None:
    """The loss writes in the third step only. With two epochs, the parties with a full batch in a
    step are not adjacent.
    """
    assert (
        error_message(user_method("writing", to="late"), engine_name, tmp_path, epochs=2)
        == WRITE_ERROR
    )


# --- impure methods


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize(
    ("breach", "sentence"),
    [
        ("torch", "local drew random numbers from torch's global generator ("),
        ("numpy", "local drew random numbers from numpy's global generator ("),
        ("python", "local drew random numbers from Python's global generator ("),
        ("loss", "local drew random numbers from torch's global generator ("),
        ("tensor", "local wrote to its message"),
        ("entry", "local wrote to its message"),
        ("state", "local wrote to its state"),
        ("deployed", "deployed_model wrote to its message"),
    ],
    ids=lambda text: text if " " not in text else "",
)
def test_impure_method_is_refused_with_its_line(
    breach: str, sentence: str, engine_name: str, tmp_path: Path
) -> None:
    """Such a method gives other results on other engines, or in a second run."""
    with pytest.raises(Exception) as error:  # noqa: PT011 - the message is checked
        run(
            user_method("impure", breach=breach),
            tmp_path / "run",
            **SMALL | ENGINES[engine_name],
        )
    message = describe(error.value)
    assert message.startswith(sentence), message
    assert f", {line_of('impure', breach)})" in message
    if engine_name == "loop" and breach in ("tensor", "entry"):
        assert "its message, theta['fc3.bias'] (train_locally, " in message
    assert is_one_sentence(message)


def test_unkeyed_draw_at_the_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match=r"at the server drew .* torch's global .*comity check"):
        run(user_method("impure", breach="server"), tmp_path / "run", **SMALL)


def test_pure_method_is_accepted(tmp_path: Path) -> None:
    run(user_method("impure"), tmp_path / "run", **SMALL)


# --- loops over replies that end early


@pytest.mark.sweep("loop", "stacked-2")
@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("then", ["call", "end"])
def test_loop_over_replies_must_not_end_early(then: str, engine_name: str, tmp_path: Path) -> None:
    sentence = "A loop over the replies of local was left early: a loop over server.replies must go through all replies."
    assert error_message(user_method("leaving", then=then), engine_name, tmp_path) == sentence


# --- layers that draw random numbers


DROPOUT_MODEL = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Dropout(0.5)), nn.Linear(12, 10)


@pytest.mark.parametrize("engine_name", OTHER_ENGINES)
def test_dropout_in_two_trainings_draws_the_same_on_every_engine(
    engine_name: str, tmp_path: Path
) -> None:
    """Weights are equal to the bit. Stacked parties evaluate a shared model in one pass, so metrics
    may differ by rounding.
    """
    text = user_method("logged", trainings=2)
    expected, result = (
        outcome(text, name, tmp_path, model=DROPOUT_MODEL) for name in ("loop", engine_name)
    )
    if engine_name.startswith("stacked"):
        assert_agrees(result, expected, engine_name)
        result = result._replace(tables=expected.tables)
    assert_same_bits(result, expected)


def test_interleaved_party_functions_keep_their_own_draws() -> None:
    """Two parties that train alternately get the same bits as one after the other."""
    simulated_run = prepare(
        config.experiment({"algorithm": user_method("logged", trainings=2), **SMALL}),
        ragged(),
        DROPOUT_MODEL,
    )
    assert not gains_by_stacking(simulated_run.info.task.network)
    s = simulated_run.algorithm.init_server(simulated_run.root.fold("init"), simulated_run.info)
    call = CallId("local", 0, 1, 0)
    replies: dict[str, list[Params]] = {"in turns": [], "one by one": []}
    for order in replies:
        engine = LoopEngine(
            SiteStore(simulated_run.algorithm, simulated_run.parties, simulated_run.root),
            Sequential(),
        )
        calls = [
            engine.sites[i].begin(
                call, Message(simulated_run.algorithm.message_for(s, i), None), {}
            )
            for i in (0, 1)
        ]
        turns = [0, 1, 0, 1] if order == "in turns" else [0, 0, 1, 1]
        for i in turns:
            calls[i].train()
        replies[order] = [engine.sites[i].end(calls[i]).reply.theta for i in (0, 1)]
    for reply, expected in zip(*replies.values(), strict=True):
        assert all(torch.equal(reply[k], v) for k, v in expected.items())
