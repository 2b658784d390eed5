"""The verdict of a comparison for each party, in words: whether it gains by collaborating, by which
method, and with which confidence interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from comity.data import Federation
from comity.data.split import Share
from comity.measure.gain import Folds, Gain
from comity.metrics.metrics import TWO, Metric, count_by_class, has_too_few, relevant_classes
from comity.metrics.reliability import Z95
from comity.studies.estimate import (
    OVER_OWN_MODEL,
    OVER_SOLO,
    Baseline,
    Estimate,
    Variances,
    Verdict,
)
from comity.studies.power import Power

MOST = 12
"""The most parties that are printed one by one."""
FIRST = 5
"""How many of more parties are printed, unless more of them have a clear difference."""

TOO_WIDE = 0.25
"""Half the width of an interval from which on a party's gain is called too uncertain to decide."""
PLAUSIBLE = 0.1
"""The largest gain that the number of samples is computed for at such a party."""

WITHHELD = "not judged: its site's policy withholds its figures"


@dataclass(frozen=True)
class PartyVerdict:
    """The verdict of a comparison for one party."""

    party: str
    verdict: Verdict
    says: str
    method: str | None
    """The method that the verdict names: that with the highest lower bound or, where all clearly
    hurt, that with the highest upper bound.
    """
    methods: Mapping[str, Estimate]
    """The gains by all methods in which the party could take part."""
    power: Power | None = None
    """What its samples can show, if there is no clear difference."""
    samples: int | None = None
    """The number of samples that it is tested on, mean over seeds."""

    def __str__(self) -> str:
        return f"{self.party}: {self.says}" + (f"; {self.power}" if self.power else "")


@dataclass(frozen=True)
class SampleCounts:
    """A party's numbers of training and test samples, by class."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    too_few: bool = False
    """Whether the party, which does not report counts by class, says that it has too few of one."""
    withheld: bool = False
    """Whether the site policy withholds the party's test figures."""


@dataclass(frozen=True)
class Parties:
    """The part of a federation that a comparison needs: sample counts and splits of the parties."""

    counts: Mapping[str, SampleCounts]
    shares: Mapping[str, Share]
    class_names: Sequence[str] = ()

    @staticmethod
    def of(federation: Federation) -> Parties:
        """Return the parties of a federation."""
        counts = {
            name: SampleCounts(
                count_by_class(data.train.y, federation.classes),
                count_by_class(data.test.y, federation.classes),
            )
            for name, data in federation.parties.items()
        }
        return Parties(counts, federation.split.parties, federation.class_names)

    def only(self, names: Collection[str]) -> Parties:
        """Return these parties without those that are not among `names`."""
        counts = {name: count for name, count in self.counts.items() if name in names}
        return replace(self, counts=counts)


def same_parties(splits: Iterable[Mapping[str, Share]]) -> bool:
    """Return whether each party has the same samples under every seed."""
    samples = [
        {name: frozenset(s.train + s.validation + s.test) for name, s in split.items()}
        for split in splits
    ]
    return all(of_seed == samples[0] for of_seed in samples)


def party_label(party: str, seed: int, same: bool) -> str:
    """Return the name of a party, with the seed where parties differ between seeds."""
    return party if same else f"{party} (seed {seed})"


def counts_by_party(parties: Mapping[int, Parties], same: bool) -> dict[str, list[SampleCounts]]:
    """Return the sample counts of each party, one entry per seed."""
    by_party: dict[str, list[SampleCounts]] = {}
    for seed, of_seed in parties.items():
        for party, counts in of_seed.counts.items():
            by_party.setdefault(party_label(party, seed, same), []).append(counts)
    return by_party


def without_few(
    gains: Mapping[int, Sequence[Gain]], too_few: Mapping[int, Collection[str]], same: bool
) -> dict[int, list[Gain]]:
    """Return the gains by seed, without those of parties with too few test samples.

    `too_few` has the names of these parties by seed. Where parties are the same under all seeds, a
    party with too few under one seed is left out under all.
    """
    excluded = {
        party_label(party, seed, same) for seed, names in too_few.items() for party in names
    }
    return {
        seed: [gain for gain in of_seed if party_label(gain.party, seed, same) not in excluded]
        for seed, of_seed in gains.items()
    }


def estimates(
    gains: Mapping[int, Sequence[Gain]], same: bool, methods: int, metric: Metric
) -> dict[str, Estimate]:
    """Return each party's gain by one of `methods` methods, from its gains over SOLO by seed.

    Where parties are the `same` under all seeds, the seeds are combined. Otherwise there is one
    estimate for each party and seed.
    """
    by_party: dict[str, list[Gain]] = {}
    for seed, of_seed in gains.items():
        for gain in of_seed:
            by_party.setdefault(party_label(gain.party, seed, same), []).append(gain)
    return {
        party: combine_seeds(of_party, methods, metric.bounded)
        for party, of_party in by_party.items()
    }


def average_gain(
    gains: Mapping[int, Sequence[Gain]], methods: int, metric: Metric
) -> Estimate | None:
    """Return the mean gain of the parties by one of `methods` methods; None without any gains.

    The errors of parties are independent, as their test samples differ. Those of seeds are assumed
    to be the same. The interval is centred at the mean gain, not at the mean of the parties'
    `middle`, whose bias towards zero would not average out.
    """
    by_seed = []
    for of_seed in filter(None, gains.values()):
        gain = statistics.fmean(party.gain for party in of_seed)
        error = math.sqrt(sum(party.error**2 for party in of_seed)) / len(of_seed)
        folds = [party.folds for party in of_seed if party.folds]
        by_seed.append(
            Gain(
                "",
                gain,
                gain - Z95 * error,
                gain + Z95 * error,
                gain,
                error,
                Folds.average(folds) if folds else None,
            )
        )
    return combine_seeds(by_seed, methods, metric.bounded) if by_seed else None


def combine_seeds(gains: Sequence[Gain], methods: int, bounded: bool = True) -> Estimate:
    """Return one party's gain by one of `methods` methods, over seeds.

    Its variance has two parts (`Variances`). That of the test samples does not fall with more
    seeds, as all seeds share the party's samples. That of training does. With m methods to choose
    the best of, the confidence is 1 - 0.05 / m (Bonferroni).
    """
    sampling = statistics.fmean(gain.error**2 for gain in gains)
    variances = replace(_between_runs(gains), sampling=sampling, tail=0.025 / methods)
    middle = statistics.fmean(gain.middle for gain in gains)
    half = variances.quantile * variances.error
    low, high = middle - half, middle + half
    if bounded:  # values between 0 and 1 differ by at most 1
        low, high = max(-1.0, low), min(1.0, high)
    mean = statistics.fmean(gain.gain for gain in gains)
    return Estimate(mean, low, high, variances)


def _between_runs(gains: Sequence[Gain]) -> Variances:
    """Return the variance between runs, and their number; without the variance of samples."""
    folds = [gain.folds for gain in gains if gain.folds]
    if folds:
        between = statistics.fmean(of_seed.between for of_seed in folds)
        runs = sum(len(of_seed.gains) for of_seed in folds)
        return Variances(0.0, between, runs, folds[0].number)
    if len(gains) == 1:
        return Variances(0.0)
    return Variances(0.0, statistics.variance(gain.gain for gain in gains), len(gains))


def party_verdicts(
    gains: Mapping[str, Mapping[str, Estimate]],
    counts: Mapping[str, Sequence[SampleCounts]],
    metric: Metric,
    class_names: Sequence[str] = (),
    foremost: str = "",
    own_models: Mapping[str, Mapping[str, int]] | None = None,
) -> list[PartyVerdict]:
    """Return the verdict for each party.

    Args:
        gains: The gains by method and party.
        counts: The sample counts of each party, one entry per seed.
        metric: The metric of the gains.
        class_names: The names of the classes.
        foremost: The method to name where several methods give a party the same.
        own_models: By party: in how many runs each model was its own model, if gains are over it.
    """
    order = sorted(gains, key=lambda method: method != foremost)
    verdicts = [
        _verdict(
            party,
            {method: gains[method][party] for method in order if party in gains[method]},
            of_party,
            metric,
            class_names,
            describe_own_model((own_models or {}).get(party, {})),
        )
        for party, of_party in (counts.items() if gains else ())
    ]
    return [replace(verdict, samples=_count_tests(counts[verdict.party])) for verdict in verdicts]


def _count_tests(counts: Sequence[SampleCounts]) -> int | None:
    """Return the number of a party's test samples, mean over seeds; None if it does not say."""
    return round(statistics.fmean(sum(of_seed.test) for of_seed in counts)) or None


def _verdict(
    party: str,
    gains: Mapping[str, Estimate],
    counts: Sequence[SampleCounts],
    metric: Metric,
    class_names: Sequence[str],
    own_model: str,
) -> PartyVerdict:
    if not gains and any(of_seed.withheld for of_seed in counts):
        return PartyVerdict(party, "not judged", WITHHELD, None, gains)
    if reason := _too_few(counts, metric, class_names):
        return PartyVerdict(party, "too few", reason, None, gains)
    if not gains:
        return PartyVerdict(
            party,
            "not judged",
            "not judged: it was not heard at the end, or a model has diverged",
            None,
            gains,
        )
    best = max(gains, key=lambda method: gains[method].low)
    if gains[best].low > 0:
        over = f" over its own model{own_model}" if own_model else ""
        return PartyVerdict(party, "gains", f"{gains[best]} by {best}{over}", best, gains)
    if all(estimate.high < 0 for estimate in gains.values()):
        best = max(gains, key=lambda method: gains[method].high)
        return PartyVerdict(
            party,
            "alone",
            f"better alone{own_model}; {best}, which costs it least, gives {gains[best]}",
            best,
            gains,
        )
    return _level(party, gains, counts, metric, own_model)


def _level(
    party: str,
    gains: Mapping[str, Estimate],
    counts: Sequence[SampleCounts],
    metric: Metric,
    own_model: str,
) -> PartyVerdict:
    """Return the verdict where no method clearly helps and not all clearly hurt.

    It is about the best of the methods that do not clearly hurt: only their difference is unclear.
    """
    unclear = {method: gain for method, gain in gains.items() if not gain.hurt}
    best = max(unclear, key=lambda method: unclear[method].gain)
    gain = gains[best]
    tests = round(statistics.fmean(sum(of_seed.test) for of_seed in counts))
    over = f" over its own model{own_model}" if own_model else ""
    to = f" to its own model{own_model}" if own_model else ""
    is_wide = metric.bounded and gain.high - gain.low > 2 * TOO_WIDE
    # A gain that is so uncertain is no guess of the true one.
    guess = replace(gain, gain=min(PLAUSIBLE, abs(gain.gain))) if is_wide else gain
    if len(unclear) < len(gains):
        worse = {method: gain for method, gain in gains.items() if gain.hurt}
        says = (
            f"no method clearly helps{over}; clearly worse: {_best_of(worse)}; not clear:"
            f" {_best_of(unclear)}"
        )
    elif is_wide:
        says = (
            f"too uncertain to decide; {best} gives {gain}{over}; until it has more samples, go by"
            " the gains of the other parties, and test any model on new samples before use"
        )
    else:
        says = f"no clear difference{to}; {best} gives {gain}"
    return PartyVerdict(party, "level", says, None, gains, Power.of(guess, tests))


def _best_of(gains: Mapping[str, Estimate]) -> str:
    """Return the method with the largest of these gains and that gain, and how many more there
    are.
    """
    best = max(gains, key=lambda method: gains[method].gain)
    more = len(gains) - 1
    others = f", and {more} more method{'s' if more > 1 else ''}" if more else ""
    return f"{best}, {gains[best]}{others}"


def describe_own_model(choices: Mapping[str, int]) -> str:
    """Return a party's own model as a phrase in brackets; empty if it is not known.

    Examples:
        >>> describe_own_model({"plain-linear": 5})
        ' (plain-linear)'
        >>> describe_own_model({"plain-linear": 4, "solo": 1})
        ' (plain-linear in 4 of 5 runs)'
    """
    if not choices:
        return ""
    most, count = max(choices.items(), key=lambda item: item[1])
    runs = sum(choices.values())
    return f" ({most})" if count == runs else f" ({most} in {count} of {runs} runs)"


def _too_few(counts: Sequence[SampleCounts], metric: Metric, class_names: Sequence[str]) -> str:
    """Return a phrase if there are too few samples for a verdict, with the smallest counts."""
    if not any(of_seed.too_few or has_too_few(of_seed.test, metric) for of_seed in counts):
        return ""
    if any(of_seed.too_few for of_seed in counts):
        return "too few test samples to say, or too few of a class, by its own word"
    if len(counts[0].test) != TWO:
        return f"too few test samples ({min(sum(of_seed.test) for of_seed in counts)}) to say"
    tests, trains, label = min(
        (of_seed.test[label], of_seed.train[label], label)
        for of_seed in counts
        for label in relevant_classes(metric)
    )
    what = f"samples of {class_names[label]!r}" if class_names else f"samples of class {label}"
    return f"too few {what} to say ({tests} to test on, {trains} to train on)"


VERDICT_LABELS: dict[Verdict, str] = {
    "gains": "gain by collaborating",
    "level": "no clear difference",
    "alone": "better alone",
    "too few": "too few samples to say",
    "not judged": "not judged",
}


def format_verdicts(verdicts: Sequence[PartyVerdict]) -> list[str]:
    """Return the verdicts as text, one line per party.

    Of many parties, there are the counts of each verdict, first those that gain or are better
    alone, up to `MOST`, and then others until there are `FIRST`.
    """
    if len(verdicts) <= MOST:
        return [str(party_verdict) for party_verdict in verdicts]
    counts = {
        verdict: sum(party_verdict.verdict == verdict for party_verdict in verdicts)
        for verdict in VERDICT_LABELS
    }
    summary = ", ".join(
        f"{count} {VERDICT_LABELS[verdict]}" for verdict, count in counts.items() if count
    )
    clear = [v for v in verdicts if v.verdict in ("gains", "alone")][:MOST]
    others = [v for v in verdicts if v.verdict not in ("gains", "alone")]
    shown = [*clear, *others[: max(0, FIRST - len(clear))]]
    head = (
        f"{len(verdicts)} parties: {summary}. All are in comparison.json, {len(shown)} here, those"
        " with a clear difference first:"
    )
    return [head, *map(str, shown)]


def how_to_read(
    methods: int,
    seeds: Sequence[int],
    metric: Metric,
    same: bool = True,
    folds: int = 1,
    baseline: Baseline = OVER_SOLO,
) -> str:
    """Return a text on how to read the intervals.

    Args:
        methods: The number of methods to choose the best of.
        seeds: The seeds, or the repeats of cross-validation.
        metric: The metric.
        same: Whether parties have the same samples under all seeds.
        folds: The number of folds of cross-validation; 1 without it.
        baseline: What gains are over.
    """
    picked = (
        f", Bonferroni-corrected for the choice of the best of {methods} methods"
        if methods > 1
        else ""
    )
    which = f" (mean over {len(seeds)} seeds)" if len(seeds) > 1 else ""
    which = (
        which
        if same
        else " (under each seed a party has other samples, so it is listed once per seed)"
    )
    once = (
        " What another start of training would change is not in it: that takes several seeds of the"
        " same parties."
    )
    twice = (
        " Two seeds tell little of how training varies, so they are wide: more seeds make them"
        " narrower."
    )
    more = once if len(seeds) == 1 or not same else twice if len(seeds) == 2 else ""
    samples = f"a party's own test samples{which}"
    if folds > 1:
        samples = f"all of a party's samples ({describe_folds(folds, len(seeds))})"
        more = ""
    than = "training alone"
    if baseline == OVER_OWN_MODEL:
        than = (
            "its own model (the best that it trains alone, by cross-validation on its training"
            " samples)"
        )
    return (
        f"Points of {metric.title} more than by {than}, on {samples}; between: where the"
        f" true difference lies with 95% confidence{picked}.{more}"
    )


def describe_folds(folds: int, repeats: int) -> str:
    """Return the number of folds and repeats of cross-validation as a phrase."""
    times = "" if repeats == 1 else f", {repeats} times"
    return f"{folds}-fold cross-validation{times}"
