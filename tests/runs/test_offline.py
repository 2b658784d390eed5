"""Parties that are offline and replies that are lost: no state at the server or at a party becomes
wrong, and the run reports every absence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from absences import EVENTS, absences, plan
from matrix import compositions, ragged, run, short, weights
from sweeps import over_methods

import comity
from comity.base.call import CallId, Message
from comity.base.record import Model, leaves, record_type
from comity.engines.site import Site
from comity.engines.versions import PartyState
from comity.errors import ComityError, UsageError
from comity.runs import config
from comity.runs.build import prepare
from comity.runs.folder import RunFolder
from comity.runs.run import reopen, resume_in
from comity.wire.codec import encode

QUICK: dict[str, Any] = {"model": "mlp2(width=8)", "rounds": 3}


def figures_and_models(result: comity.Result) -> tuple[Any, ...]:
    """Figures and models of a run, to compare bit for bit."""
    return (
        result.metrics,
        {n: encode(Model(theta)) for n, theta in weights(result).items()},
        result.summary["steps"],
    )


# --- the whole matrix


@pytest.mark.parametrize("text", over_methods(compositions()), ids=short)
def test_a_lost_reply_is_as_if_the_party_had_been_away(text: str, tmp_path: Path) -> None:
    """The party returns to its earlier state, so that no model differs, in any method. Evaluations
    are not lost.
    """
    functions = [w for a in _method_chain(text) for w in _party_functions(a)]
    results = {}
    for kind in ("offline", "lost"):
        lines = [
            f"{party},{t},{function},{kind}"
            for function in functions
            for party, t in (("east", 1), ("north", 2), ("west", 2))
        ]
        results[kind] = run(text, tmp_path / kind, absent=plan(tmp_path / kind, *lines), **QUICK)
    assert figures_and_models(results["offline"]) == figures_and_models(results["lost"])
    kinds = {(a.party, a.round, a.how) for a in absences(results["lost"])}
    assert kinds == (
        set()
        if text == "centralized"
        else {("east", 1, "lost"), ("north", 2, "lost"), ("west", 2, "lost")}
    )


@pytest.mark.parametrize(
    "text", over_methods(compositions()[::3]), ids=short
)  # the test above detects wrong states
def test_parties_that_are_absent_at_different_times(text: str, tmp_path: Path) -> None:
    """Offline at the start, lost in between, offline at the end with its evaluation: the run ends,
    and every party is in the summary.
    """
    absent = plan(
        tmp_path, "north,0,,offline", "south,2,,lost", "west,3-,,offline", "east,1,evaluate,lost"
    )
    result = run(text, tmp_path / "run", absent=absent, **QUICK)
    accuracy = result.summary["accuracy"]
    assert set(accuracy["per_party"]) == {"north", "east", "south", "west"}
    assert accuracy["as_of"] == {"west": 2}
    assert not result.summary["diverged"]
    assert {a.party for a in absences(result) if a.call == "evaluate"} >= {"west", "east"}
    assert result.summary["absent"]["west"]["offline"] >= 1


def _method_chain(text: str) -> list[Any]:
    from comity import algorithms
    from comity.core.wrapper import chain

    return chain(algorithms.compose(text))


def _party_functions(algorithm: Any) -> list[str]:
    import inspect

    return [name for name, _ in inspect.getmembers(type(algorithm), inspect.iscoroutinefunction)]


# --- what went wrong before


def test_scaffolds_variates_stay_in_balance(tmp_path: Path) -> None:
    """c = mean of all c_i (l.17): a party whose reply was lost must not have changed its own."""
    result = run("scaffold", tmp_path / "run", absent=plan(tmp_path, "east,2,local,lost"), **QUICK)
    server = RunFolder(result.folder).checkpoints()
    server.load()
    c = server.server_state().c
    for name, value in c.items():
        mean = torch.stack([result.state(p).c[name] for p in ragged().names]).mean(0)
        assert (value - mean).abs().max() < 1e-7


@pytest.mark.parametrize(
    "text", ["fedavg+dbe", "fedavg+mr", "scaffold+dbe", "fedgen(gen_steps=5)+dbe"]
)
def test_a_party_that_missed_the_start_catches_up(text: str, tmp_path: Path) -> None:
    """It catches up before it trains: otherwise it would be pulled towards a consensus of 0."""
    result = run(text, tmp_path / "run", absent=plan(tmp_path, "east,0-1,,offline"), **QUICK)
    consensus = {name: result.state(name).extra.z for name in ragged().names}
    assert consensus["east"].abs().sum() > 0
    assert all(torch.equal(z, consensus["north"]) for z in consensus.values())
    consensus_rows = [row for row in result.ledger if row.call == "agree" and row.dst == "east"]
    assert {row.round for row in consensus_rows} == {2}


def test_a_party_that_cannot_catch_up_is_not_called(tmp_path: Path) -> None:
    absent = plan(tmp_path, "east,0,,offline", "east,1,agree,lost", "east,2,agree,offline")
    result = run("fedavg+dbe", tmp_path / "run", absent=absent, **QUICK)
    waited = [(a.round, a.call, a.how) for a in absences(result) if a.round]
    assert waited == [
        (1, "agree", "lost"),
        (1, "local", "waiting"),
        (2, "agree", "offline"),
        (2, "local", "waiting"),
    ]
    assert result.state("east").extra.z.abs().sum() > 0


def test_centralized_pools_data_that_was_missing_at_the_start(tmp_path: Path) -> None:
    result = run(
        "centralized", tmp_path / "run", absent=plan(tmp_path, "east,0-1,,offline"), **QUICK
    )
    handed = {(row.round, row.src) for row in result.ledger if row.call == "hand_over"}
    assert handed == {(0, "north"), (0, "south"), (0, "west"), (2, "east")}


def test_nobody_online_in_finish_does_not_fail_the_run(tmp_path: Path) -> None:
    """A method's last step is discarded if nobody replies: models stay as before it, and the
    summary says so.
    """
    whole = run("fedbabu", tmp_path / "whole", **QUICK)
    finish = [row.call for row in whole.ledger if row.round == 3 and row.kind == "down"][-1]
    silent = plan(tmp_path, *(f"{p},3,{finish},offline" for p in ragged().names))
    result = run("fedbabu", tmp_path / "run", absent=silent, **QUICK)
    assert [v["round"] for v in result.summary["discarded"]] == [3]
    assert f"No party answered {finish}" in result.summary["discarded"][0]["why"]
    assert result.summary["accuracy"]["mean"] == result.summary["accuracy"]["unfinished"]


def test_nobody_online_at_the_start_is_reported(tmp_path: Path) -> None:
    with pytest.raises(
        ComityError, match="The run cannot begin: no party answered mean in round 0"
    ):
        run(
            "fedavg+dbe",
            tmp_path / "run",
            absent=plan(tmp_path, *(f"{p},0,," for p in ragged().names)),
            **QUICK,
        )


def test_a_party_that_was_never_evaluated_has_no_figure(tmp_path: Path) -> None:
    result = run("fedavg", tmp_path / "run", absent=plan(tmp_path, "west,*,,offline"), **QUICK)
    accuracy = result.summary["accuracy"]
    assert accuracy["per_party"]["west"] is None
    assert accuracy["as_of"] == {"west": None}
    assert accuracy["global"] is None
    assert accuracy["best_round"] is None
    assert "west" not in {accuracy["best_party"], accuracy["worst_party"]}
    everybody = plan(tmp_path / "all", *(f"{p},*,evaluate,offline" for p in ragged().names))
    with pytest.raises(ComityError, match="No party reported a figure"):
        run("fedavg", tmp_path / "none", absent=everybody, **QUICK)


def test_the_best_round_needs_every_partys_evaluation(tmp_path: Path) -> None:
    """Without its worst party a round looks better than it is."""
    free = run("solo", tmp_path / "free", **QUICK)
    per = free.summary["accuracy"]["per_party"]
    worst = min(per, key=lambda p: per[p])
    result = run(
        "solo", tmp_path / "run", absent=plan(tmp_path, f"{worst},3,evaluate,offline"), **QUICK
    )
    assert result.summary["accuracy"]["best_on_test"]["round"] < 3
    assert result.summary["accuracy"]["mean"] != pytest.approx(
        sum(v for p, v in per.items() if p != worst) / 3
    )


# --- quorum


@pytest.mark.parametrize(
    "text", ["scaffold", "adcol(hidden=8)", "fed-sps", "fedufo", "fedavg+dbe", "relay"]
)
def test_a_round_with_too_few_replies_is_discarded_for_all(text: str, tmp_path: Path) -> None:
    """All its calls are discarded, also those with enough replies: the models stay as before it."""
    few = plan(tmp_path, "east,2-3,local,lost")
    result = run(text, tmp_path / "run", absent=few, min_replies=4, **QUICK)
    functions = [w for a in _method_chain(text) for w in _party_functions(a)]
    nobody = plan(
        tmp_path / "none", *(f"{p},2-3,{w},offline" for p in ragged().names for w in functions)
    )
    silent = run(text, tmp_path / "silent", absent=nobody, **QUICK)
    assert [v["round"] for v in result.summary["discarded"]] == [2, 3]
    assert (
        "Only 3 of the 4 parties that are needed answered local in round 2"
        in result.summary["discarded"][0]["why"]
    )
    assert [encode(Model(theta)) for theta in weights(result).values()] == [
        encode(Model(theta)) for theta in weights(silent).values()
    ]


def test_more_replies_than_parties_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="min_replies must be at most 4, the number of parties, not 5"
    ):
        run("fedavg", tmp_path / "run", min_replies=5)


# --- engines, resume and replay


@pytest.mark.sweep("process-fed-sps", "stacked-scaffold+dbe")
@pytest.mark.parametrize("text", ["scaffold+dbe", "adcol(hidden=8)", "fed-sps", "feduad"])
@pytest.mark.parametrize("engine", ["stacked", "process"])
def test_engines_agree_on_absences(text: str, engine: str, tmp_path: Path) -> None:
    settings = QUICK | {"absent": plan(tmp_path, *EVENTS), "opt_state": "reset"}
    loop = run(text, tmp_path / "loop", **settings)
    other = run(text, tmp_path / engine, **settings | {"engine": engine, "workers": 2})
    assert (loop.folder / "absences.csv").read_bytes() == (
        other.folder / "absences.csv"
    ).read_bytes()
    assert (loop.folder / "ledger.csv").read_bytes() == (other.folder / "ledger.csv").read_bytes()
    if engine == "process":
        assert figures_and_models(loop) == figures_and_models(other)


def test_states_on_disk_are_undone_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for no state at all, each version has its own place in the spill file."""
    settings = QUICK | {"absent": plan(tmp_path, *EVENTS)}
    in_memory = run("adcol(hidden=8)", tmp_path / "memory", **settings)
    monkeypatch.setenv("COMITY_STATE_BYTES", "0")
    other = run("adcol(hidden=8)", tmp_path / "file", **settings)
    assert figures_and_models(in_memory) == figures_and_models(other)


def test_a_runs_absences_can_be_replayed(tmp_path: Path) -> None:
    """A run's table of absences is a plan that gives the same run, bit for bit."""
    original = run("scaffold+dbe", tmp_path / "one", absent=plan(tmp_path, *EVENTS), **QUICK)
    again = run(
        "scaffold+dbe", tmp_path / "again", absent=str(original.folder / "absences.csv"), **QUICK
    )
    for name in ("metrics.csv", "ledger.csv", "absences.csv", "outcomes.csv"):
        assert (original.folder / name).read_bytes() == (again.folder / name).read_bytes()


def test_a_resumed_run_keeps_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """StopRun after every round, when the user's table is already deleted: the folder has its own
    copy, and knows who still has to catch up.
    """
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    table = plan(tmp_path, *EVENTS, "east,1,agree,offline")
    whole = run("scaffold+dbe", tmp_path / "whole", absent=table, **QUICK)

    class StopRun(Exception): ...

    class Stops:
        """Ends the run after one round."""

        def begin(self, job: Any, first_round: int) -> None: ...
        def add_replies(self, count: int) -> None: ...
        def end(self) -> None: ...
        def round(self, t: int, accuracy: Any, ledger: Any) -> None:
            raise StopRun

    folder = tmp_path / "stopped"
    with pytest.raises(StopRun):
        run("scaffold+dbe", folder, absent=table, progress=Stops(), **QUICK)
    Path(table).unlink()
    for _ in range(3):
        with pytest.raises(StopRun):
            resume_in(reopen(folder, ragged()), folder, Stops())
    result = resume_in(reopen(folder, ragged()), folder, Stops())
    assert figures_and_models(result) == figures_and_models(whole)
    assert (folder / "absences.csv").read_bytes() == (whole.folder / "absences.csv").read_bytes()
    for name in ("absent", "discarded"):
        assert result.summary[name] == whole.summary[name]


def test_random_absences_depend_on_the_seed_only(tmp_path: Path) -> None:
    settings = QUICK | {"absent": "random(offline=0.3,lost=0.2)", "rounds": 6}
    first, other = (
        run("fedavg", tmp_path / "a", **settings),
        run("fedavg", tmp_path / "b", **settings),
    )
    assert absences(first) == absences(other)
    kinds = [a.how for a in absences(first)]
    assert {"offline", "lost"} == set(kinds)
    assert 0.2 < len(kinds) / 24 < 0.8
    assert not first.summary["accuracy"]["as_of"], "everybody evaluates"
    assert absences(run("fedavg", tmp_path / "c", seed=1, **settings)) != absences(first)


@pytest.mark.parametrize(
    ("lines", "heads", "sentence"),
    [
        (["nobody,1,,offline"], "party,round,call,how", "There is no party .* called 'nobody'"),
        (
            ["east,x,,offline"],
            "party,round,call,how",
            "line 2: a round is written as 3, 3-5, 3- or \\*, not 'x'",
        ),
        (["east,1,,ill"], "party,round,call,how", "line 2: how is offline or lost, not 'ill'"),
        (["east"], "party", "needs the columns party and round"),
        (["east,1,2"], "party,round,when", "needs the columns party and round"),
        (["east"], "party,round", "the cells do not match the columns"),
        (["east,1,,,"], "party,round", "the cells do not match the columns"),
        (
            ["east,1,,-3,"],
            "party,round,call,occurrence,how",
            "an occurrence is a whole number, not '-3'",
        ),
    ],
)
def test_an_invalid_plan_is_refused(
    lines: list[str], heads: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        run("fedavg", tmp_path / "run", absent=plan(tmp_path, *lines, heads=heads))


@pytest.mark.parametrize("absent", ["nothing.csv", "random(offline=2)", "random()", "sometimes"])
def test_an_invalid_absent_setting_is_refused(absent: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run("fedavg", tmp_path / "run", absent=absent)


def test_a_plan_for_unknown_party_functions_warns(tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning,
        match="the plan of absences names 'assist', which is no party function of this method",
    ):
        run("fedavg", tmp_path / "run", absent=plan(tmp_path, "east,1,assist,lost"), **QUICK)


# --- a party and its versions


def site(text: str = "scaffold") -> Site:
    job = prepare(
        config.experiment({"algorithm": text, "model": "mlp2(width=6)", "engine": "loop"}), ragged()
    )
    return Site(job.algorithm, job.parties[1], job.root)


def message_of(s: Site, after: CallId | None) -> Message:
    job = prepare(
        config.experiment({"algorithm": "scaffold", "model": "mlp2(width=6)", "engine": "loop"}),
        ragged(),
    )
    return Message(
        s.algorithm.message_for(s.algorithm.init_server(job.root.fold("init"), job.info), 1), after
    )


def test_a_repeated_call_gives_the_same_reply() -> None:
    """The call names the state that it is for, and a party function depends on that alone: no reply
    has to be stored to be repeated.
    """
    s = site()
    first, second = CallId("local", 0, 1, 0), CallId("local", 0, 2, 0)
    replies = [encode(s.run(first, message_of(s, None), {}).reply) for _ in range(2)]
    assert replies[0] == replies[1]
    after = [encode(s.run(second, message_of(s, first), {}).reply) for _ in range(3)]
    assert after[0] == after[1] == after[2] != replies[0]


def test_states_that_the_server_did_not_accept_are_undone() -> None:
    s = site()
    before = s.mine
    first = CallId("local", 0, 1, 0)
    assert s.run(first, message_of(s, None), {}).keeps
    assert s.mine is not before
    changed = s.mine
    s.run(CallId("local", 0, 2, 0), message_of(s, first), {})
    s.versions.go_to(first)
    assert s.mine is changed
    s.versions.go_to(None)
    assert all(torch.equal(a, b) for a, b in zip(leaves(s.mine), leaves(before), strict=True))


def test_a_party_that_is_out_of_step_says_so() -> None:
    s = site()
    first = CallId("local", 0, 1, 0)
    s.run(first, message_of(s, None), {})
    s.versions.commit(first)
    with pytest.raises(
        ComityError, match="out of step with the server: it should continue from the beginning"
    ):
        s.run(CallId("local", 0, 2, 0), message_of(s, None), {})
    with pytest.raises(
        ComityError, match="out of step with the server: it should continue after align in round 7"
    ):
        s.run(CallId("local", 0, 8, 0), message_of(s, CallId("align", 0, 7, 0)), {})


def test_the_summary_counts_absences(tmp_path: Path) -> None:
    result = run(
        "fedavg",
        tmp_path / "run",
        absent=plan(tmp_path, "east,1-2,local,lost", "west,3,local,offline"),
        **QUICK,
    )
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["absent"] == {"east": {"lost": 2}, "west": {"offline": 1}}
    assert summary["discarded"] == []
    assert (result.folder / "absences.csv").read_text() == (
        "party,round,call,how,occurrence\neast,1,local,lost,0\neast,2,local,lost,0\nwest,3,local,offline,0\n"
    )


def test_states_of_earlier_versions_can_be_read() -> None:
    """The class of a party's state was in another module when they were saved."""
    assert record_type("comity.engines.site:PartyState") is PartyState
