"""The site policy: each rule allows and refuses, the refusal names the rule, and no file of a run
is executed before the check.
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

SUBMITTER = "lead@comity"


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[Mapping[str, str]], SitePolicy]:
    """A function that returns a new site's policy with some lines replaced."""

    def changed_policy(changes: Mapping[str, str]) -> SitePolicy:
        text = write(tmp_path, "north", "data").read_text()
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        (tmp_path / NAME).write_text(text)
        return SitePolicy.read(tmp_path)

    return changed_policy


def check(policy: SitePolicy, method: str, who: str = SUBMITTER, **settings: Any) -> None:
    experiment = config.experiment({"algorithm": method, **settings})
    policy.check_names(experiment, who)
    policy.check(experiment, algorithms.compose(experiment.algorithm, experiment.set), who)


def test_missing_rules_have_the_defaults_of_a_new_policy(tmp_path: Path) -> None:
    default_policy = SitePolicy.read(write(tmp_path, "north", "data").parent)
    (tmp_path / NAME).write_text('name = "north"\ndata = "data"\n')
    assert SitePolicy.read(tmp_path) == default_policy


@pytest.mark.parametrize("method", ["fedavg", "fed-sps", "adcol", "fedavg+dbe", "scaffold", "solo"])
def test_new_policy_allows(method: str, policy: Callable[[Mapping[str, str]], SitePolicy]) -> None:
    check(policy({}), method)


REFUSED_METHODS = {
    "centralized": "never takes part in centralized \\(never\\)",
    "fed-sps(mode=samples)": "never takes part in fed-sps\\(mode=samples\\) \\(never\\)",
    "fd": "how many samples there are of each class leave, as fd would \\(kinds: class counts\\)",
    "feduad": "\\(kinds: class counts\\)",
    "fedgen": "\\(kinds: class counts\\)",
    "ccvr": "\\(kinds: class counts\\)",
}


@pytest.mark.parametrize(("method", "words"), REFUSED_METHODS.items())
def test_new_policy_refuses(
    method: str, words: str, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    with pytest.raises(UsageError, match=f"^north .*{words}"):
        check(policy({}), method)


def test_mode_is_refused_when_set_by_an_option(
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    with pytest.raises(UsageError, match="never"):
        check(policy({}), "fed-sps", set={"mode": "samples"})


def test_base_model_must_not_be_a_file(
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    check(policy({}), "fedavg", model="vit(rank=2,base=7)")
    for settings in (
        {"model": "vit(rank=2,base=x)"},
        {"party": {"north": {"model": "vit(rank=2,base=x)"}}},
        {"weights": "w.safetensors"},
        {"model": "hf(path=x)"},
        {"model": "hf(x)"},
        {"model": "timm(resnet18,w.safetensors)"},
    ):
        with pytest.raises(UsageError, match="north reads no files that a run names"):
            check(policy({}), "fedavg", **settings)


def test_samples_must_also_be_an_allowed_kind(
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    empty = {'never = ["centralized", "fed-sps(mode=samples)"]': "never = []"}
    for method in ("centralized", "fed-sps(mode=samples)"):
        with pytest.raises(UsageError, match=r"\(kinds: samples\)"):
            check(policy(empty), method)
    allowed = policy(empty | {'"gradients"]': '"gradients", "samples"]'})
    check(allowed, "centralized")
    check(allowed, "fed-sps(mode=samples)")


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
def test_each_rule_refuses_and_is_named(
    changes: dict[str, str],
    method: str,
    settings: dict[str, Any],
    words: str,
    policy: Callable[[Mapping[str, str]], SitePolicy],
) -> None:
    with pytest.raises(UsageError) as why:
        check(policy(changes), method, **settings)
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
    check(policy(changes), method, **settings)


@pytest.mark.parametrize("where", ["algorithm", "wrapper", "model", "metric", "party"])
def test_files_in_settings_are_refused_before_they_run(
    where: str, tmp_path: Path, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    marker = tmp_path / "ran"
    file = tmp_path / "mine.py"
    file.write_text(f"open({str(marker)!r}, 'w')\n")
    settings_by_place: dict[str, dict[str, Any]] = {
        "algorithm": {"algorithm": str(file)},
        "wrapper": {"algorithm": f"fedavg+{file}(kappa=1)"},
        "party": {"algorithm": "fedavg", "party": {"north": {"model": str(file)}}},
    }
    settings = settings_by_place.get(where, {"algorithm": "fedavg", where: str(file)})
    with pytest.raises(UsageError, match=r"north runs no files that a run names, as .*mine\.py"):
        policy({}).check_names(config.experiment(settings), SUBMITTER)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ('"1 GB"', 10**9),
        ("10", 10),
        ('"10 kb"', 10_000),
        ('"1.5MB"', 1_500_000),
        ("0", 0),
        ('" 7 B "', 7),
    ],
)
def test_sizes_with_units(
    text: str, bytes_: int, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    site_policy = policy(
        {'bytes = "10 GB"': f"bytes = {text}", 'message = "1 GB"': f"message = {text}"}
    )
    assert (site_policy.bytes, site_policy.message) == (bytes_, bytes_)


INVALID_RULES = {
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
    ("old", "new", "words"),
    [(old, *rule) for old, rules in INVALID_RULES.items() for rule in rules],
)
def test_invalid_rules_are_refused(
    old: str, new: str, words: str, policy: Callable[[Mapping[str, str]], SitePolicy]
) -> None:
    with pytest.raises(UsageError, match=words):
        policy({old: new})


def test_missing_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"site\.toml cannot be read"):
        SitePolicy.read(tmp_path)


def test_minimum_number_of_records(policy: Callable[[Mapping[str, str]], SitePolicy]) -> None:
    """Too few training samples are refused; the refusal does not say how many there are."""
    rules = policy({})
    rules.check_records(10)
    with pytest.raises(
        UsageError, match=r"^north has fewer than 10 training samples \(records\)\.$"
    ):
        rules.check_records(9)
