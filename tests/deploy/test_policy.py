"""A site's own law: each of its lines allows and refuses, in a sentence that names it, and nothing
runs before it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from comity import algorithms
from comity.deploy.policy import NAME, SitePolicy, write
from comity.errors import UsageError
from comity.runs import config

WHO = "lead@comity"


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[Mapping[str, str]], SitePolicy]:
    """A new site's law in which some lines are others."""

    def made(changes: Mapping[str, str]) -> SitePolicy:
        text = write(tmp_path, "north", "data").read_text()
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        (tmp_path / NAME).write_text(text)
        return SitePolicy.read(tmp_path)

    return made


def judged(policy: SitePolicy, method: str, who: str = WHO, **settings: Any) -> None:
    chosen = config.experiment({"algorithm": method, **settings})
    policy.check_names(chosen, who)
    policy.check(chosen, algorithms.compose(chosen.algorithm, chosen.set), who)


def test_what_is_not_said_is_as_in_a_new_one(tmp_path: Path) -> None:
    written = SitePolicy.read(write(tmp_path, "north", "data").parent)
    (tmp_path / NAME).write_text('name = "north"\ndata = "data"\n')
    assert SitePolicy.read(tmp_path) == written


@pytest.mark.parametrize("method", ["fedavg", "fed-sps", "adcol", "fedavg+dbe", "scaffold", "solo"])
def test_a_new_law_allows(method: str, policy: Callable[[Mapping[str, str]], SitePolicy]) -> None:
    judged(policy({}), method)


NEVER = {
    "centralized": "never takes part in centralized \\(never\\)",
    "fed-sps(mode=samples)": "never takes part in fed-sps\\(mode=samples\\) \\(never\\)",
    "fd": "how many samples there are of each class leave, as fd would \\(kinds: class counts\\)",
    "feduad": "\\(kinds: class counts\\)",
    "fedgen": "\\(kinds: class counts\\)",
    "ccvr": "\\(kinds: class counts\\)",
}


@pytest.mark.parametrize(("method", "words"), NEVER.items())
def test_a_new_law_refuses(
    method: str, words: str, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    with pytest.raises(UsageError, match=f"^north .*{words}"):
        judged(policy({}), method)


def test_a_mode_is_refused_however_it_is_set(
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    with pytest.raises(UsageError, match="never"):
        judged(policy({}), "fed-sps", set={"mode": "samples"})


def test_a_base_is_no_file_that_somebody_else_names(
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    judged(policy({}), "fedavg", model="vit(rank=2,base=7)")
    for settings in (
        {"model": "vit(rank=2,base=x)"},
        {"party": {"north": {"model": "vit(rank=2,base=x)"}}},
    ):
        with pytest.raises(UsageError, match="north reads no files that a run names"):
            judged(policy({}), "fedavg", **settings)


def test_samples_need_more_than_an_empty_never(
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    empty = {'never = ["centralized", "fed-sps(mode=samples)"]': "never = []"}
    for method in ("centralized", "fed-sps(mode=samples)"):
        with pytest.raises(UsageError, match=r"\(kinds: samples\)"):
            judged(policy(empty), method)
    allowed = policy(empty | {'"gradients"]': '"gradients", "samples"]'})
    judged(allowed, "centralized")
    judged(allowed, "fed-sps(mode=samples)")


RULES: list[tuple[dict[str, str], str, dict[str, Any], str]] = [
    (
        {'methods = ["*"]': 'methods = ["fedavg*", "dbe"]'},
        "scaffold",
        {},
        "does not allow scaffold (methods)",
    ),
    ({'methods = ["*"]': 'methods = ["fedavg"]'}, "fedavg+dbe", {}, "does not allow dbe (methods)"),
    ({'methods = ["*"]': "methods = []"}, "fedavg", {}, "does not allow fedavg (methods)"),
    ({'"weights", "rep': '"rep'}, "adcol(aggregate=model)", {}, "(kinds: weights)"),
    ({'"weights", "rep': '"rep'}, "fedavg", {}, "(kinds: weights)"),
    ({'"representations", ': ""}, "adcol", {}, "(kinds: representations)"),
    ({'"means", ': ""}, "fedavg+dbe", {}, "(kinds: means)"),
    ({', "gradients"]': "]"}, "fed-sps", {}, "(kinds: gradients)"),
    (
        {'"gradients"]': '"gradients", "class counts"]'},
        "ccvr",
        {},
        "does not let covariances of the representations of a class leave, as ccvr would"
        " (kinds: covariances)",
    ),
    (
        {'submitters = ["*"]': 'submitters = ["chief@*"]'},
        "fedavg",
        {},
        "does not accept runs submitted by 'lead@comity' (submitters)",
    ),
    (
        {"rounds = 1000": "rounds = 3"},
        "fedavg",
        {"rounds": 4},
        "3 rounds at most, not in 4 (rounds)",
    ),
    (
        {'epsilon = "inf"': "epsilon = 8"},
        "fedavg",
        {},
        "privacy loss of 8, and that of fedavg has no bound (budget: epsilon)",
    ),
]


@pytest.mark.parametrize(
    ("changes", "method", "settings", "words"), RULES, ids=[rule[3][-24:] for rule in RULES]
)
def test_each_rule_refuses_and_names_itself(
    changes: dict[str, str],
    method: str,
    settings: dict[str, Any],
    words: str,
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    with pytest.raises(UsageError) as why:
        judged(policy(changes), method, **settings)
    assert words in str(why.value)


@pytest.mark.parametrize(
    ("changes", "method", "settings"),
    [
        ({'methods = ["*"]': 'methods = ["fedavg*", "dbe"]'}, "fedavg+dbe", {}),
        ({'"weights", "rep': '"rep'}, "adcol", {}),
        ({'submitters = ["*"]': 'submitters = ["lead@*"]'}, "fedavg", {}),
        ({"rounds = 1000": "rounds = 3"}, "fedavg", {"rounds": 3}),
        ({'"gradients"]': '"gradients", "class counts"]'}, "fd", {}),
        ({'"gradients"]': '"gradients", "class counts", "covariances"]'}, "ccvr", {}),
    ],
)
def test_each_rule_allows(
    changes: dict[str, str],
    method: str,
    settings: dict[str, Any],
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    judged(policy(changes), method, **settings)


@pytest.mark.parametrize("where", ["algorithm", "wrapper", "model", "metric", "party"])
def test_files_that_a_run_names_are_refused_before_they_run(
    where: str, tmp_path: Path, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    mark = tmp_path / "ran"
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(mark)!r}, 'w')\n")
    several: dict[str, dict[str, Any]] = {
        "algorithm": {"algorithm": str(file)},
        "wrapper": {"algorithm": f"fedavg+{file}(kappa=1)"},
        "party": {"algorithm": "fedavg", "party": {"north": {"model": str(file)}}},
    }
    named = several.get(where, {"algorithm": "fedavg", where: str(file)})
    with pytest.raises(UsageError, match=r"north runs no files that a run names, as .*mine\.py"):
        policy({}).check_names(config.experiment(named), WHO)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [
        ('"1 GB"', 10**9),
        ("10", 10),
        ('"10 kb"', 10_000),
        ('"1.5MB"', 1_500_000),
        ("0", 0),
        ('" 7 B "', 7),
    ],
)
def test_sizes(given: str, bytes_: int, policy: Callable[[Mapping[str, str]], SitePolicy]) -> None:
    made = policy({'bytes = "10 GB"': f"bytes = {given}", 'message = "1 GB"': f"message = {given}"})
    assert (made.bytes, made.message) == (bytes_, bytes_)


WRONG = {
    "rounds = 1000": [
        ("rounds = true", "rounds must be a whole number, not True"),
        ('rounds = "many"', "rounds must be a whole number"),
        ("rounds = -1", "rounds must be a whole number, not -1"),
        ("round = 3", "no rule .* called 'round'. Did you mean 'rounds'"),
    ],
    'bytes = "10 GB"': [
        ('bytes = "x"', "bytes must be a number of bytes, as in '1 GB', not 'x'"),
        ("bytes = -1", "bytes must be"),
        ("bytes = true", "bytes must be"),
        ("bytes = 1.5", "bytes must be"),
        ('bytes = "1 PB"', "bytes must be"),
        ('bytes = "-1 GB"', "bytes must be"),
    ],
    'methods = ["*"]': [
        ('methods = "*"', "methods must be a list of names"),
        ("methods = [3]", "methods must be a list"),
    ],
    "outcomes = false": [
        ('outcomes = "no"', "outcomes must be true or false"),
        ("outcomes = 0", "outcomes must be true or false"),
    ],
    'epsilon = "inf"': [
        ('epsilon = "much"', "epsilon must be a number"),
        ('epsilon = "nan"', "epsilon must be a number"),
        ("epsilon = nan", "epsilon must be a number"),
        ("epsilon = -inf", "epsilon must be a number"),
        ("epsilon = true", "epsilon must be a number"),
        ("delta = 1", "no rule .* called 'delta'"),
        ("rounds = 1", "no rule .* called 'rounds'"),
    ],
    'kinds = ["weights"': [
        ('kinds = ["weight"', "no kind of what leaves .* called 'weight'. Did you mean 'weights'")
    ],
    '"fed-sps(mode=samples)"]': [
        ('"fed-sps(mod=samples)"]', "no option of fed-sps, .* called 'mod'. Did you mean 'mode'"),
        ('"fedsps"]', "no algorithm 'fedsps'"),
    ],
    'name = "north"': [
        ("name = 3", "must say the site's name"),
        ("rounds = 3\nname = 'north'", "no rule .* called 'rounds'"),
    ],
    "[allow]": [
        ("[allow", "cannot be read"),
        ("[[allow]]", "allow must be a table"),
        ("[permit]", "no rule .* called 'permit'"),
    ],
}


@pytest.mark.parametrize(
    ("old", "new", "words"), [(old, *one) for old, several in WRONG.items() for one in several]
)
def test_what_is_no_rule_is_refused(
    old: str, new: str, words: str, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    with pytest.raises(UsageError, match=words):
        policy({old: new})


def test_a_site_without_a_law_takes_part_in_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"site\.toml cannot be read"):
        SitePolicy.read(tmp_path)


def test_records(policy: Callable[[Mapping[str, str]], SitePolicy]) -> None:
    """Too few samples to train on. How many there are is not told in the refusal."""
    rules = policy({})
    rules.check_records(10)
    with pytest.raises(
        UsageError, match=r"^north has fewer than 10 training samples \(records\)\.$"
    ):
        rules.check_records(9)
