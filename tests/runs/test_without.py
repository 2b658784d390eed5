"""A party is left out of a run: the run does not know it, and for the others only its messages are
missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix import GOSSIP, ragged, run, tables

import comity
from comity.components.bank import Bank, Upload
from comity.core import Key, Server
from comity.engines.loop import LoopEngine
from comity.errors import UsageError
from comity.runs import config
from comity.runs.build import prepare
from comity.studies import plan
from comity.wire.codec import flatten

OTHERS = (
    "north",
    "south",
    "west",
)  # east, the second, is left out: later parties get other indices, but the same random streams
ALONE = [  # methods in which parties learn nothing from each other
    "solo", "fed-sps(alpha=0,beta=0)", "adcol(mu=0,hidden=8)", "relay(lambda_kd=0,lambda_disc=0,guarded=0.4)",
    "relay-p2p(lambda_kd=0,lambda_disc=0)",
]  # fmt: skip


def rows(result: comity.Result, *names: str) -> list[tuple[Any, ...]]:
    """The metrics of these parties' models."""
    return [
        tuple(m) for m in result.metrics if m.party in names and m.metric in ("accuracy", "loss")
    ]


def right(folder: Path, *names: str) -> list[str]:
    return [
        line
        for line in (folder / "outcomes.csv").read_text().splitlines()
        if line.split(",")[0] in names
    ]


@pytest.mark.sweep("-{}", "fed-sps(alpha=0,beta=0)-{'engine'")
@pytest.mark.parametrize(
    "more", [{}, {"participation": 0.5}, {"engine": "process", "workers": 2}], ids=str
)
@pytest.mark.parametrize("text", ALONE)
def test_parties_that_learn_nothing_from_it_are_unchanged(
    text: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Bit for bit in every round: data, test part, random streams, and the rounds in which a party
    takes part.
    """
    own = {"party": {"west": {"lr": 0.03, "batch": 5}}, "rounds": 3} | more
    whole, less = (
        run(text, tmp_path / "whole", **own),
        run(text, tmp_path / "less", without="east", **own),
    )
    assert rows(less, *OTHERS) == rows(whole, *OTHERS)
    assert right(less.folder, *OTHERS) == right(whole.folder, *OTHERS)
    assert not rows(less, "east")
    assert rows(whole, "east")


@pytest.mark.parametrize(
    "text",
    [
        "fedavg",
        "scaffold",
        "fedrep",
        "moon",
        "fedavg+prbm",
        "relay(lambda_kd=0,lambda_disc=0,guarded=0.4)",
    ],
)
def test_first_replies_are_the_same(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' replies in round 1, to the same message, are bit for bit those with all parties
    present.
    """
    replies: dict[str, str] = {}
    function = LoopEngine.run

    def recording_run(
        engine: LoopEngine, call: Any, messages: Any, sealed_messages: Any
    ) -> Iterator[Any]:
        for i, answer in function(engine, call, messages, sealed_messages):
            if call.round == 1:
                skeleton, tensors = flatten(answer.reply)
                replies[engine.sites[i].party.name] = json.dumps(skeleton) + str(
                    [t.numpy().tobytes() for t in tensors]
                )
            yield i, answer

    monkeypatch.setattr(LoopEngine, "run", recording_run)
    run(text, tmp_path / "whole", rounds=1)
    whole = dict(replies)
    replies.clear()
    run(text, tmp_path / "less", rounds=1, without="east")
    assert whole.keys() == {"north", "east", "south", "west"}
    assert replies == {name: whole[name] for name in OTHERS}


def test_every_method_runs_without_a_party_and_with_an_empty_round(
    text: str, tmp_path: Path
) -> None:
    """One of four is drawn; where that is the missing one, the round is empty, and the plan agrees."""
    few = {"participation": 0.25, "rounds": 3}
    assert [prepare(experiment(**few), ragged()).cohort(t) for t in (1, 2, 3)] == [[3], [1], [2]]
    result = run(text, tmp_path, without=["east"], **few)
    job = result.job
    assert (job.info.names, job.info.places, job.info.whole) == (OTHERS, (0, 2, 3), 4)
    assert [job.cohort(t) for t in (1, 2, 3)] == [[2], [], [1]]
    silent = (
        [] if text == "centralized" else [2]
    )  # which draws no cohort: the data are pooled before round 1
    assert [m.round for m in result.metrics if m.metric == "silence"] == silent
    assert not {"east"} & {end for c in result.ledger for end in (c.src, c.dst)}
    assert "east" not in {m.party for m in result.metrics} | {
        m.metric.removeprefix("overlap/") for m in result.metrics
    }
    _, traffic_by_round = plan.traffic(job)
    charged = Counter[tuple[int, str]]()
    for row in result.ledger:
        charged[row.round, row.kind] += row.bytes
    for t in (1, 2):  # the last round may have what follows it
        assert {kind: charged[t, kind] for kind in ("up", "down", "peer")} == vars(
            traffic_by_round[t - 1]
        )


@pytest.mark.sweep("fedavg+dbe", "relay-p2p")
@pytest.mark.parametrize(
    "text",
    ["fedavg+dbe", "fed-sps", "relay-p2p", "adcol(slots=cohort,hidden=8)", "centralized", GOSSIP],
)
def test_engines_agree_and_a_saved_experiment_repeats_it(text: str, tmp_path: Path) -> None:
    first = run(text, tmp_path / "loop", without="east")
    again = run(text, tmp_path / "process", engine="process", workers=2, without=("east",))
    assert tables(first.folder) == tables(again.folder)
    saved = config.read(first.folder / "config.toml")
    assert (saved.without, saved.parties) == (("east",), 4)
    job = prepare(saved, ragged())
    assert job.experiment == saved
    assert first.summary["parties"] == 3
    assert first.summary["without"] == ["east"]
    assert set(first.summary["accuracy"]["per_party"]) == set(OTHERS)
    with pytest.raises(UsageError, match="east"):
        first.model("east")


def test_a_run_without_a_party_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMITY_CHECKPOINT_SECONDS", "0")
    whole = run("scaffold", tmp_path / "whole", without="east", rounds=3)

    class Stop(Exception):
        pass

    class Impatient:
        def begin(self, job: Any, first_round: int) -> None: ...
        def add_replies(self, count: int) -> None: ...
        def end(self) -> None: ...
        def round(self, t: int, accuracy: Any, ledger: Any) -> None:
            if t == 2:
                raise Stop

    settings = {"without": "east", "rounds": 3}
    with pytest.raises(Stop):
        run("scaffold", tmp_path / "cut", progress=Impatient(), **settings)
    assert not (tmp_path / "cut" / "summary.json").exists()
    cut = run("scaffold", tmp_path / "cut", resume=True, **settings)
    assert tables(cut.folder) == tables(whole.folder)
    with pytest.raises(UsageError, match="other settings"):
        run("scaffold", tmp_path / "cut", resume=True, rounds=3)


def test_a_newcomer_that_is_left_out(tmp_path: Path) -> None:
    """The whole federation determines who is a newcomer; the other newcomer's warm-up is the same
    as without the option.
    """
    late = {"newcomers": 2, "join_epochs": 2}
    whole, less = (
        run("fedavg", tmp_path / "whole", **late),
        run("fedavg", tmp_path / "less", without="south", **late),
    )
    assert (less.job.info.names, less.job.info.newcomers) == (("north", "east"), ("west",))
    assert rows(less, "north", "east", "west") == rows(whole, "north", "east", "west")
    assert less.summary["newcomers"] == {"west": whole.summary["newcomers"]["west"]}


def test_a_party_before_newcomers_is_left_out(tmp_path: Path) -> None:
    late = {"newcomers": 2, "join_epochs": 2}
    whole, less = (
        run("solo", tmp_path / "whole", **late),
        run("solo", tmp_path / "less", without="north", **late),
    )
    assert (less.job.info.names, less.job.info.newcomers) == (("east",), ("south", "west"))
    assert less.summary["newcomers"] == whole.summary["newcomers"]


def test_a_peer_that_is_left_out_is_not_heard() -> None:
    own = {"north": {"peers": ["east", "south"]}, "west": {"peers": ["east"]}}
    job = prepare(experiment(party=own, without="east"), ragged())
    assert job.info.peers == ((1,), None, ())
    with pytest.raises(UsageError, match="eest"):
        prepare(experiment(party={"north": {"peers": ["eest"]}}, without="east"), ragged())


def experiment(**settings: Any) -> config.Experiment:
    return config.experiment(
        {"algorithm": "relay", "data": "arrays", "partition": "given"} | settings
    )


@pytest.mark.parametrize(
    ("without", "newcomers", "message"),
    [
        ("eats", 0, "There is no party called 'eats'. Did you mean 'east'?"),
        ("", 0, "There is no party called ''."),
        ("north,east,south,west", 0, "nobody is there from the start"),
        ("north,east", 2, "nobody is there from the start"),
    ],
)
def test_invalid_choices_are_refused(without: str, newcomers: int, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        prepare(experiment(without=without, newcomers=newcomers), ragged())
    assert message in str(refusal.value)


def test_the_order_of_names_does_not_matter() -> None:
    assert (
        experiment(without="b, a,b").without == ("a", "b") == experiment(without=["b", "a"]).without
    )
    assert experiment(without=[]).without is None
    assert "without" not in config.write(experiment())
    assert 'without = ["a", "b"]' in config.write(experiment(without="b,a"))
    with pytest.raises(UsageError, match="without"):
        experiment(without=[3])


def test_the_relays_draw_belongs_to_the_party() -> None:
    """Observations for the second of two are drawn as for the third of three, if the second of
    three was left out.
    """
    uploads = {
        u: Upload(
            torch.full((1, 4), u), torch.ones(1), torch.randn(5, 1, 4), torch.ones(1).bool(), {}
        )
        for u in (0, 1)
    }

    def bank(places: list[int]) -> Bank:
        return Bank(1, 4, uploads, dict.fromkeys(uploads, 1), 1, Key.root(0).bits, [], {}, places)

    def obs(places: list[int], u: int) -> torch.Tensor:
        return bank(places).teacher(u, [0, 1], 4, 1.0, False).obs

    assert torch.equal(obs([0, 2], 1), obs([], 2))
    assert not torch.equal(obs([], 1), obs([], 2))


def test_neighbours_are_drawn_by_the_partys_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_paths = set()
    key: Callable[..., Key] = Server.key

    def recording_key(server: Server, *path: int | str) -> Key:
        key_paths.add(path)
        return key(server, *path)

    monkeypatch.setattr(Server, "key", recording_key)
    run("relay-p2p", tmp_path, without="east", rounds=1)
    assert {path[1] for path in key_paths if path[0] == "neighbours"} == {0, 2, 3}
