"""Natural parties of the data: which samples they own, their names, and `auto`."""

from __future__ import annotations

import csv
import json
import re
import sys
import tomllib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from test_splits import assert_same

import comity
from comity import cli
from comity.data import Dataset, Federation
from comity.data.groups import Groups
from comity.errors import UsageError

NAMES = ("ann", "bob", "cyd", "dan")
who = st.lists(st.integers(0, 3), min_size=12, max_size=90)
seeds = st.integers(0, 1000)


def dataset(of: Any, official: Any = None, names: tuple[str, ...] = NAMES, **more: Any) -> Dataset:
    """A dataset in which x is the position of the sample."""
    n = len(of)
    more.setdefault("groups", {"who": Groups(names, np.array(of, dtype=np.int64))})
    is_test = None if official is None else torch.as_tensor(official)
    x, y = torch.arange(float(n))[:, None], torch.arange(n) % 2
    return Dataset("mine", x, y, 2, official_test=is_test, mean=(0,), std=(1,), **more)


def owned(fed: Federation) -> dict[str, list[int]]:
    """All positions of each party, read from its samples."""
    return {
        name: sorted(int(v) for part in (p.train, p.validation, p.test) for v in part.x[:, 0])
        for name, p in fed.parties.items()
    }


def groups_of(of: Any, least: int = 1) -> dict[str, list[int]]:
    """The positions of each group that is large enough."""
    positions_by_group = {
        name: np.flatnonzero(np.array(of) == g).tolist() for g, name in enumerate(NAMES)
    }
    return {name: at for name, at in positions_by_group.items() if len(at) >= least}


# --- natural: one party for each group


@given(of=who, least=st.integers(2, 8), seed=seeds)
def test_natural_parties_are_the_groups_that_are_large_enough(
    of: list[int], least: int, seed: int
) -> None:
    expected = groups_of(of, least)
    assume(expected)
    fed = dataset(of).partition(f"natural(min={least})", seed=seed)
    assert owned(fed) == expected
    assert fed.names == list(expected)  # in the order of the names, not of the data


def test_natural_leaves_out_groups_of_fewer_than_four_by_default() -> None:
    of = [0] * 4 + [1] * 3 + [2] * 9 + [3] * 5
    assert dataset(of).partition("natural").names == ["ann", "cyd", "dan"]
    assert dataset(of).partition("natural(min=3)").names == list(NAMES)
    assert dataset(of).partition("natural(min=9)").names == ["cyd"]


def test_natural_parties_are_the_first_so_many_that_are_large_enough() -> None:
    of = [3] * 5 + [2] * 9 + [1] * 3 + [0] * 4
    assert owned(dataset(of).partition("natural", 2)) == {
        "ann": [17, 18, 19, 20],
        "cyd": [*range(5, 14)],
    }
    assert dataset(of).partition("natural", 3).names == ["ann", "cyd", "dan"]


def test_natural_cannot_make_more_parties_than_there_are_groups() -> None:
    of = [0] * 4 + [1] * 3 + [2] * 9 + [3] * 5
    with pytest.raises(
        UsageError,
        match=r"^Only 3 of the data's 4 who groups have 4 samples or more; use --parties 3\.$",
    ):
        dataset(of).partition("natural", 4)
    with pytest.raises(
        UsageError,
        match=r"^Only 0 of the data's 4 who groups have 10 samples or more; use a smaller min\.$",
    ):
        dataset(of).partition("natural(min=10)")


def test_natural_does_not_count_samples_of_the_common_test_set() -> None:
    """Ann has six samples, but four of them are official test samples."""
    of, is_test = [0] * 6 + [1] * 6, [False, False] + [True] * 4 + [False] * 5 + [True]
    data = dataset(of, is_test)
    assert data.partition("natural").names == ["ann", "bob"]  # own: the official part is pooled
    assert data.partition("natural", test="common").names == ["bob"]
    fed = data.partition("natural(min=2)", test="common")
    assert {name: sorted(int(v) for s in (p.train, p.validation) for v in s.x) for name, p in fed.parties.items()} == {
        "ann": [0, 1], "bob": [6, 7, 8, 9, 10],
    }  # fmt: skip


def test_the_seed_changes_the_parts_of_natural_parties_and_nothing_else() -> None:
    data = dataset(np.arange(80) % 4)
    first, second = (data.partition("natural", seed=s) for s in (0, 1))
    assert owned(first) == owned(second)
    assert first.split.parties["ann"].test != second.split.parties["ann"].test


def test_party_does_not_depend_on_the_other_parties() -> None:
    """Its test part, its noise and its kept samples depend on its name, not on its index."""
    data = dataset(np.arange(80) % 4)
    two, four = (data.partition("natural|keep(samples=9)", n, seed=3) for n in (2, 4))
    assert all(two.split.parties[n] == four.split.parties[n] for n in two.names)


# --- domain: a source split into parts


@given(of=who, parts=st.integers(1, 3), seed=seeds)
def test_domain_parts_are_disjoint_and_leave_nothing(of: list[int], parts: int, seed: int) -> None:
    expected = groups_of(of)
    assume(min(map(len, expected.values())) >= 2 * parts)
    fed = dataset(of).partition(f"domain(parts={parts})", seed=seed)
    positions_by_party = owned(fed)
    assert list(positions_by_party) == [
        name if parts == 1 else f"{name}-{k}" for name in expected for k in range(parts)
    ]
    for name, positions in expected.items():
        pieces = [at for party, at in positions_by_party.items() if party.split("-")[0] == name]
        assert sorted(chain(*pieces)) == positions
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@given(of=who, parts=st.integers(1, 3), take=st.integers(2, 5), seed=seeds)
def test_domain_takes_so_many_of_each_part(of: list[int], parts: int, take: int, seed: int) -> None:
    expected = groups_of(of)
    assume(min(map(len, expected.values())) >= parts * take)
    positions_by_party = owned(
        dataset(of).partition(f"domain(parts={parts},take={take})", seed=seed)
    )
    assert len(positions_by_party) == parts * len(expected)
    given_out = list(chain(*positions_by_party.values()))
    assert len(set(given_out)) == len(given_out)
    for party, positions in positions_by_party.items():
        assert len(positions) == take
        assert set(positions) <= set(expected[party.split("-")[0]])


def test_domain_takes_at_random() -> None:
    data = dataset([0] * 400)
    first, same, other = (
        owned(data.partition("domain(parts=2,take=100)", seed=s)) for s in (0, 0, 1)
    )
    assert first == same != other
    assert all(
        abs(np.mean(at) - 199.5) < 35 for at in first.values()
    )  # the first hundred would have a mean of 49.5


def test_domain_parties_are_the_first_so_many() -> None:
    data = dataset(np.arange(60) % 3)
    assert data.partition("domain(parts=2)", 3).names == ["ann-0", "ann-1", "bob-0"]
    whole, some = (
        data.partition("domain(parts=2)", seed=4),
        data.partition("domain(parts=2)", 3, seed=4),
    )
    assert owned(some) == {name: at for name, at in owned(whole).items() if name in some.names}
    with pytest.raises(
        UsageError,
        match=r"^The data's sources give 6 parties, not 7; use --parties 6 or more parts\.$",
    ):
        data.partition("domain(parts=2)", 7)


def test_domain_leaves_out_names_without_samples() -> None:
    assert dataset([2] * 8 + [0] * 8).partition("domain").names == ["ann", "cyd"]


# --- the choice of the grouping


def two_ways() -> Dataset:
    groups = {
        "who": Groups(NAMES, np.arange(48) % 4),
        "where": Groups(("south", "north"), np.arange(48) // 24),
    }
    return dataset([0] * 48, groups=groups)


def test_by_chooses_the_grouping_and_the_first_is_meant_without() -> None:
    data = two_ways()
    assert data.partition("natural").names == data.partition("natural(by=who)").names == list(NAMES)
    assert owned(data.partition("natural(by=where)")) == {
        "south": [*range(24)],
        "north": [*range(24, 48)],
    }
    assert data.partition("domain(by=where,parts=2)").names == [
        "south-0",
        "south-1",
        "north-0",
        "north-1",
    ]
    assert data.partition("natural(where)").names == ["south", "north"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("natural(by=were)", "There is no natural grouping 'were'. Did you mean 'where'?"),
        ("natural(by=3)", "There is no natural grouping '3'. Known: where, who."),
        ("natural(min=x)", "min of natural must be a whole number, not 'x'."),
        ("natural(min=1.5)", "min of natural must be a whole number, not '1.5'."),
        ("natural(max=3)", "There is no option of natural called 'max'."),
        ("natural(parties=3)", "There is no option of natural called 'parties'."),
        ("domain(parts=0)", "parts and take of domain must be at least 1."),
        ("domain(parts=-1)", "parts and take of domain must be at least 1."),
        ("domain(take=0)", "parts and take of domain must be at least 1."),
        ("domain(take=x)", "take of domain must be a whole number or none, not 'x'."),
        (
            "domain(parts=2,take=7)",
            "ann has 12 samples, too few for 2 parties of 7; use take=6 or less.",
        ),
        ("naturl", "There is no partition 'naturl'. Did you mean 'natural'?"),
    ],
)
def test_refusals(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        two_ways().partition(spec)


@pytest.mark.parametrize("spec", ["natural", "domain"])
def test_data_without_groups_have_no_natural_parties(digits: Dataset, spec: str) -> None:
    with pytest.raises(
        UsageError,
        match=r"^These data have no natural parties; use dirichlet, iid or another partition\.$",
    ):
        digits.partition(spec, 3)


# --- a party has samples of its own group only


@pytest.mark.parametrize("test", ["own(0.25)", "tail(0.25)", "official", "own(0.5)"])
@pytest.mark.parametrize(
    "spec", ["natural", "domain(parts=2)", "domain(parts=2,take=7)|keep(fraction=0.6)|concept"]
)
def test_nothing_of_another_group_in_any_part(spec: str, test: str) -> None:
    of = np.random.default_rng(0).permutation(np.arange(120) % 4)
    is_test = np.random.default_rng(1).random(120) < 0.3
    fed = dataset(of, is_test).partition(spec, test=test, validation=0.2)
    for name, share in fed.split.parties.items():
        for part in (share.train, share.validation, share.test):
            assert {NAMES[of[i]] for i in part} <= {name.split("-")[0]}


# --- auto


def test_auto_is_the_default_partition_of_the_data() -> None:
    for home, parties in (
        ("natural", None),
        ("domain(by=who,parts=2)|keep(samples=4)", 5),
        ("dirichlet(alpha=0.3,min=4)", 3),
    ):
        data = dataset(np.arange(80) % 4, default_partition=home)
        auto, explicit = (
            data.partition("auto", parties, seed=2),
            data.partition(home, parties, seed=2),
        )
        assert_same(auto, explicit)
        assert (
            auto.split.partition == home
        )  # resolved: a saved split does not depend on the meaning of auto


def test_steps_follow_auto_and_those_of_the_default_partition() -> None:
    data = dataset(np.arange(80) % 4, default_partition="natural|keep(samples=9)")
    fed = data.partition("auto|keep(samples=5)|concept")
    assert fed.split.partition == "natural|keep(samples=9)|keep(samples=5)|concept"
    assert_same(fed, data.partition("natural|keep(samples=9)|keep(samples=5)|concept"))
    assert [len(s.train + s.validation) for s in fed.split.parties.values()] == [5] * 4


def test_auto_without_a_default_partition_is_dirichlet(digits: Dataset) -> None:
    fed = digits.partition("auto")
    assert_same(fed, digits.partition("dirichlet(alpha=0.5)", 10))
    assert fed.split.partition == "dirichlet(alpha=0.5)"


# --- saved splits


@pytest.mark.parametrize(
    "test",
    ["own(0.25)", "tail(0.25,gap=2)", "official", "official(size=5)", "matched(size=3)", "common"],
)
@pytest.mark.parametrize(
    "spec",
    [
        "natural",
        "domain(parts=2,take=8)|shift(kinds=noise,texture,thin)|concept(groups=3)",
        "natural(min=5)|keep(fraction=0.5)|concept|shift(kinds=none,invert)",
    ],
)
def test_a_saved_split_of_groups_builds_the_same(tmp_path: Path, spec: str, test: str) -> None:
    rng = np.random.default_rng(0)
    x, of = (
        torch.from_numpy(rng.integers(0, 256, (160, 2, 5, 5), dtype=np.uint8)),
        rng.permutation(np.arange(160) % 4),
    )
    groups = {"who": Groups(NAMES, of)}
    data = Dataset(
        "mine",
        x,
        torch.from_numpy(rng.integers(0, 3, 160)),
        3,
        groups=groups,
        mean=(0.3, 0.4),
        std=(0.2, 0.9),
        official_test=torch.from_numpy(rng.random(160) < 0.4),
    )
    fed = data.partition(spec, seed=5, test=test, validation=0.2)
    (tmp_path / "split.json").write_text(fed.split.to_json())
    again = data.partition(str(tmp_path / "split.json"), seed=9)
    assert_same(fed, again)
    assert again.preprocess.black == fed.preprocess.black == pytest.approx((-1.5, -4 / 9))


def test_fingerprint_depends_on_the_groups() -> None:
    """Data with other groups must not take the same saved split."""
    of = np.arange(40) % 4
    plain, same = dataset(of), dataset(of)
    assert plain.fingerprint() == same.fingerprint()
    others = [
        dataset(of[::-1].copy()),
        dataset(of, names=("ann", "bob", "cyd", "eve")),
        dataset(of, groups={"where": Groups(NAMES, of)}),
        dataset(of, groups={}),
    ]
    assert len({plain.fingerprint(), *(other.fingerprint() for other in others)}) == 5
    with pytest.raises(UsageError, match="The split was made for other data"):
        others[0].split(plain.partition("natural").split)


# --- on the command line

FILE = """
import numpy as np
from comity.data import Dataset
from comity.data.groups import Groups

def load():
    n, draw = 120, np.random.default_rng(0)
    of = np.arange(n) % 3
    x = draw.random((n, 1, 6, 6)) * 0.5 + (np.arange(n) % 2)[:, None, None, None] * 0.4
    return Dataset("mine", x, np.arange(n) % 2, 2, groups={"site": Groups(("oslo", "rome", "bonn"), of)}, default_partition="natural(by=site)",
                   official_test=HELD, warnings=("mine: bonn is small.",))
"""
QUICK = ("--rounds", "2", "--model", "linear", "--engine", "loop")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `comity ...` in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["comity", *map(str, args)])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        output = capsys.readouterr()
        return int(code), output.out, output.err

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE.replace("HELD", "None"))
    return path


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "config.toml").read_text())


def parties(folder: Path) -> set[str]:
    with (folder / "metrics.csv").open() as rows:
        return {row["party"] for row in csv.DictReader(rows)} - {"server"}


def test_a_run_finds_the_parties_of_a_users_file(
    command: Command, file: Path, tmp_path: Path
) -> None:
    code, out, err = command("run", "fedavg", "--data", file, *QUICK, "--out", "auto")
    assert code == 0, err
    assert "mine: bonn is small." in out
    assert parties(tmp_path / "auto") == {"oslo", "rome", "bonn"}
    config = settings(tmp_path / "auto")
    assert (config["partition"], config["parties"]) == ("natural(by=site)", 3)  # resolved
    again, explicit = (
        ("run", tmp_path / "auto" / "config.toml"),
        ("run", "fedavg", "--data", file, *QUICK),
    )
    assert command(*again, "--out", "again")[0] == 0
    assert command(*explicit, "--partition", "natural", "--out", "told")[0] == 0
    for table in ("metrics.csv", "ledger.csv", "outcomes.csv"):
        first, second, third = (
            (tmp_path / folder / table).read_bytes() for folder in ("auto", "again", "told")
        )
        assert first == second == third


def test_a_run_with_fewer_parties(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("run", "fedavg", "--data", file, "--parties", 2, *QUICK, "--out", "two")[0] == 0
    assert parties(tmp_path / "two") == {"oslo", "rome"}
    assert settings(tmp_path / "two")["parties"] == 2


def test_resumed_run_has_the_same_parties(command: Command, file: Path, tmp_path: Path) -> None:
    assert command("run", "fedavg", "--data", file, *QUICK, "--out", "whole")[0] == 0
    before = (tmp_path / "whole" / "metrics.csv").read_bytes()
    (tmp_path / "whole" / "summary.json").unlink()
    for path in (tmp_path / "whole" / "checkpoints").iterdir():
        path.unlink()
    assert command("resume", "whole")[0] == 0
    assert (tmp_path / "whole" / "metrics.csv").read_bytes() == before


def test_comparison_on_natural_parties_is_resumed(
    command: Command, file: Path, tmp_path: Path
) -> None:
    arguments = ("compare", "fedavg", "--data", file, *QUICK, "--seeds", "0,1", "--out", "all")
    code, _, err = command(*arguments)
    assert code == 0, err
    folders = [
        tmp_path / "all" / method / f"seed-{s}" for method in ("solo", "fedavg") for s in (0, 1)
    ]
    assert all(parties(folder) == {"oslo", "rome", "bonn"} for folder in folders)
    assert all(settings(folder)["partition"] == "natural(by=site)" for folder in folders)
    for s in (0, 1):  # one split for all methods
        solo, fedavg = (
            json.loads((tmp_path / "all" / m / f"seed-{s}" / "split.json").read_text())
            for m in ("solo", "fedavg")
        )
        assert solo == fedavg
    marks = {folder: (folder / "summary.json").stat().st_mtime_ns for folder in folders}
    code, _, err = command(
        *arguments
    )  # the same command again: finished runs are taken as they are
    assert code == 0, err
    assert {folder: (folder / "summary.json").stat().st_mtime_ns for folder in folders} == marks


@pytest.mark.parametrize("option", [
    "partition=natural(by=sight)", "partition=natural(min=x)", "partition=natural(min=1000)", "partition=natural(",
    "partition=auto|", "partition=domain(parts=0)", "partition=domain(take=1000)", "partition=domain(parts=-1)",
    "partition=domain(pieces=2)", "partition=auto|keep", "partition=auto|keep(samples=0)",
    "partition=auto|keep(samples=1000)", "partition=auto|keep(fraction=0)", "partition=auto|keep(fraction=1.5)",
    "partition=auto|keep(fraction=nan)", "partition=auto|keep(samples=3,fraction=0.5)", "partition=keep(samples=x)",
    "partition=auto|concept(groups=1)", "partition=auto|concept(groups=x)", "partition=auto|concept|concept",
    "partition=auto|kep(samples=3)", "partition=iid|auto", "partition=iid|natural", "partition=shift(kinds=thik)",
    "partition=shard(by_class=x)", "partition=pathological(equal=2)",
    "partition=pathological(equal=maybe)", "parties=0", "parties=4", "parties=-1", "parties=x", "test=tail(0)",
    "test=tail(1)", "test=tail(0.25,gap=-1)", "test=tail(0.25,gap=x)", "test=tail(0.25,gap=1000)", "test=tail(nan)",
    "test=official", "test=official(size=0)", "test=official(size=x)", "test=offical", "augment=flop", "augment=",
    "augment=flip|", "augment=crop(pad=0)", "augment=crop(pad=x)", "augment=rotate(degrees=0)", "augment=rotate(degrees=181)",
    "augment=rotate(degrees=nan)", "augment=flip(3)", "augment=crop(4,4)", "augment=crop(size=3)", "patience=0",
    "patience=-1", "patience=x", "patience=1.5",
])  # fmt: skip
def test_wrong_values_end_in_one_sentence(
    command: Command, file: Path, tmp_path: Path, option: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for args in (("run", "fedavg"), ("compare", "fedavg")):
        code, _, err = command(*args, "--data", file, *QUICK, "--out", "out", f"--{option}")
        assert (code, len(err.splitlines())) == (2, 1), err
        assert re.match(r"comity: [A-Z'\w].{10,}[.?)]$", err.strip()), err
    assert [
        p for p in sorted(tmp_path.rglob("*")) if p not in before and "__pycache__" not in p.parts
    ] == []


@pytest.mark.parametrize("name", ["partition", "parties", "augment", "patience", "test"])
def test_wrong_types_in_python_and_toml(
    command: Command, file: Path, tmp_path: Path, name: str
) -> None:
    wrongs: list[Any] = [True, [3], {"a": 1}]
    for wrong in wrongs:
        with pytest.raises(UsageError, match=name):
            comity.run("fedavg", data=str(file), rounds=1, **{name: wrong})
    (tmp_path / "bad.toml").write_text(f'data = "{file}"\n{name} = {{ a = 1 }}\n')
    code, _, err = command("run", "bad.toml")
    assert (code, len(err.splitlines())) == (2, 1), err


def test_official_on_the_command_line(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "held.py"
    path.write_text(FILE.replace("HELD", "__import__('torch').arange(n) >= 90"))
    assert (
        command("run", "fedavg", "--data", path, *QUICK, "--test", "official", "--out", "out")[0]
        == 0
    )
    split = json.loads((tmp_path / "out" / "split.json").read_text())
    assert {name: p["test"] for name, p in split["parties"].items()} == {
        name: [*range(90 + k, 120, 3)] for k, name in enumerate(("oslo", "rome", "bonn"))
    }


# --- regressions


@pytest.mark.parametrize("name", ["server", "a/b", "a,b", "", "x" * 70])
def test_a_group_that_no_party_can_be_called_after_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError):
        dataset(np.arange(40) % 4, names=(name, "bob", "cyd", "dan")).partition("natural")


@pytest.mark.parametrize("spec", ["natural", "domain", "domain(parts=2)"])
def test_two_groups_of_one_name_are_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        dataset(np.arange(40) % 4, names=("ann", "ann", "cyd", "dan")).partition(spec)


@pytest.mark.parametrize("of", [
    np.arange(30) % 4, np.arange(50) % 4, np.arange(40) % 5, np.arange(40) % 4 - 1, np.arange(40) / 10, ["ann"] * 40,
])  # fmt: skip
def test_groups_that_do_not_fit_the_samples_are_refused(of: Any) -> None:
    with pytest.raises(UsageError):
        dataset([0] * 40, groups={"who": Groups(NAMES, of)}).partition("natural")


def test_error_for_a_small_source_gives_working_advice() -> None:
    with pytest.raises(UsageError) as caught:
        dataset([0] * 38 + [1] * 2).partition("domain(parts=3)")
    assert "take=0" not in str(caught.value)


def test_auto_takes_no_options() -> None:
    with pytest.raises(UsageError):
        dataset(np.arange(40) % 4, default_partition="natural").partition("auto(parties=3)")


def test_split_file_whose_name_begins_with_auto_is_a_file(
    file: Path, tmp_path: Path, command: Command
) -> None:
    Path("auto-split.json").write_text(
        comity.load(str(file)).partition("iid", 2, seed=5).split.to_json()
    )
    assert (
        command(
            "run",
            "fedavg",
            "--data",
            file,
            *QUICK,
            "--partition",
            "auto-split.json",
            "--out",
            "out",
        )[0]
        == 0
    )
    assert settings(tmp_path / "out")["partition"] == "auto-split.json"


def test_compare_prints_a_warning_of_the_data_once(command: Command, file: Path) -> None:
    _, out, _ = command("compare", "fedavg", "--data", file, *QUICK, "--out", "all")
    assert out.count("mine: bonn is small.") == 1


def test_the_split_of_a_run_whose_folder_has_its_methods_options(
    file: Path, tmp_path: Path, command: Command
) -> None:
    """`comity run` names folders like fedprox(mu=0.1)-mine-s0."""
    assert command("run", "fedprox(mu=0.1)", "--data", file, *QUICK)[0] == 0
    split = tmp_path / "runs" / "fedprox(mu=0.1)-mine-s0" / "split.json"
    code, _, err = command(
        "run", "fedavg", "--data", file, *QUICK, "--partition", split, "--out", "out"
    )
    assert code == 0, err
    assert json.loads((tmp_path / "out" / "split.json").read_text()) == json.loads(
        split.read_text()
    )


LISTED = Groups(NAMES, [0, 1, 2, 3] * 10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "groups", [LISTED, np.arange(40) % 4, NAMES], ids=["list", "array", "names"]
)
def test_groups_of_various_types_are_accepted_or_refused(groups: Any) -> None:
    try:
        fed = dataset([0] * 40, groups={"who": groups}).partition("natural")
    except UsageError:
        return
    assert fed.names == list(NAMES)


def test_a_part_of_a_source_with_a_long_name_can_be_resumed() -> None:
    data = dataset(np.arange(40) % 4, names=("x" * 64, "bob", "cyd", "dan"))
    try:
        split = data.partition("domain(parts=2)").split
    except UsageError:
        return
    data.split(split)
