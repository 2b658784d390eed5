"""The overall verdict of a comparison: each sentence for given figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness import OWN, succeed
from method_rows import row

from comity.measure.gain import Gain
from comity.metrics.metrics import METRICS
from comity.reporting import report
from comity.studies.estimate import CUT, Estimate, Variances, Verdict
from comity.studies.method_summary import method_summary
from comity.studies.overall_verdict import QUESTIONS, overall_verdict
from comity.studies.party_verdicts import PartyVerdict, SampleCounts, party_verdicts
from comity.studies.power import Power


def answer(party: str, verdict: Verdict) -> PartyVerdict:
    return PartyVerdict(party, verdict, "", None, {})


HALFWAY = """\
async def train_locally(self, theta, m, party, key):
        trained = (await party.fit(plain, theta, key)).theta
        return {name: (w + trained[name]) / 2 for name, w in theta.items()}
"""
CLEAR, WORSE, OPEN = (
    Estimate(0.05, 0.02, 0.08),
    Estimate(-0.05, -0.08, -0.02),
    Estimate(0.01, -0.03, 0.05),
)


@pytest.mark.parametrize(
    ("gain", "begins"),
    [
        (CLEAR, "Yes, on average: "),
        (WORSE, "No, on average it costs: "),
        (OPEN, "Not clearly, on average: "),
    ],
)
def test_first_answer_says_whether_collaboration_helps(gain: Estimate, begins: str) -> None:
    verdict = overall_verdict([row("fedavg", gain)], [], 1)
    assert verdict is not None
    points = f"{100 * gain.gain:+.1f} points of accuracy over training alone"
    assert (
        verdict.helps
        == f"{begins}fedavg gives {points} (between {100 * gain.low:.1f} and {100 * gain.high:.1f};"
        " one seed)."
    )
    assert ("cannot be told from none here" in verdict.sure) == (gain is OPEN)
    assert list(verdict.questions) == list(QUESTIONS[:1] + QUESTIONS[2:4]), (
        "no party has its own verdict"
    )


def test_other_answers_of_the_verdict() -> None:
    rows = [
        row("relay", Estimate(0.03, 0.0, 0.06), total_bytes=2e5),
        row("fedavg", CLEAR, 4e6, Estimate(0.04, 0.01, 0.07), north=CLEAR, south=OPEN, east=WORSE),
        row("adcol", WORSE, 1e3, None, north=WORSE, south=WORSE),
    ]
    answers = [
        answer("north", "gains"),
        answer("south", "level"),
        answer("east", "level"),
        answer("west", "too few"),
    ]
    verdict = overall_verdict(rows, answers, 3)
    assert verdict is not None
    assert verdict.method == "fedavg"
    assert (
        verdict.helps
        == "Yes, on average: fedavg, the best of 3 methods, gives +5.0 points of accuracy over"
        " training alone (between 2.0 and 8.0). Without west, which has too few samples to judge"
        " by: +4.0 points (between 1.0 and 7.0)."
    )
    assert (
        verdict.whom
        == "Of the 3 parties that can be judged 1 (north) gains clearly by fedavg, 1 (east) is"
        " clearly hurt. Other methods clearly hurt some: adcol (2). If each could choose its own"
        " method: 1 gains clearly by some method, 2 see no clear difference, 1 has too few"
        " samples to say."
    )
    assert (
        verdict.cost
        == "4 MB are sent in a run of fedavg; a party sends and receives 1.5 MB. A run took 1.0 s"
        " here. relay takes 20 times less and gives 2.0 points less."
    ), "adcol is cheaper still, but gives ten points less"
    assert (
        verdict.sure
        == "The intervals are at 95% confidence, Bonferroni-corrected for choosing the best of 3"
        " methods, over the parties' test samples and 3 seeds."
    )


def test_parties_of_several_seeds_are_counted_per_seed() -> None:
    gains = {f"p{k} (seed {seed})": OPEN for k in range(4) for seed in (0, 1)}
    verdict = overall_verdict(
        [row("fedavg", OPEN, 1e6, OPEN, **gains)], [answer(name, "level") for name in gains], 2
    )
    assert verdict is not None
    assert verdict.whom.startswith(
        "Of 8 parties of 2 seeds none gains clearly by fedavg, none is clearly hurt."
    )


def test_an_interval_that_is_cut_off_is_explained(tmp_path: Path) -> None:
    """Two seeds with other parties give an interval that is wider than the metric's range."""
    (tmp_path / "damped.py").write_text(OWN.format(HALFWAY), encoding="utf-8")
    folder = tmp_path / "runs"
    settings = ("--parties", "6", "--rounds", "5", "--seeds", "0,1", "--no-report")
    out = succeed("compare", "fedavg", tmp_path / "damped.py", *settings, "--out", folder).out
    gain = json.loads((folder / "comparison.json").read_text())["rows"][2]["gain"]
    assert -1.0 in (gain["low"], -gain["high"])
    assert CUT in " ".join(out.split())
    assert CUT in report(folder, quick=True).read_text(encoding="utf-8")
    assert not Estimate(0.0, -0.9, 0.99).is_cut


def test_no_verdict_without_solo() -> None:
    assert overall_verdict([row("fedavg", None)], [], 1) is None


def test_headline_says_if_it_rests_on_one_small_party() -> None:
    """The mean of five hospitals mostly came from the one with 30 patients."""
    without = Estimate(0.025, -0.01, 0.06)
    parties = {"north": CLEAR, "village": Estimate(0.33, -0.2, 0.8)}
    best = replace(row("fedavg", CLEAR), gains=parties, gain_without={"village": without})
    answers = [answer("north", "gains"), replace(answer("village", "level"), samples=30)]
    verdict = overall_verdict([best], answers, 2)
    assert verdict is not None
    assert verdict.helps.endswith(
        " Each party counts equally, whatever its size; without village (30 samples): +2.5 points"
        " (between -1.0 and 6.0)."
    )
    unchanged = replace(best, gain_without={"village": Estimate(0.045, 0.01, 0.08)})
    verdict = overall_verdict([unchanged], answers, 2)
    assert verdict is not None
    assert "whatever its size" not in verdict.helps


def test_party_that_moves_the_mean_most_is_left_out() -> None:
    points = {"a": 0.02, "b": 0.03, "c": 0.04, "village": 0.33}
    gains = {0: [Gain(name, g, g - 0.02, g + 0.02, g, 0.01) for name, g in points.items()]}
    summary = method_summary("fedavg", [], gains, {}, True, 1)
    (party,) = summary.gain_without
    assert party == "village"
    assert summary.gain_without[party].gain == pytest.approx(0.03)
    assert method_summary("fedavg", [], gains, {}, False, 1).gain_without == {}


def test_parties_that_cannot_be_judged_are_not_in_the_mean_twice() -> None:
    """A party without an AUC has no gain, so that the mean without it is the same."""
    best = row("fedavg", CLEAR, 1e6, CLEAR, north=OPEN)
    verdict = overall_verdict([best], [answer("north", "level"), answer("village", "too few")], 2)
    assert verdict is not None
    assert verdict.helps.endswith(
        " village, which has too few samples to judge by, is not in this mean."
    )
    assert verdict.whom.startswith("Of the only judged party none gains clearly")


def test_very_wide_intervals_are_too_uncertain_to_decide() -> None:
    wide = Estimate(0.33, -0.2, 0.84, Variances(0.06))
    narrow = Estimate(0.03, -0.02, 0.08, Variances(0.0006))
    counts = {name: [SampleCounts((15, 15), (15, 15))] for name in ("village", "east")}
    village, east = party_verdicts(
        {"fedavg": {"village": wide, "east": narrow}}, counts, METRICS["auc"]
    )
    assert village.says.startswith("too uncertain to decide; fedavg gives +33.0 points (")
    assert "go by the gains of the other parties" in village.says
    assert village.power is not None
    assert village.power.more_samples is None
    assert east.says.startswith("no clear difference")
    assert (village.samples, east.samples) == (30, 30)


def test_a_method_that_clearly_hurts_is_not_called_unclear() -> None:
    """The best guess was a method whose interval lies below zero: it hurts, and needs no samples.
    That another method may not hurt is what is not clear.
    """
    unclear = Estimate(-0.10, -0.24, 0.04, Variances(0.07**2))
    gains = {
        "fedavg": {"berg": Estimate(-0.05, -0.08, -0.02, Variances(0.015**2))},
        "fedper": {"berg": Estimate(-0.06, -0.09, -0.03, Variances(0.015**2))},
        "relay": {"berg": unclear},
    }
    counts = {"berg": [SampleCounts((30, 30), (20, 20))]}
    (berg,) = party_verdicts(gains, counts, METRICS["accuracy"])
    assert berg.verdict == "level"
    assert berg.says == (
        "no method clearly helps; clearly worse: fedavg, -5.0 points (between -8.0 and -2.0), and 1"
        " more method; not clear: relay, -10.0 points (between -24.0 and 4.0)"
    )
    assert berg.power == Power.of(unclear, 40), "what would settle it is about relay"


def test_an_uncertain_party_hears_of_what_clearly_hurts() -> None:
    wide = Estimate(-0.50, -0.90, 0.10, Variances(0.25**2))
    hurting = Estimate(-0.45, -0.80, -0.10, Variances(0.18**2))
    counts = {"elm": [SampleCounts((10, 10), (10, 10))]}
    (elm,) = party_verdicts(
        {"fedavg": {"elm": hurting}, "relay": {"elm": wide}}, counts, METRICS["accuracy"]
    )
    assert elm.says == (
        "no method clearly helps; clearly worse: fedavg, -45.0 points (between -80.0 and -10.0);"
        " not clear: relay, -50.0 points (between -90.0 and 10.0)"
    )
    assert elm.power == Power.of(replace(wide, gain=0.1), 20), "no guess is as large as that"
