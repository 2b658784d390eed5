"""Every cell of every table on a page equals the value computed here from the runs' files. A table
or column without such a computation fails the test.

The pages: a comparison of hospitals by AUC under three seeds, digits with shifted features,
regression data, one finished run, and one unfinished run.
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
from report_page import ReportPage, read_json, rows, run_comparison, run_regression_comparison

from comity import algorithms, run
from comity.reporting import report
from comity.units import deviation, duration, size

KINDS = ("heart", "sensors", "amounts", "one", "half")
WORDS = {
    "auc": "AUC",
    "r2": "R²",
    "mae": "mean absolute error",
    "macro_f1": "macro F1",
    "brier": "Brier score",
}
PLAIN_NUMBERS = ("mae", "brier", "calibration_slope", "calibration_intercept")
"""The metrics that are not shares."""
DIRECTIONS = {
    "up": "to the server",
    "down": "from the server",
    "peer": "between parties",
    "setup": "before round 1",
}


@dataclass
class ReportedRuns:
    """A page and the folders of its runs, by method and seed."""

    page: ReportPage
    folder: Path
    runs: dict[str, dict[int, Path]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.rglob("config.toml")):
            config = tomllib.loads(path.read_text(encoding="utf-8"))
            self.runs.setdefault(config["algorithm"], {})[config["seed"]] = path.parent

    def summaries(self, method: str) -> list[dict[str, Any]]:
        """Summaries of the finished runs, by seed."""
        paths = (run_folder / "summary.json" for _, run_folder in sorted(self.runs[method].items()))
        return [read_json(path) for path in paths if path.exists()]

    @property
    def metric(self) -> str:
        """The metric of the runs."""
        return str(self.summaries(next(iter(self.runs)))[0]["metric"])

    def ledger(self, method: str, seed: int) -> list[dict[str, str]]:
        """Rows of the ledger, without evaluation."""
        return [
            row for row in rows(self.runs[method][seed] / "ledger.csv") if row["kind"] != "eval"
        ]


def run_kind(kind: str, folder: Path) -> Path:
    if kind == "heart":
        settings: dict[str, Any] = {
            "data": "heart",
            "partition": "auto",
            "parties": 4,
            "metric": "auc",
            "model": "linear",
            "plain": "none",  # tests/studies/test_own_models.py looks at a page with plain models
        }
        run_comparison(folder / kind, ["fedavg", "fedprox"], (0, 1, 2), **settings)
    elif kind == "sensors":
        kinds = "none,invert,rotate,noise,contrast,blur"
        run_comparison(
            folder / kind,
            ["fedavg+dbe", "adcol"],
            partition=f"iid|shift(kinds={kinds})|keep(samples=60)",
            parties=6,
        )
    elif kind == "amounts":
        run_regression_comparison(folder / kind)
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
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ReportedRuns]:
    root = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.reporting.page.library", lambda: "/* Vega */")
        patch.setattr("comity.reporting.sections.space.SAMPLES", 48)
        return {
            kind: ReportedRuns(ReportPage(report(run_kind(kind, root))), root / kind)
            for kind in KINDS
        }


def percent(values: list[float], spread: bool = False) -> str:
    return f"{statistics.fmean(values):.1%}" + (
        f" ± {100 * deviation(values):.1f}" if spread and len(values) > 1 else ""
    )


def worst(summary: dict[str, Any], metric: str) -> float:
    return float(summary[metric]["per_party"][summary[metric]["worst_party"]])


def ranking(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    summaries = reported.summaries(row["method"])
    if not summaries:
        return {"accuracy": "not finished"}
    metric = reported.metric
    expected = {
        WORDS.get(metric, metric): percent([s[metric]["mean"] for s in summaries], spread=True),
        "worst": percent([worst(s, metric) for s in summaries]),
        "sent": size(statistics.fmean(s["bytes"]["total"] for s in summaries)),
        "time": duration(statistics.fmean(s["seconds"]["total"] for s in summaries)),
        "steps": f"{statistics.fmean(s['steps'] / s['parties'] for s in summaries):,.0f}",
    }
    if "server steps" in row:
        server = statistics.fmean(s["server_steps"] for s in summaries)
        expected["server steps"] = f"{server:,.0f}" if server else ""
    if metric == "auc":
        expected["accuracy"] = percent([s["accuracy"]["mean"] for s in summaries])
    if "gained" in row:
        (line,) = (
            entry
            for entry in read_json(reported.folder / "comparison.json")["rows"]
            if entry["algorithm"] == row["method"]
        )
        gain = line["gain"]
        half = 50 * (gain["high"] - gain["low"]) if gain else 0.0
        expected["over SOLO"] = f"{100 * gain['gain']:+.1f} (±{half:.1f})" if gain else ""
        if gain:
            means = [
                [s[metric]["mean"] for s in reported.summaries(name)]
                for name in (row["method"], "solo")
            ]
            assert gain["gain"] == pytest.approx(
                statistics.fmean(means[0]) - statistics.fmean(means[1])
            )
        for what in ("gained", "hurt"):
            expected[what] = f"{line[what]}/{line['judged']}" if line["judged"] else ""
    return expected


def answers(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    comparison = read_json(reported.folder / "comparison.json")
    (verdict,) = (entry for entry in comparison["answers"] if entry["party"] == row["party"])
    best = comparison["overall"]["method"]
    expected = {"answer": verdict["says"], f"{best} gives": ""}
    if best in verdict["methods"]:
        gain, low, high = (100 * verdict["methods"][best][name] for name in ("gain", "low", "high"))
        expected[f"{best} gives"] = f"{gain:+.1f} points (between {low:.1f} and {high:.1f})"
    if any(entry["power"] for entry in comparison["answers"]):
        power = verdict["power"]
        visible, settles = f"{100 * power['visible']:.1f} points" if power else "", ""
        if power and power["more_samples"]:
            settles = f"about {power['more_samples']:,} more test samples"
        if power and power["repeats"]:
            settles = " or ".join(filter(None, [f"{power['repeats']} seeds", settles]))
        expected |= {"hardly shows below": visible, "what would settle it": settles}
    return expected


def ideas(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    cards = [" ".join(algorithms.card(name).text.split()) for name in row["method"].split("+")]
    ideas_in_cards = [card[card.index("Idea: ") + 6 :] for card in cards]
    assert row["idea"].startswith(ideas_in_cards[0][:40])
    assert len(row["idea"]) > 40
    return {"idea": row["idea"]}


def measures(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    cells = {}
    first = reported.summaries(row["method"])[0]
    words = (
        WORDS if "sensitivity" in first else WORDS | {"auc": "micro AUC"}
    )  # of more classes than two, one against the rest
    for name, block in first.items():
        if (
            isinstance(block, dict)
            and {"mean", "per_party"} <= block.keys()
            and name not in (reported.metric, "accuracy")
        ):
            means = [s[name]["mean"] for s in reported.summaries(row["method"])]
            mean = statistics.fmean(means)
            cells[words.get(name, name.replace("_", " "))] = (
                f"{mean:.4g}" if name in PLAIN_NUMBERS else f"{mean:.1%}"
            )
    return {head: text for head, text in cells.items() if head in row}


def fairness(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    by_seed = []
    for summary in reported.summaries(row["method"]):
        values = list(summary[reported.metric]["per_party"].values())
        tenth = (
            sorted(values)[: max(1, round(len(values) / 10))] if reported.metric != "mae" else []
        )
        square = sum(values) ** 2 / (len(values) * sum(v * v for v in values))
        by_seed.append(
            (max(values), min(values), statistics.fmean(tenth), statistics.pstdev(values), square)
        )
    best, least, tenth_mean, std, jain = (
        statistics.fmean(values_by_seed) for values_by_seed in zip(*by_seed, strict=True)
    )
    return {
        "best party": f"{best:.1%}",
        "worst party": f"{least:.1%}",
        "mean of worst tenth": f"{tenth_mean:.1%}",
        "std over parties": f"{100 * std:.1f}",
        "Jain's index": f"{jain:.3f}",
    }


def messages(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    kind = next(k for k, words in DIRECTIONS.items() if words == row["direction"])
    seeds = reported.runs[row["method"]]
    sums = [
        sum(
            int(r["bytes"])
            for r in reported.ledger(row["method"], seed)
            if (r["call"], r["kind"]) == (row["call"], kind)
        )
        for seed in seeds
    ]
    head = "bytes, mean over seeds" if len(seeds) > 1 else "bytes"
    return {head: size(statistics.fmean(sums))}


def privacy(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    """None of these runs adds noise: nothing is guaranteed, and privacy.csv names the releases."""
    unprotected = []
    for run_folder in reported.runs[row["method"]].values():
        with (run_folder / "privacy.csv").open(encoding="utf-8") as file:
            unprotected += [
                f"{line['release']} ({line['call']})"
                for line in csv.DictReader(file)
                if line["mechanism"] == "none"
            ]
    guarantee = {
        "protected": "nothing",
        "from whom": "everybody else",
        "epsilon": "infinite",
        "delta": "",
    }
    return {**guarantee, "left without noise": ", ".join(dict.fromkeys(unprotected))}


def closed_form(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    sums: dict[str, int] = defaultdict(int)
    for line in reported.ledger(row["method"], min(reported.runs[row["method"]])):
        if line["kind"] != "setup":
            sums[DIRECTIONS[line["kind"]]] += int(line["bytes"])
    byte_count = sum(sums.values()) if row["direction"] == "in all" else sums[row["direction"]]
    return {
        "bytes expected": f"{byte_count:,d}",
        "bytes measured": f"{byte_count:,d}",
        "difference": "equal",
    }


def formulas(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    return {
        "closed form": "; ".join(
            algorithms.find(name).traits.bytes_formula for name in row["method"].split("+")
        )
    }


def environments(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    runs = reported.runs[row["method"]]
    environment = read_json(runs[min(runs)] / "env.json")
    keys = {"Comity": "comity", "data's fingerprint": "fingerprint"}
    cells = {
        head: str(environment.get(keys.get(head, head.lower()), ""))
        for head in row
        if head not in ("method", "seeds")
    }
    return cells | {"seeds": ", ".join(map(str, sorted(runs)))}


def configuration(reported: ReportedRuns, row: dict[str, str]) -> dict[str, str]:
    configs = {
        method: tomllib.loads((seeds[min(seeds)] / "config.toml").read_text(encoding="utf-8"))
        for method, seeds in reported.runs.items()
    }
    values = {method: settings.get(row["setting"]) for method, settings in configs.items()}
    if len({json.dumps(value) for value in values.values()}) > 1:
        return {
            "value": "; ".join(
                f"{method}: {values[method] or 'none'}" for method in methods(reported)
            )
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


def methods(reported: ReportedRuns) -> list[str]:
    return [row["method"] for row in reported.page.records("environments")]


EXPECTED_CELLS: dict[str, Callable[[ReportedRuns, dict[str, str]], dict[str, str]]] = {
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
KEY_COLUMNS = {"method", "party", "direction", "call", "setting"}
"""Columns that identify a row."""
OTHER_COLUMNS = {"rounds to target", "bytes to target"}
"""Columns that test_report_figures checks."""
FROM_MODELS = {"separability"}
"""Tables of probes on the models' representations, which are in no file."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_of_every_table(pages: dict[str, ReportedRuns], kind: str) -> None:
    reported = pages[kind]
    assert not reported.page.failed_sections, reported.page.notes
    cells = 0
    for name, tables in reported.page.tables_by_name.items():
        if name in FROM_MODELS:
            continue
        for heads, *body in tables:
            for line in body:
                row = dict(zip(heads, line, strict=True))
                expected = EXPECTED_CELLS[name](reported, row)
                assert expected.keys() == row.keys() - KEY_COLUMNS - OTHER_COLUMNS, (
                    f"{kind}, {name}: a column without a check"
                )
                assert {head: row[head] for head in expected} == expected, f"{kind}, {name}"
                cells += len(expected)
    assert cells > 20


def test_accuracies_of_probes_are_percentages(pages: dict[str, ReportedRuns]) -> None:
    probe_rows = [
        row
        for reported in pages.values()
        for row in reported.page.tables_by_name.get("separability", [[[]]])[0][1:]
    ]
    assert len(probe_rows) > 4
    for *_, right, chance in probe_rows:
        assert 0 <= float(right.rstrip("%")) <= 100
        assert 0 < float(chance.rstrip("%")) < 100


@pytest.mark.parametrize("kind", ["heart", "sensors", "amounts"])
def test_curves_and_gains(pages: dict[str, ReportedRuns], kind: str) -> None:
    reported = pages[kind]
    curve_rows = {
        (row["method"], row["round"]): row
        for row in reported.page.rows("curves")
        if row["party"] == ""
    }
    for method, seeds in reported.runs.items():
        for t in (0, 1, 2):
            means = []
            for folder in seeds.values():
                values = [float(r["value"]) for r in rows(folder / "metrics.csv")
                          if (r["round"], r["split"], r["metric"]) == (str(t), "test", reported.metric)]  # fmt: skip
                means.append(statistics.fmean(values))
            row = curve_rows.pop((method, t))
            assert row[reported.metric] == pytest.approx(statistics.fmean(means))
            assert row["spread"] == pytest.approx(deviation(means))
        if method != "solo":
            gain_rows = reported.page.rows(f"gains-{method}")
            assert gain_rows
            for row in gain_rows:
                for name, column in ((method, reported.metric), ("solo", "solo")):
                    figures = [
                        s[reported.metric]["per_party"][row["party"]]
                        for s in reported.summaries(name)
                    ]
                    assert row[column] == pytest.approx(statistics.fmean(figures))
                assert row["gain"] == pytest.approx(row[reported.metric] - row["solo"], abs=1e-9)
                assert row["low"] <= row["gain"] <= row["high"]
    assert not curve_rows
