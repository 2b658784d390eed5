"""The content of the disclosure page, section by section."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from comity.core.release import UNITS
from comity.data.preparation import Schema
from comity.deploy.release_ledger import DELTA
from comity.deploy.secure_costs import NOT_HIDDEN, describe_limits, smallest_sum
from comity.deploy.secure_server import EXPERIMENTAL, Limits
from comity.disclosure.sent_values import (
    INTRODUCED,
    SentValue,
    kinds_of,
    smallest_means,
    what_left,
)
from comity.disclosure.sources import AllRuns, Source
from comity.models.referenced_weights import WeightsReference
from comity.names import display_name
from comity.privacy.account import (
    AGAINST_SERVER,
    INFINITE,
    describe_guarantee,
    format_epsilon,
    read_epsilon,
)
from comity.privacy.composition import weakest_unit
from comity.reporting.blocks import Facts, Section, Table
from comity.text import join_names
from comity.units import size
from comity.wire.ledger import SERVER, Charge

HEADS = (
    "What left",
    "How much",
    "Records behind it",
    "To whom, and when",
    "Bytes",
    "What protects it",
)
ATTACK_HEADS = (
    "Attack",
    "How",
    "Measured by",
    "Success (and its interval)",
    "Guessing gives",
    "So it is",
)
SCHEMA_HEADS = ("Column", "Kind", "Words", "Constants or medians")
RUN_HEADS = ("Run", "Method", "Bytes that left", "Evaluations", f"Epsilon at delta {DELTA:g}")
MEASURES = {
    "AUC": "how often a record that was trained on is told from one that was not",
    "re-identified": "of how many records a reconstruction is closest to the record itself",
    "recovered": "how many records were computed back",
}
"""The audit's measures of success, in words."""
FACTOR_WITHOUT_MEANING = 1000
"""A bound on the likelihood ratio that is as large as this protects nobody."""


@dataclass(frozen=True)
class Page:
    """The content of the page, in HTML and in PDF."""

    title: str
    facts: Facts
    sections: list[Section]
    foot: str


def page_of(source: Source) -> Page:
    """The content of a party's page."""
    values = what_left(source)
    parts = [
        _unprotected_section(source, values),
        _table_section(source, values),
        _guarantee_section(source, values),
        *([_aggregation_section(source, source.secure)] if source.secure else []),
        _coverage_section(source, values),
        _limits_section(source, values),
        _before_training_section(source, values),
        *([_all_runs_section(source.party, source.all_runs)] if source.all_runs else []),
        _attacks_section(source),
    ]
    version = source.run.read_environment()
    foot = (
        f"Made from the files of the run in {source.run.path.resolve().name} (ledger.csv,"
        " privacy.csv, summary.json), which are as the run wrote them. Run with Comity"
        f" {version['comity']} ({version['code']}), Python {version['python']}, torch"
        f" {version['torch']}."
    )
    return Page(f"What left {source.party}", Facts(_facts(source)), parts, foot)


def _facts(source: Source) -> dict[str, str]:
    server_run, info = source.server_run, source.info
    names = server_run.context.roster.names
    data = (
        "its own data, at the site" if source.place != "simulation" else server_run.experiment.data
    )
    conducted = {
        "simulation": (
            "a simulation: all parties were on one machine, so nothing really left. The page says"
            " what would have left"
        ),
        "server": "between sites, as its server wrote it down",
        "site": "between sites, as this site itself wrote it down",
    }[source.place]
    return {
        "Party": f"{source.party}, one of {len(names)}",
        "Method": (
            f"{display_name(server_run.experiment.algorithm)} (its name and settings). Its parties"
            f" send {kinds_of(source)}"
        ),
        "Data": (
            f"{data}: {info.train:,} training records, {info.validation:,} for validation,"
            f" {info.test:,} for tests"
        ),
        "Run": f"{source.summary['rounds']} rounds (exchanges with the others); {source.times()}",
        "Conducted": conducted,
        "Operator": _describe_operator(source),
    } | _describe_initial_weights(source)


def _describe_initial_weights(source: Source) -> dict[str, str]:
    """Where the run's initial weights came from, if the researcher gave them."""
    context = source.server_run.context
    texts = [start.text.removeprefix("Initial weights: ") for start in context.initial_weights]
    if reference := WeightsReference.read(context.experiment.weights):
        name = (
            f"a file of the researcher, {size(reference.size)}, SHA-256 {reference.digest}, which"
            " came to this party before round 1. It holds tensors only. Who chooses the encoder"
            " chooses what representations and their means tell of the records"
        )
        texts = [name, *texts]
    return {"Initial weights": ": ".join(texts)} if texts else {}


def _describe_operator(source: Source) -> str:
    """Who runs the server, which gets what leaves."""
    if source.operator:
        return f"{source.operator}. The operator runs the server, and gets what leaves"
    if source.place == "simulation":
        return "nobody: a simulation has no server. --operator names who would run it"
    return (
        "not named. The operator runs the server, and gets what leaves: name it with operator in"
        " site.toml, or with --operator"
    )


# First what is not protected.


def _epsilon(source: Source, values: list[SentValue]) -> float:
    """ε of the party by the run's account; infinite if anything left without noise, even if the
    account does not have it.
    """
    if _unprotected(values) or _coupling_reasons(source):
        return math.inf
    return read_epsilon(source.summary["privacy"]["parties"].get(source.party, 0.0))


def _unprotected(values: list[SentValue]) -> list[SentValue]:
    """The values that the method sent without protection from their recipient."""
    return [
        value
        for value in values
        if value.training and value.open and not value.route.startswith("from the server")
    ]


def _coupling_reasons(source: Source) -> list[str]:
    """Why records are not protected although noise was added; empty if they are."""
    return [
        row.release
        for row in source.privacy_rows
        if row.call == INTRODUCED and row.against == AGAINST_SERVER and row.to_release() is None
    ]


def _unprotected_section(source: Source, values: list[SentValue]) -> Section:
    section = Section("first", "What is not protected")
    unprotected = _unprotected(values)
    if unprotected:
        section.say(
            f"No noise hides these from whoever gets them: {_names(unprotected)}.", "warning"
        )
    for reason in _coupling_reasons(source):
        section.say(
            "Not protected, although noise was added: one record changes what others are, by"
            f" {reason}.",
            "warning",
        )
    if not unprotected and not _coupling_reasons(source):
        if math.isinf(_epsilon(source, values)):
            section.say(
                "There is noise on all that the method sent, but no bound on what it tells: see"
                " below.",
                "warning",
            )
        elif not any(value.rows or value.route for value in values if value.training):
            section.say("The method itself had this party send nothing.", "lead")
        else:
            section.say(
                "All that the method had this party send is behind noise; how much that protects is"
                " said below.",
                "lead",
            )
    in_any_run = [value.words for value in values if not value.training]
    section.say(f"Not protected in any run: {'; and '.join(in_any_run)}.", "warning")
    return section


def _names(values: list[SentValue]) -> str:
    return "; ".join(dict.fromkeys(value.display_name for value in values))


# Then everything.


def _table_section(source: Source, values: list[SentValue]) -> Section:
    rows = []
    first_with_rows: dict[tuple[Charge, ...], SentValue] = {}
    for value in values:
        before = first_with_rows.get(value.rows) if value.rows else None
        rows.append(
            [
                value.display_name,
                value.form,
                value.records,
                _route(value),
                _bytes(value, before),
                value.protection,
            ]
        )
        if value.rows:
            first_with_rows.setdefault(value.rows, value)
    section = Section("left", "What left", [Table("left", "", HEADS, rows, words=len(HEADS))])
    total = Counter[str]()
    for row in source.sent_rows:
        total["the server" if row.dst == SERVER else "other parties"] += row.bytes
    amounts = " and ".join(f"{amount:,} bytes to {whom}" for whom, amount in total.items())
    section.say(f"In all: {amounts or 'nothing'}. Round 0 is before the first round.")
    return section


def _route(value: SentValue) -> str:
    """To whom a value went, in which rounds, and how often."""
    if not value.rows:
        return value.route or "nobody: it stays at the party"
    whom = value.route
    if value.rows[0].dst != SERVER:
        others = list(dict.fromkeys(row.dst for row in value.rows))
        whom = f"to {join_names(others, 5)}, sealed (the server that carries it cannot read it)"
    rounds = [row.round for row in value.rows]
    when = (
        f"round {rounds[0]}"
        if min(rounds) == max(rounds)
        else f"rounds {min(rounds)} to {max(rounds)}"
    )
    return f"{whom}; {when}; {len(rounds):,} {'time' if len(rounds) == 1 else 'times'}"


def _bytes(value: SentValue, before: SentValue | None) -> str:
    """The bytes of a value's messages; `before` is an earlier value in the same messages."""
    if before:
        same = before.together == value.together
        return (
            f"in the same messages as {before.name}"
            if same
            else f"in what is counted for {before.name}"
        )
    if not value.rows:
        return "not counted in this folder" if value.name == INTRODUCED else "0"
    total = f"{sum(row.bytes for row in value.rows):,}"
    others = [name for name in value.together if name != value.name]
    if value.mixed:
        return f"{total} for sealed messages of all kinds, which this ledger does not separate"
    return f"{total}, with {', '.join(others)}" if others else total


# What that guarantees, and what not.


def _guarantee_section(source: Source, values: list[SentValue]) -> Section:
    section = Section("guaranteed", "What that guarantees")
    privacy = source.summary["privacy"]
    epsilon = _epsilon(source, values)
    unprotected = dict.fromkeys(value.display_name for value in _unprotected(values))
    guarantee = {
        **privacy,
        "epsilon": INFINITE if math.isinf(epsilon) else epsilon,
        "unprotected": [*unprotected, *_coupling_reasons(source)],
    }
    section.say(
        f"Against the server, and whoever reads along: {describe_guarantee(guarantee)}.", "lead"
    )
    if not math.isinf(epsilon) and privacy["unit"]:
        section.say(_explain_epsilon(epsilon, privacy))
    if trusted := privacy["trusted_server"]:
        written_epsilon = trusted["parties"].get(source.party, 0.0)
        guarantee = {**trusted, "epsilon": written_epsilon}
        section.say(
            "Against the other parties, if the server is trusted:"
            f" {describe_guarantee(guarantee)}.",
            "lead",
        )
        epsilon_against_parties = read_epsilon(written_epsilon)
        if not math.isinf(epsilon_against_parties) and trusted["unit"]:
            section.say(_explain_epsilon(epsilon_against_parties, trusted))
    stated = read_epsilon(privacy["parties"].get(source.party, 0.0))
    if math.isinf(epsilon) and not math.isinf(stated):
        section.say(
            f"The run's own summary has epsilon {stated:g} for {source.party}. It leaves out what"
            " is not protected above.",
            "warning",
        )
    if privacy["assumptions"]:
        section.say(
            f"What that rests on: {' '.join(privacy['assumptions'])} The last sentence names the"
            " method by which the privacy losses of several releases were composed."
        )
    return section


def _explain_epsilon(epsilon: float, block: dict[str, Any]) -> str:
    """What an ε means, for a reader who does not know differential privacy."""
    factor = math.exp(epsilon) if epsilon < math.log(1e12) else math.inf
    times = (
        f"{factor:,.3g} times"
        if factor < FACTOR_WITHOUT_MEANING
        else "more than a thousand times, which protects nobody,"
    )
    what = {
        "row": "one row",
        "record": "one training record",
        "patient": "one patient, with all training records of that patient,",
        "party": "all that this party has",
    }[block["unit"]]
    other = {"blank": "a blank one, which adds nothing", "replaced": "any other"}.get(
        block["neighbours"], "another"
    )
    return (
        "In plain words: whatever anybody concludes from what the method sent, it is at most"
        f" {times} as likely as if {what} had been replaced by {other} (epsilon {epsilon:.3g}; the"
        f" smaller, the less can be told), but for a chance of {block['delta']:g} (delta)."
    )


def _aggregation_section(source: Source, limits: Limits) -> Section:
    """What secure aggregation hides from the server, and what it does not."""
    section = Section("aggregation", "What secure aggregation hides")
    server_run = source.server_run
    names = server_run.info.names
    learned = describe_limits(len(names), limits)
    section.say(f"{learned[0].upper()}{learned[1:]}.", "lead")
    if source.party in names:
        infos = server_run.initial_party_infos
        others = [info.train for name, info in infos.items() if name != source.party]
        fewest = smallest_sum(source.info.train, others, limits.threshold)
        section.say(
            f"Behind a mean of the fewest sites, with the smallest ones, are {fewest.records:,}"
            f" training records, of which {fewest.share:.0%} are this party's. The larger this"
            " share, the more the mean tells about this party."
        )
    section.say(f"{NOT_HIDDEN} Means of several rounds may be compared.", "warning")
    section.say(EXPERIMENTAL, "warning")
    return section


def _coverage_section(source: Source, values: list[SentValue]) -> Section:
    """Which records the guarantee is for, and which it does not cover."""
    section = Section("covered", "Which records are covered")
    info = source.info
    held_out = info.validation + info.test
    total = info.train + held_out
    parts = f"{info.validation:,} for validation and {info.test:,} for tests"
    if math.isinf(_epsilon(source, values)):
        section.say(
            f"Against the server no guarantee covers any of the {total:,} records of this party:"
            f" {info.train:,} for training, {parts}.",
            "warning",
        )
        if source.summary["privacy"]["trusted_server"]:
            section.say(
                f"Against the other parties the guarantee is for the {info.train:,} training"
                " records."
            )
    else:
        section.say(
            f"The guarantee is for the {info.train:,} training records. It does not cover"
            f" {held_out:,} of the {total:,} records of this party: {parts}.",
            "warning",
        )
    times = "once" if source.evaluations == 1 else f"{source.evaluations:,} times"
    section.say(
        "No noise protects validation and test records. Figures that were computed from them left"
        f" {times} in this run."
        if source.evaluations
        else "Nothing that was computed from validation and test records left in this run."
    )
    section.say(_describe_unit(source))
    return section


def _describe_unit(source: Source) -> str:
    """Whether a record or a patient is the unit of protection."""
    info = source.info
    releases = [release for row in source.privacy_rows if (release := row.to_release())]
    unit = weakest_unit(dict.fromkeys(releases, 1)) if releases else ""
    if unit == "patient":
        return (
            "The unit of protection is a patient: all training records of one of"
            f" {info.patients:,} patients together."
        )
    if unit == "party":
        return "The unit of protection is the party: all its training records together."
    if info.patients is None:
        several = "a patient may have several records"
    else:
        several = f"the {info.train:,} training records are of {info.patients:,} patients"
    meaning = f"is a row of the data or a picture, and not a patient: {several}."
    if unit == "record":
        return (
            f"The unit of protection is a record. A record {meaning} A patient with several records"
            " is protected less."
        )
    return f"A record {meaning}"


def _limits_section(source: Source, values: list[SentValue]) -> Section:
    section = Section("not", "What it does not guarantee")
    if unprotected := _unprotected(values):
        section.say(
            "Whoever gets what is not protected may find out things about single records from it:"
            f" {_names(unprotected)}."
        )
    if source.summary["privacy"]["unit"] == "row":
        section.say(
            "Rows are protected, not records: a record also shapes the model that makes all other"
            " rows, so that more may be learned of a record than of a row."
        )
    if any(row.dst == SERVER and row.kind == "up" for row in source.sent_rows):
        section.say("The server may send what it computes from these values to the other parties.")
    if means := smallest_means(source):
        section.say(_describe_smallest_mean(source, means))
    if not source.all_runs:
        section.say(
            "Other runs on the same records are not on this page. What they released adds to what"
            " is listed here."
        )
    return section


def _describe_smallest_mean(source: Source, means: dict[str, int]) -> str:
    """How few people a class mean may be of, from the least number of records by field."""
    least = min(means.values())
    fields = ", ".join(name for name, records in means.items() if records == least)
    records = "one record" if least == 1 else f"{least:,} records"
    people = "one person" if least == 1 else f"{least:,} people or fewer"
    allowed = "" if source.class_counts is not None else " by the settings of the method"
    return (
        f"The smallest class mean ({fields}){allowed} is of {records}, and so of {people}. The"
        " fewer there are, the more a mean tells about each of them."
    )


def _before_training_section(source: Source, values: list[SentValue]) -> Section:
    """What left before the first training."""
    section = Section("before", "What left before training")
    for value in values:
        if value.name == INTRODUCED:
            section.say(f"Before anything was trained there left {value.words}.")
    if source.place != "simulation" and source.info.counts is None:
        section.say("How many records there are of each class did not leave with that.")
    early = [
        value
        for value in values
        if value.name != INTRODUCED and value.training and any(row.round == 0 for row in value.rows)
    ]
    if early:
        section.say(f"Before round 1 there also left: {_names(early)}.")
    if source.place == "site":
        section.say(
            "When this site joined, its request had the site's name and a public key, and nothing"
            " of its data."
        )
    if source.is_table is not False:
        condition = "" if source.is_table else "If the data are a table: "
        section.say(
            f"{condition}{'the' if condition else 'The'} schema that the parties agreed on before"
            " the run names all columns, and all words that occur in columns of words. It was"
            " exchanged outside of the run, and its bytes are not counted on this page."
        )
    if source.schema:
        section.say(
            "Everybody in the federation has what this table shows. A word that occurs at one party"
            " only tells the others that somebody has it."
        )
        if any(column.rounded_medians for column in source.schema.columns):
            section.say(
                "Of columns of numbers it has the lowest and the highest median of the parties that"
                " described their tables, each rounded to a power of two. They come from records,"
                " and are outside of every privacy budget."
            )
        section.blocks.append(_schema_table(source.schema))
        if source.schema.left_out:
            left_out = "; ".join(f"{name} ({why})" for name, why in source.schema.left_out.items())
            section.say(f"Of columns that are not used, the schema has the names: {left_out}.")
    return section


def _schema_table(schema: Schema) -> Table:
    """The columns and words that the schema names."""
    rows = []
    for column in schema.columns:
        kind = f"{column.kind or 'empty'}{f' in {column.unit}' if column.unit else ''}"
        words = [*column.words, *column.also_written]
        constants = (
            f"mean {column.mean:g}, standard deviation {column.std:g}"
            if schema.scale == "fixed" and column.kind == "number"
            else ""
        )
        if column.rounded_medians:
            low, high = column.rounded_medians
            constants = f"medians {low:g} to {high:g}, rounded"
        names = ", ".join((column.name, *column.also_called))
        rows.append([names, kind, ", ".join(words), constants])
    label = ", ".join((schema.label, *schema.label_also_called))
    classes = ", ".join((*schema.classes, *schema.label_also_written))
    rows.append([label, "label", classes or "a number", ""])
    return Table("schema", "", SCHEMA_HEADS, rows, words=len(SCHEMA_HEADS))


def _all_runs_section(party: str, total: AllRuns) -> Section:
    """What all runs at a site add up to."""
    section = Section("all-runs", "What all runs at this site add up to")
    count = len(total.runs)
    runs = "one run" if count == 1 else f"{count:,} runs"
    section.say(
        f"{party} has taken part in {runs}, this one among them. In all of them"
        f" {total.bytes:,} bytes left, of {total.policy.budget_bytes:,} that the site policy allows"
        " (budget: bytes)."
    )
    budget = total.policy.budget_epsilon
    allowed = "sets no limit" if math.isinf(budget) else f"allows {budget:g} at most"
    if math.isinf(total.epsilon):
        unbounded = sum(math.isinf(run.epsilon) for run in total.runs)
        section.say(
            f"Over all of them there is no guarantee (epsilon infinite): in {unbounded:,} of them"
            f" values left without noise. The site policy {allowed} (budget: epsilon).",
            "warning",
        )
    elif total.epsilon:
        section.say(
            f"Over all of them: epsilon {total.epsilon:.3g} at delta {DELTA:g}, for"
            f" {UNITS[total.unit]}. The site policy {allowed} (budget: epsilon).",
            "lead",
        )
    else:
        section.say("In none of them did a method have this site send anything of its data.")
    section.say(
        "Figures of validation and test records left"
        f" {total.evaluations:,} times in all of them. No noise protects these records; the site"
        f" policy allows {total.policy.evaluations:,} evaluations of each run (evaluations)."
    )
    rows = [
        [
            run.name,
            run.method or "not known: its folder was deleted",
            f"{run.bytes:,}",
            f"{run.evaluations:,}",
            format_epsilon(run.epsilon),
        ]
        for run in total.runs
    ]
    section.blocks.append(Table("runs", "", RUN_HEADS, rows, words=len(RUN_HEADS)))
    section.say(
        "The table is made from the ledgers in the site's folder (sent.csv, releases.csv), which"
        " keep the rows of runs whose folders were deleted."
    )
    return section


# What attacks could do.


def _attacks_section(source: Source) -> Section:
    section = Section("attacks", "What an attack could do")
    audit = source.audit
    if audit is None:
        advice = (
            "To make one, run it again with --record-messages, and then run 'comity audit' on its"
            " folder."
            if source.place == "simulation"
            else (
                "A run between sites cannot be audited, because it records no messages. Simulate"
                " the same method with --record-messages on data that may be used for it, and then"
                " run 'comity audit' on its folder."
            )
        )
        section.say(
            "No audit of this run was made: nobody has tried what can be found out from what left."
            f" {advice}",
            "missing",
        )
        return section
    section.say(
        "These attacks were tried on what all parties sent, and not on this party's values alone."
    )
    if audit["attacks"]:
        rows = [_attack_row(attack) for attack in audit["attacks"]]
        section.blocks.append(Table("attacks", "", ATTACK_HEADS, rows, words=len(ATTACK_HEADS)))
    if canaries := audit["canaries"]:
        section.say(
            _describe_canaries(canaries["epsilon"], canaries["claimed"], canaries["broken"])
        )
    for check in audit.get("checks", ()):  # audits of earlier versions have none
        section.say(check["says"])
    for attack in audit["untried"]:
        section.say(f"Not tried: {attack['attack']}, as {attack['why']}.")
    section.say(
        "An attack that succeeds shows that what left tells so much. One that fails shows nothing:"
        " a better one may succeed."
    )
    return section


def _attack_row(attack: dict[str, Any]) -> list[str]:
    """The row of the table for an attack in audit.json."""
    is_auc = attack["measure"] == "AUC"
    success, low, high, prior = (
        f"{attack[name]:.3f}" if is_auc else f"{attack[name]:.1%}"
        for name in ("success", "low", "high", "prior")
    )
    if attack["low"] > attack["prior"]:
        verdict = "better than guessing"
    elif attack.get("sure"):
        verdict = f"over all not told from guessing, but {attack['sure']}"
    else:
        verdict = "not told from guessing, which shows nothing"
    measure = MEASURES.get(attack["measure"], attack["measure"])
    interval = f"{success} ({low} to {high})"
    return [attack["attack"], attack["how"], measure, interval, prior, verdict]


def _describe_canaries(
    epsilon: float | None, claimed_epsilon: float, epsilon_with_less_noise: float
) -> str:
    """What canaries show about the noise of private training.

    Arguments:
        epsilon: the ε that they show; None if the test has no power
        claimed_epsilon: the ε that the run claims
        epsilon_with_less_noise: the ε that they show with a tenth of the noise
    """
    how = "The noise was tested with planted records that nothing else looks like (canaries)"
    if epsilon is None:
        return (
            f"{how}. The test would not have noticed a tenth of the noise"
            f" ({epsilon_with_less_noise:.2f}), so it says nothing."
        )
    verdict = "which refutes the claim" if epsilon > claimed_epsilon else "which does not refute it"
    return (
        f"{how}: they show an epsilon of at least {epsilon:.2f} where {claimed_epsilon:.2f} is"
        f" claimed, {verdict}."
    )
