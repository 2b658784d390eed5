"""Every cell of every table of a page is what the runs' files say, worked out here once more; a
table that is new fails the test.

The pages: a comparison of hospitals by AUC under three seeds, sensors that see digits differently,
a label that is a number, one run, and half of one.
"""

from __future__ import annotations

import csv
import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from written import Written, amounts, compared, loaded, rows

from comity import algorithms, run
from comity.reporting import report
from comity.units import duration, size

KINDS = ("heart", "sensors", "amounts", "one", "half")
WORDS = {"auc": "AUC", "r2": "R²", "mae": "mean absolute error", "macro_f1": "macro F1"}
DIRECTIONS = {
    "up": "to the server",
    "down": "from the server",
    "peer": "between parties",
    "setup": "before round 1",
}


@dataclass
class Made:
    """A page and the folders that it is made of, by method and seed."""

    page: Written
    folder: Path
    runs: dict[str, dict[int, Path]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.rglob("config.toml")):
            told = tomllib.loads(path.read_text(encoding="utf-8"))
            self.runs.setdefault(told["algorithm"], {})[told["seed"]] = path.parent

    def summaries(self, method: str) -> list[dict[str, Any]]:
        """Of the finished runs, seed by seed."""
        found = (one / "summary.json" for _, one in sorted(self.runs[method].items()))
        return [loaded(path) for path in found if path.exists()]

    @property
    def metric(self) -> str:
        """What the runs chose."""
        return str(self.summaries(next(iter(self.runs)))[0]["metric"])

    def ledger(self, method: str, seed: int) -> list[dict[str, str]]:
        """What crossed, without evaluation."""
        return [
            row for row in rows(self.runs[method][seed] / "ledger.csv") if row["kind"] != "eval"
        ]


def make(kind: str, folder: Path) -> Path:
    if kind == "heart":
        settings: dict[str, Any] = {
            "data": "heart",
            "partition": "auto",
            "parties": 4,
            "metric": "auc",
            "model": "linear",
        }
        compared(folder / kind, ["fedavg", "fedprox"], (0, 1, 2), **settings)
    elif kind == "sensors":
        kinds = "none,invert,rotate,noise,contrast,blur"
        compared(
            folder / kind,
            ["fedavg+dbe", "adcol"],
            partition=f"iid|shift(kinds={kinds})|keep(samples=60)",
            parties=6,
        )
    elif kind == "amounts":
        amounts(folder / kind)
    else:
        run(
            "fedavg",
            out=folder / kind,
            partition="iid|keep(samples=40)",
            parties=3,
            rounds=2,
            model="linear",
            engine="loop",
        )
    if kind == "half":
        (folder / kind / "summary.json").unlink()
    return folder / kind


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    root = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.reporting.page.library", lambda: "/* Vega */")
        patch.setattr("comity.reporting.sections.space.SAMPLES", 48)
        return {kind: Made(Written(report(make(kind, root))), root / kind) for kind in KINDS}


def percent(values: list[float], spread: bool = False) -> str:
    return f"{statistics.fmean(values):.1%}" + (
        f" ± {100 * statistics.pstdev(values):.1f}" if spread and len(values) > 1 else ""
    )


def worst(summary: dict[str, Any], metric: str) -> float:
    return float(summary[metric]["per_party"][summary[metric]["worst_party"]])


def ranking(made: Made, row: dict[str, str]) -> dict[str, str]:
    told = made.summaries(row["method"])
    if not told:
        return {"accuracy": "not finished"}
    metric = made.metric
    expected = {
        WORDS.get(metric, metric): percent([s[metric]["mean"] for s in told], spread=True),
        "worst": percent([worst(s, metric) for s in told]),
        "sent": size(statistics.fmean(s["bytes"]["total"] for s in told)),
        "time": duration(statistics.fmean(s["seconds"]["total"] for s in told)),
    }
    if metric == "auc":
        expected["accuracy"] = percent([s["accuracy"]["mean"] for s in told])
    if "gained" in row:
        (line,) = (
            one
            for one in loaded(made.folder / "comparison.json")["rows"]
            if one["algorithm"] == row["method"]
        )
        gain = line["gain"]
        half = 50 * (gain["high"] - gain["low"]) if gain else 0.0
        expected["over SOLO"] = f"{100 * gain['gain']:+.1f} (±{half:.1f})" if gain else ""
        if gain:
            means = [
                [s[metric]["mean"] for s in made.summaries(name)]
                for name in (row["method"], "solo")
            ]
            assert gain["gain"] == pytest.approx(
                statistics.fmean(means[0]) - statistics.fmean(means[1])
            )
        for what in ("gained", "hurt"):
            expected[what] = f"{line[what]}/{line['judged']}" if line["judged"] else ""
    return expected


def answers(made: Made, row: dict[str, str]) -> dict[str, str]:
    compared = loaded(made.folder / "comparison.json")
    (told,) = (one for one in compared["answers"] if one["party"] == row["party"])
    best = compared["overall"]["method"]
    expected = {"answer": told["says"], f"{best} gives": ""}
    if best in told["methods"]:
        gain, low, high = (100 * told["methods"][best][name] for name in ("gain", "low", "high"))
        expected[f"{best} gives"] = f"{gain:+.1f} points (between {low:.1f} and {high:.1f})"
    return expected


def ideas(made: Made, row: dict[str, str]) -> dict[str, str]:
    cards = [" ".join(algorithms.card(name).text.split()) for name in row["method"].split("+")]
    told = [card[card.index("Idea: ") + 6 :] for card in cards]
    assert row["idea"].startswith(told[0][:40])
    assert len(row["idea"]) > 40
    return {"idea": row["idea"]}


def measures(made: Made, row: dict[str, str]) -> dict[str, str]:
    found = {}
    first = made.summaries(row["method"])[0]
    words = (
        WORDS if "sensitivity" in first else WORDS | {"auc": "micro AUC"}
    )  # of more classes than two, one against the rest
    for name, block in first.items():
        if (
            isinstance(block, dict)
            and {"mean", "per_party"} <= block.keys()
            and name not in (made.metric, "accuracy")
        ):
            means = [s[name]["mean"] for s in made.summaries(row["method"])]
            mean = statistics.fmean(means)
            found[words.get(name, name.replace("_", " "))] = (
                f"{mean:.4g}" if name == "mae" else f"{mean:.1%}"
            )
    return {head: text for head, text in found.items() if head in row}


def fairness(made: Made, row: dict[str, str]) -> dict[str, str]:
    each = []
    for summary in made.summaries(row["method"]):
        values = list(summary[made.metric]["per_party"].values())
        tenth = sorted(values)[: max(1, round(len(values) / 10))] if made.metric != "mae" else []
        square = sum(values) ** 2 / (len(values) * sum(v * v for v in values))
        each.append(
            (max(values), min(values), statistics.fmean(tenth), statistics.pstdev(values), square)
        )
    best, least, tenth_mean, std, jain = (statistics.fmean(one) for one in zip(*each, strict=True))
    return {
        "best party": f"{best:.1%}",
        "worst party": f"{least:.1%}",
        "mean of worst tenth": f"{tenth_mean:.1%}",
        "std over parties": f"{100 * std:.1f}",
        "Jain's index": f"{jain:.3f}",
    }


def messages(made: Made, row: dict[str, str]) -> dict[str, str]:
    kind = next(k for k, words in DIRECTIONS.items() if words == row["direction"])
    seeds = made.runs[row["method"]]
    sums = [
        sum(
            int(r["bytes"])
            for r in made.ledger(row["method"], seed)
            if (r["call"], r["kind"]) == (row["call"], kind)
        )
        for seed in seeds
    ]
    head = "bytes, mean over seeds" if len(seeds) > 1 else "bytes"
    return {head: size(statistics.fmean(sums))}


def privacy(made: Made, row: dict[str, str]) -> dict[str, str]:
    """None of these runs has any noise: nothing is guaranteed, and what left is what privacy.csv
    names.
    """
    bare = []
    for one in made.runs[row["method"]].values():
        with (one / "privacy.csv").open(encoding="utf-8") as file:
            bare += [
                f"{line['release']} ({line['call']})"
                for line in csv.DictReader(file)
                if line["mechanism"] == "none"
            ]
    everybody = {
        "protected": "nothing",
        "from whom": "everybody else",
        "epsilon": "infinite",
        "delta": "",
    }
    return {**everybody, "left without noise": ", ".join(dict.fromkeys(bare))}


def closed_form(made: Made, row: dict[str, str]) -> dict[str, str]:
    sums: dict[str, int] = defaultdict(int)
    for line in made.ledger(row["method"], min(made.runs[row["method"]])):
        if line["kind"] != "setup":
            sums[DIRECTIONS[line["kind"]]] += int(line["bytes"])
    counted = sum(sums.values()) if row["direction"] == "in all" else sums[row["direction"]]
    return {
        "bytes expected": f"{counted:,d}",
        "bytes measured": f"{counted:,d}",
        "difference": "equal",
    }


def formulas(made: Made, row: dict[str, str]) -> dict[str, str]:
    return {
        "closed form": "; ".join(
            algorithms.find(name).traits.bytes_formula for name in row["method"].split("+")
        )
    }


def environments(made: Made, row: dict[str, str]) -> dict[str, str]:
    runs = made.runs[row["method"]]
    told = loaded(runs[min(runs)] / "env.json")
    named = {"Comity": "comity", "data's fingerprint": "fingerprint"}
    found = {
        head: str(told.get(named.get(head, head.lower()), ""))
        for head in row
        if head not in ("method", "seeds")
    }
    return found | {"seeds": ", ".join(map(str, sorted(runs)))}


def configuration(made: Made, row: dict[str, str]) -> dict[str, str]:
    told = {
        method: tomllib.loads((seeds[min(seeds)] / "config.toml").read_text(encoding="utf-8"))
        for method, seeds in made.runs.items()
    }
    values = {method: settings.get(row["setting"]) for method, settings in told.items()}
    if len({json.dumps(value) for value in values.values()}) > 1:
        return {
            "value": "; ".join(f"{method}: {values[method] or 'none'}" for method in methods(made))
        }
    value = next(iter(values.values()))
    if value is None:  # a default that config.toml does not write down
        return {"value": row["value"]}
    return {
        "value": (
            ", ".join(f"{k}={v}" for k, v in value.items())
            if isinstance(value, dict)
            else str(value)
        )
    }


def methods(made: Made) -> list[str]:
    return [row["method"] for row in made.page.records("environments")]


CHECKED: dict[str, Callable[[Made, dict[str, str]], dict[str, str]]] = {
    "ranking": ranking,
    "answers": answers,
    "ideas": ideas,
    "measures": measures,
    "fairness": fairness,
    "messages": messages,
    "privacy": privacy,
    "closed-form": closed_form,
    "formulas": formulas,
    "environments": environments,
    "configuration": configuration,
}
NAMED_BY = {"method", "party", "direction", "call", "setting"}
"""Columns that say what a row is about."""
ELSEWHERE = {"rounds to target", "bytes to target"}
"""Columns that test_report_figures works out."""
FROM_MODELS = {"separability"}
"""What a probe makes of representations: no file says it."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_cell(pages: dict[str, Made], kind: str) -> None:
    made = pages[kind]
    assert not made.page.broken, made.page.notes
    cells = 0
    for name, tables in made.page.named.items():
        if name in FROM_MODELS:
            continue
        for heads, *body in tables:
            for line in body:
                row = dict(zip(heads, line, strict=True))
                expected = CHECKED[name](made, row)
                assert expected.keys() == row.keys() - NAMED_BY - ELSEWHERE, (
                    f"{kind}, {name}: a column that nobody checks"
                )
                assert {head: row[head] for head in expected} == expected, f"{kind}, {name}"
                cells += len(expected)
    assert cells > 20


def test_what_a_probe_says_is_a_share(pages: dict[str, Made]) -> None:
    told = [
        row for made in pages.values() for row in made.page.named.get("separability", [[[]]])[0][1:]
    ]
    assert len(told) > 4
    for *_, right, chance in told:
        assert 0 <= float(right.rstrip("%")) <= 100
        assert 0 < float(chance.rstrip("%")) < 100


@pytest.mark.parametrize("kind", ["heart", "sensors", "amounts"])
def test_curves_and_gains(pages: dict[str, Made], kind: str) -> None:
    made = pages[kind]
    drawn = {
        (row["method"], row["round"]): row for row in made.page.rows("curves") if row["party"] == ""
    }
    for method, seeds in made.runs.items():
        for t in (0, 1, 2):
            each = []
            for folder in seeds.values():
                values = [float(r["value"]) for r in rows(folder / "metrics.csv")
                          if (r["round"], r["split"], r["metric"]) == (str(t), "test", made.metric)]  # fmt: skip
                each.append(statistics.fmean(values))
            row = drawn.pop((method, t))
            assert row[made.metric] == pytest.approx(statistics.fmean(each))
            assert row["spread"] == pytest.approx(statistics.pstdev(each))
        if method != "solo":
            gained = made.page.rows(f"gains-{method}")
            assert gained
            for row in gained:
                for name, column in ((method, made.metric), ("solo", "solo")):
                    figures = [
                        s[made.metric]["per_party"][row["party"]] for s in made.summaries(name)
                    ]
                    assert row[column] == pytest.approx(statistics.fmean(figures))
                assert row["gain"] == pytest.approx(row[made.metric] - row["solo"], abs=1e-9)
                assert row["low"] <= row["gain"] <= row["high"]
    assert not drawn
