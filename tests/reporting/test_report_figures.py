"""Every figure on the page equals the value computed directly from the run's files."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_page import ReportPage, read_json, rows, run_comparison

from comity import algorithms
from comity.measure import gains
from comity.measure.fairness import fairness
from comity.measure.targets import reach_target
from comity.reporting import report
from comity.runs.folder import RunFolder
from comity.runs.run import reopen
from comity.studies.method_summary import MethodSummary
from comity.units import deviation, size
from comity.wire.ledger import Charge

METHODS = ("solo", "fedavg", "fed-sps", "adcol")
SEEDS = (0, 1)
ROUNDS = range(4)
PARTIES = ("p0", "p1", "p2")


class Comparison:
    """A comparison of four methods under two seeds, its rows and its page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings: dict[str, Any] = {
            "partition": "dirichlet(alpha=0.5)|keep(samples=90)",
            "rounds": 3,
            "lr": 0.1,
        }
        self.table: list[MethodSummary] = run_comparison(folder, METHODS[1:], SEEDS, **settings)
        self.page = ReportPage(report(folder, methods=[]))

    def run(self, method: str, seed: int) -> Path:
        return self.folder / method / f"seed-{seed}"

    def accuracies(self, method: str, seed: int) -> dict[int, dict[str, float]]:
        """Test accuracy by round and party."""
        by_round: dict[int, dict[str, float]] = defaultdict(dict)
        for row in rows(self.run(method, seed) / "metrics.csv"):
            if (row["split"], row["metric"]) == ("test", "accuracy"):
                by_round[int(row["round"])][row["party"]] = float(row["value"])
        return by_round

    def bytes(self, method: str, seed: int, counts: Callable[[dict[str, str]], bool]) -> int:
        """Sum of the bytes in the ledger's rows that `counts` selects, without evaluation."""
        ledger = rows(self.run(method, seed) / "ledger.csv")
        return sum(int(row["bytes"]) for row in ledger if row["kind"] != "eval" and counts(row))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return Comparison(tmp_path_factory.mktemp("figures"))


def test_page_has_all_charts(comparison: Comparison) -> None:
    assert not comparison.page.failed_sections
    expected_notes = (
        "Negative transfer",
        "is meant for parties whose inputs differ",
        "steps (gradient evaluations)",
        "Final models never predict a class",
    )
    others = [
        note for note in comparison.page.notes if not any(text in note for text in expected_notes)
    ]
    assert not others
    names = {str(chart["name"]) for chart in comparison.page.charts.values()}
    expected = {"accuracy-by-round", "accuracy-by-bytes", "classes", "sizes", "distances", "overlap-fed-sps", "discriminator",
                "bytes", "bytes-by-round", "bytes-by-party", *(f"gains-{m}" for m in METHODS[1:])}  # fmt: skip
    assert names == expected


@pytest.mark.parametrize("method", METHODS)
def test_curves(comparison: Comparison, method: str) -> None:
    curve_rows = {
        row["round"]: row
        for row in comparison.page.rows("curves")
        if row["method"] == method and row["party"] == ""
    }
    assert list(curve_rows) == list(ROUNDS)
    for t, row in curve_rows.items():
        means = [
            statistics.fmean(comparison.accuracies(method, seed)[t].values()) for seed in SEEDS
        ]
        assert row["accuracy"] == pytest.approx(statistics.fmean(means))
        assert row["high"] - row["low"] == pytest.approx(2 * deviation(means))
        assert row["high"] + row["low"] == pytest.approx(2 * statistics.fmean(means))
        byte_counts = [
            comparison.bytes(method, seed, lambda r, t=t: int(r["round"]) <= t)  # type: ignore[misc]
            for seed in SEEDS
        ]
        assert row["bytes"] == pytest.approx(statistics.fmean(byte_counts))
        assert row["seeds"] == len(SEEDS)
        assert row["spread"] == pytest.approx(deviation(means))


@pytest.mark.parametrize("method", METHODS)
def test_curves_of_parties(comparison: Comparison, method: str) -> None:
    """A party has different samples under each seed, so its line is that of the first seed."""
    drawn_accuracies = {
        (r["party"], r["round"]): r["accuracy"]
        for r in comparison.page.rows("curves")
        if r["method"] == method and r["party"]
    }
    assert drawn_accuracies == {
        (p, t): value
        for t, line in comparison.accuracies(method, 0).items()
        for p, value in line.items()
    }


def test_ranking(comparison: Comparison) -> None:
    table_rows = {row["method"]: row for row in comparison.page.table("gained")}
    assert list(table_rows) == sorted(
        METHODS, key=lambda m: -statistics.fmean(row_of(comparison, m).accuracy)
    )
    for method in METHODS:
        row, summaries = (
            table_rows[method],
            [read_json(comparison.run(method, seed) / "summary.json") for seed in SEEDS],
        )
        means = [s["accuracy"]["mean"] for s in summaries]
        assert row["accuracy"] == f"{statistics.fmean(means):.1%} ± {100 * deviation(means):.1f}"
        worst = [s["accuracy"]["per_party"][s["accuracy"]["worst_party"]] for s in summaries]
        assert row["worst"] == f"{statistics.fmean(worst):.1%}"
        assert row["sent"] == size(statistics.fmean(s["bytes"]["total"] for s in summaries))
        summary = row_of(comparison, method)  # what `comity compare` says
        denominator = f"/{summary.judged}" if summary.judged else ""
        assert row["gained"] == (f"{summary.gained}{denominator}" if denominator else "")
        assert row["hurt"] == (f"{summary.hurt}{denominator}" if denominator else "")
        assert row["over SOLO"] == (summary.gain.short if summary.gain else "")
    assert all(row_of(comparison, m).judged == len(PARTIES) * len(SEEDS) for m in METHODS[1:])


def row_of(comparison: Comparison, method: str) -> MethodSummary:
    return next(row for row in comparison.table if row.algorithm == method)


def test_rounds_and_bytes_to_target(comparison: Comparison) -> None:
    last = [statistics.fmean(comparison.accuracies("solo", seed)[3].values()) for seed in SEEDS]
    target = statistics.fmean(last)
    assert f"Target: {target:.1%}, what SOLO reaches" in comparison.page.words
    check_targets(comparison, comparison.page, target)


def test_custom_target(comparison: Comparison) -> None:
    page = ReportPage(
        report(comparison.folder, target=0.3, quick=True, out=comparison.folder / "other.html")
    )
    assert "Target: 30.0%, as asked" in page.words
    check_targets(comparison, page, 0.3)


def check_targets(comparison: Comparison, page: ReportPage, target: float) -> None:
    table_rows = {row["method"]: row for row in page.table("rounds to target")}
    methods_reaching = 0
    for method in METHODS:
        reached = []
        for seed in SEEDS:
            line = {
                t: statistics.fmean(accuracies.values())
                for t, accuracies in comparison.accuracies(method, seed).items()
            }
            ledger: list[Charge] = RunFolder(comparison.run(method, seed)).read_ledger()
            reached += [point] if (point := reach_target(line, ledger, target - 1e-9)) else []
        methods_reaching += bool(reached)
        if 0 < len(reached) < len(SEEDS):  # a mean of the lucky ones would flatter
            assert (
                table_rows[method]["rounds to target"],
                table_rows[method]["bytes to target"],
            ) == (
                "1 of 2 runs",
                "",
            )
        elif reached:
            assert table_rows[method]["rounds to target"] == str(
                round(statistics.fmean(g.round for g in reached))
            )
            assert table_rows[method]["bytes to target"] == size(
                statistics.fmean(g.bytes for g in reached)
            )
        else:
            assert (
                table_rows[method]["rounds to target"],
                table_rows[method]["bytes to target"],
            ) == (
                "never",
                "never",
            )
    assert methods_reaching > 0, "no method reaches the target: the test checks nothing"


@pytest.mark.parametrize("method", METHODS[1:])
def test_gains(comparison: Comparison, method: str) -> None:
    """A party has different samples under each seed, so each seed has its own row. The gains are
    those of the table.
    """
    drawn_gains = {row["party"]: row for row in comparison.page.rows(f"gains-{method}")}
    assert set(drawn_gains) == {f"{party} (seed {seed})" for party in PARTIES for seed in SEEDS}
    for seed in SEEDS:
        ours, alone = (
            read_json(comparison.run(m, seed) / "summary.json")["accuracy"]["per_party"]
            for m in (method, "solo")
        )
        for g in gains(comparison.run(method, seed), comparison.run("solo", seed)):
            row = drawn_gains[f"{g.party} (seed {seed})"]
            half = (
                statistics.NormalDist().inv_cdf(1 - 0.025 / 3) * g.error
            )  # the best of three methods is picked
            low, high = max(-1, g.middle - half), min(1, g.middle + half)
            assert (row["gain"], row["low"], row["high"]) == pytest.approx((g.gain, low, high))
            assert (row["solo"], row["accuracy"]) == pytest.approx((alone[g.party], ours[g.party]))
            ends = [min(1, max(0, alone[g.party] + end)) for end in (low, high)]
            assert (row["from"], row["to"]) == pytest.approx(tuple(ends))
            assert row["verdict"] == ("gains" if low > 0 else "hurt" if high < 0 else "level")
    summary = row_of(comparison, method)
    counts = {
        verdict: sum(row["verdict"] == verdict for row in drawn_gains.values())
        for verdict in ("gains", "hurt")
    }
    assert (counts["gains"], counts["hurt"]) == (summary.gained, summary.hurt)
    order = [row["gain"] for row in comparison.page.rows(f"gains-{method}")]
    assert order == sorted(order, reverse=True)


def test_fairness(comparison: Comparison) -> None:
    table_rows = {row["method"]: row for row in comparison.page.table("Jain's index")}
    for method in METHODS:
        fairness_by_seed = [
            fairness(
                read_json(comparison.run(method, s) / "summary.json")["accuracy"][
                    "per_party"
                ].values()
            )
            for s in SEEDS
        ]
        assert (
            table_rows[method]["std over parties"]
            == f"{100 * statistics.fmean(f.std for f in fairness_by_seed):.1f}"
        )
        assert (
            table_rows[method]["Jain's index"]
            == f"{statistics.fmean(f.jain for f in fairness_by_seed):.3f}"
        )
        assert (
            table_rows[method]["best party"]
            == f"{statistics.fmean(f.best for f in fairness_by_seed):.1%}"
        )


DIRECTIONS = {
    "up": "to the server",
    "down": "from the server",
    "peer": "between parties",
    "setup": "before round 1",
}


def test_bytes_by_direction(comparison: Comparison) -> None:
    drawn_bytes = {(r["method"], r["direction"]): r["bytes"] for r in comparison.page.rows("bytes")}
    for method in METHODS[1:]:
        for kind, words in DIRECTIONS.items():
            expected = statistics.fmean(
                read_json(comparison.run(method, seed) / "summary.json")["bytes"][kind]
                for seed in SEEDS
            )
            assert drawn_bytes.pop((method, words), 0) == pytest.approx(expected)
    assert not drawn_bytes


def test_bytes_by_round(comparison: Comparison) -> None:
    drawn_bytes = {
        (r["method"], r["round"], r["direction"]): r["bytes"]
        for r in comparison.page.rows("bytes-by-round")
    }
    for method in METHODS[1:]:
        for t in ROUNDS[1:]:
            for kind, words in DIRECTIONS.items():
                byte_counts = [
                    comparison.bytes(
                        method,
                        s,
                        lambda r, t=t, k=kind: (r["round"], r["kind"]) == (str(t), k),  # type: ignore[misc]
                    )
                    for s in SEEDS
                ]
                assert drawn_bytes.pop((method, t, words), 0) == pytest.approx(
                    statistics.fmean(byte_counts)
                )
    assert not drawn_bytes


def test_bytes_by_party(comparison: Comparison) -> None:
    drawn_bytes = {
        (r["method"], r["party"]): r["bytes"] for r in comparison.page.rows("bytes-by-party")
    }
    for method in METHODS[1:]:
        for party in PARTIES:
            byte_counts = [
                comparison.bytes(method, seed, lambda r, p=party: p in (r["src"], r["dst"]))  # type: ignore[misc]
                for seed in SEEDS
            ]
            assert drawn_bytes.pop((method, party)) == pytest.approx(statistics.fmean(byte_counts))
    assert not drawn_bytes


def test_the_closed_form_equals_the_ledger(comparison: Comparison) -> None:
    table_rows = comparison.page.records("closed-form")
    assert {row["method"] for row in table_rows} == set(METHODS[1:])
    for row in table_rows:
        ledger_bytes = read_json(comparison.run(row["method"], 0) / "summary.json")["bytes"]
        kinds = [k for k, words in DIRECTIONS.items() if words == row["direction"]]
        expected = sum(ledger_bytes[k] for k in kinds or ("up", "down", "peer"))
        assert (row["bytes expected"], row["bytes measured"], row["difference"]) == (
            f"{expected:,d}",
            f"{expected:,d}",
            "equal",
        )
    assert sum(row["direction"] == "in all" for row in table_rows) == len(METHODS) - 1
    formulas = {row["method"]: row["closed form"] for row in comparison.page.records("formulas")}
    assert formulas["fedavg"] == algorithms.find("fedavg").traits.bytes_formula, (
        "once, and not beside half of what it gives"
    )
    assert "all directions together" in comparison.page.words


def test_overlap(comparison: Comparison) -> None:
    last = {(r["party"], r["metric"].removeprefix("overlap/")): float(r["value"])
            for r in rows(comparison.run("fed-sps", 0) / "metrics.csv") if r["metric"].startswith("overlap/")}  # fmt: skip
    assert len(last) >= len(PARTIES)
    assert {
        (r["party"], r["peer"]): r["overlap"] for r in comparison.page.rows("overlap-fed-sps")
    } == last


def test_discriminator(comparison: Comparison) -> None:
    curve_rows = {row["round"]: row for row in comparison.page.rows("discriminator")}
    assert list(curve_rows) == list(ROUNDS[1:])
    for t, row in curve_rows.items():
        accuracies = [float(r["value"]) for seed in SEEDS for r in rows(comparison.run("adcol", seed) / "metrics.csv")
                if (int(r["round"]), r["metric"]) == (t, "discriminator/accuracy")]  # fmt: skip
        assert len(accuracies) == len(SEEDS)
        assert row["accuracy"] == pytest.approx(statistics.fmean(accuracies))
        assert row["spread over seeds"] == pytest.approx(deviation(accuracies))
        sizes = [
            len(read_json(comparison.run("adcol", 0) / "split.json")["parties"][p]["train"])
            for p in PARTIES
        ]
        assert row["chance"] == pytest.approx(max(sizes) / sum(sizes)), (
            "as the probe's: to name the largest party always"
        )
    assert "towards chance" not in comparison.page.words, (
        "a title that only the curve could bear out"
    )


def test_sizes_and_classes(comparison: Comparison) -> None:
    """The data of the first run: SOLO's, seed 0."""
    split = read_json(comparison.run("solo", 0) / "split.json")["parties"]
    drawn_sizes = {(r["party"], r["part"]): r["samples"] for r in comparison.page.rows("sizes")}
    assert drawn_sizes == {
        (p, part): len(split[p][part]) for p in PARTIES for part in ("train", "validation", "test")
    }
    federation = reopen(comparison.run("solo", 0)).federation
    class_counts = {(r["party"], r["class"]): r["samples"] for r in comparison.page.rows("classes")}
    for party in PARTIES:
        labels = federation.parties[party].train.y.tolist()
        assert len(labels) == len(split[party]["train"])
        for c in range(federation.classes):
            assert class_counts.pop((party, str(c)), 0) == labels.count(c)
    assert not class_counts


def test_figures_in_the_first_sentence(comparison: Comparison) -> None:
    """The first sentence names the best method, its accuracy and its lead over the second."""
    first, second, *_ = sorted(comparison.table, key=lambda row: -statistics.fmean(row.accuracy))
    best = statistics.fmean(first.accuracy)
    assert f"{first.algorithm} is " in comparison.page.words
    assert f"with {best:.1%} (± {100 * first.spread:.1f} over 2 seeds)" in comparison.page.words
    assert f"{100 * (best - statistics.fmean(second.accuracy)):.1f} points" in comparison.page.words
