"""The sentence on what a setting is: data, parties, how they differ, network, rounds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import comity
from comity.data.partitions import partition_catalogue
from comity.data.steps import STEPS
from comity.reporting import setting
from comity.reporting.gather import RunGroup, gather
from comity.runs.config import experiment


def sentence(parties: int | list[str] = 4, folds: int = 1, **settings: object) -> str:
    names = [f"p{i}" for i in range(parties)] if isinstance(parties, int) else parties
    group = SimpleNamespace(
        experiment=experiment(settings),
        runs=[SimpleNamespace(amounts={name: {} for name in names})],
        site="",
        between_sites=False,
        folds=folds,
    )
    return setting.describe_setting(cast(RunGroup, group))


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ("iid", "equal random parts"),
        ("dirichlet(alpha=0.1)", "unequal shares of the classes (Dirichlet, alpha=0.1)"),
        ("pathological(classes=3)", "3 classes each"),
        ("shard", "2 shards each, sorted by class"),
        ("natural(by=site)", "divided by site, as the data were collected"),
        ("domain(by=source,parts=2)", "divided by source, 2 parts each"),
        ("lognormal", "random parts of unequal size"),
        ("iid|keep(samples=25)", "equal random parts; each keeps 25 training samples"),
        ("iid|keep(fraction=0.2)", "equal random parts; each keeps 20% of its training samples"),
        ("iid|shift(kinds=none,blur)", "equal random parts; inputs differ (unchanged, blur)"),
        ("iid|concept(groups=3)", "equal random parts; 3 groups number classes differently"),
    ],
)
def test_partitions_in_words(partition: str, words: str) -> None:
    text = sentence(data="digits", partition=partition, rounds=1)
    assert text == (
        f"4 parties hold parts of the dataset digits: {words}. They train the network mlp2 for 1"
        " round."
    )


def test_every_partition_and_step_has_words() -> None:
    assert set(setting.PARTITIONS) == {row["name"] for row in partition_catalogue()}
    assert set(setting.STEPS) == set(STEPS)


def test_named_parties_folds_and_participation() -> None:
    text = sentence(["east", "west"], folds=5, rounds=20, participation=0.5, model="linear")
    assert text.startswith("2 parties (east, west) hold")
    assert text.endswith(
        "They train the network linear for 20 rounds, 50% of them in each, in 5-fold"
        " cross-validation."
    )


def test_a_file_is_named_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def partition(y, parties, rng): ...", encoding="utf-8")
    text = sentence(data="digits", partition=str(tmp_path / "mine.py"))
    assert "divided by mine.py" in text
    assert str(tmp_path) not in text


def test_the_page_has_the_sentence(tmp_path: Path) -> None:
    comity.run("fedavg", out=tmp_path / "run", parties=3, rounds=1, model="linear")
    page = comity.report(tmp_path / "run", quick=True).read_text(encoding="utf-8")
    (group,) = gather(tmp_path / "run")
    text = setting.describe_setting(group)
    assert text.startswith("3 parties hold parts of the dataset digits: unequal shares")
    assert f"<strong>The setting.</strong> {text}</p>" in page
