"""What the page says, part by part, in sentences that need no other page."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from comity.disclosure.left import INTRODUCED, Left, kinds_of, what_left
from comity.disclosure.sources import Source
from comity.names import display_name
from comity.privacy.account import AGAINST_SERVER, INFINITE, describe_guarantee, read_epsilon
from comity.report.blocks import Facts, Section, Table
from comity.wire.ledger import SERVER, Charge

HEADS = (
    "What left",
    "How much",
    "Records behind it",
    "To whom, and when",
    "Bytes",
    "What protects it",
)
MEASURES = {
    "AUC": "how often a record that was trained on is told from one that was not",
    "re-identified": "of how many records a reconstruction is closest to the record itself",
    "recovered": "how many records were computed back",
}
"""What the audit measures success by, in words."""
FACTOR_WITHOUT_MEANING = 1000
"""From here on a bound on a factor protects nobody."""


@dataclass(frozen=True)
class Page:
    """All that is on the page, whatever it is written on."""

    title: str
    facts: Facts
    sections: list[Section]
    foot: str


def page_of(source: Source) -> Page:
    """The page of a party."""
    left = what_left(source)
    parts = [part(source, left) for part in (_first, _table, _guaranteed, _not_guaranteed)]
    parts.append(_attacked(source))
    version = source.run.read_environment()
    foot = (
        f"Made from the files of the run in {source.run.path.resolve().name} (ledger.csv,"
        " privacy.csv, summary.json), which are as the run wrote them. Run with Comity"
        f" {version['comity']} ({version['code']}), Python {version['python']}, torch"
        f" {version['torch']}."
    )
    return Page(f"What left {source.party}", Facts(_facts(source)), parts, foot)


def _facts(source: Source) -> dict[str, str]:
    server_run, said = source.server_run, source.said
    names = server_run.common.seats.names
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
            f"{data}: {said.train:,} training records, {said.validation:,} for validation,"
            f" {said.test:,} for tests"
        ),
        "Run": f"{source.summary['rounds']} rounds (exchanges with the others); {source.times()}",
        "Conducted": conducted,
    }


# First what is not protected.


def _epsilon(source: Source, left: list[Left]) -> float:
    """What the account says of the party; infinite if anything left as it is, be it in the account
    or not.
    """
    if _bare(left) or _reasons(source):
        return math.inf
    return read_epsilon(source.summary["privacy"]["parties"].get(source.party, 0.0))


def _bare(left: list[Left]) -> list[Left]:
    """What the method sent and nothing protects from whoever gets it."""
    return [
        one
        for one in left
        if one.training and one.open and not one.route.startswith("from the server")
    ]


def _reasons(source: Source) -> list[str]:
    """Why nothing is protected although noise was added, where that is so."""
    rows = [
        row
        for row in source.spent
        if row.call == INTRODUCED and row.against == AGAINST_SERVER and row.to_release() is None
    ]
    return [row.release for row in rows]


def _first(source: Source, left: list[Left]) -> Section:
    section = Section("first", "What is not protected")
    bare = _bare(left)
    if bare:
        section.say(f"No noise hides these from whoever gets them: {_listed(bare)}.", "warning")
    for reason in _reasons(source):
        section.say(
            "Not protected, although noise was added: one record changes what others are, by"
            f" {reason}.",
            "warning",
        )
    if not bare and not _reasons(source):
        method = [one for one in left if one.training]
        if math.isinf(_epsilon(source, left)):
            section.say(
                "There is noise on all that the method sent, but no bound on what it tells: see"
                " below.",
                "warning",
            )
        elif not any(one.rows or one.route for one in method):
            section.say("The method itself had this party send nothing.", "lead")
        else:
            section.say(
                "All that the method had this party send is behind noise; how much that protects is"
                " said below.",
                "lead",
            )
    beside = [one.words for one in left if not one.training]
    section.say(f"Not protected in any run: {'; and '.join(beside)}.", "warning")
    return section


def _listed(some: list[Left]) -> str:
    return "; ".join(dict.fromkeys(one.display_name for one in some))


# Then everything.


def _table(source: Source, left: list[Left]) -> Section:
    rows = []
    shown: dict[tuple[Charge, ...], Left] = {}
    for one in left:
        before = shown.get(one.rows) if one.rows else None
        rows.append(
            [
                one.display_name,
                one.form,
                one.records,
                _route(source, one),
                _bytes(source, one, before),
                one.protection,
            ]
        )
        if one.rows:
            shown.setdefault(one.rows, one)
    section = Section("left", "What left", [Table("left", "", HEADS, rows, words=len(HEADS))])
    total = Counter[str]()
    for row in source.sent:
        total["the server" if row.dst == SERVER else "other parties"] += row.bytes
    said = " and ".join(f"{amount:,} bytes to {whom}" for whom, amount in total.items())
    section.say(f"In all: {said or 'nothing'}. Round 0 is before the first round.")
    return section


def _route(source: Source, one: Left) -> str:
    if not one.rows:
        return one.route or "nobody: it stays at the party"
    whom = one.route
    if one.rows[0].dst != SERVER:
        others = list(dict.fromkeys(row.dst for row in one.rows))
        named = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        whom = f"to {named}, sealed (the server that carries it cannot read it)"
    rounds = [row.round for row in one.rows]
    when = (
        f"round {rounds[0]}"
        if min(rounds) == max(rounds)
        else f"rounds {min(rounds)} to {max(rounds)}"
    )
    return f"{whom}; {when}; {len(rounds):,} {'time' if len(rounds) == 1 else 'times'}"


def _bytes(source: Source, one: Left, before: Left | None) -> str:
    if before:
        same = before.together == one.together
        return (
            f"in the same messages as {before.name}"
            if same
            else f"in what is counted for {before.name}"
        )
    if not one.rows:
        return "not counted in this folder" if one.name == INTRODUCED else "0"
    total = f"{sum(row.bytes for row in one.rows):,}"
    others = [name for name in one.together if name != one.name]
    if one.mixed:
        return f"{total} for sealed parcels of all kinds, which this ledger does not tell apart"
    return f"{total}, with {', '.join(others)}" if others else total


# What that guarantees, and what not.


def _guaranteed(source: Source, left: list[Left]) -> Section:
    section = Section("guaranteed", "What that guarantees")
    told = source.summary["privacy"]
    epsilon = _epsilon(source, left)
    bare = [*dict.fromkeys(one.display_name for one in _bare(left)), *_reasons(source)]
    own = {**told, "epsilon": INFINITE if math.isinf(epsilon) else epsilon, "unprotected": bare}
    section.say(_capital(f"against the server, and whoever reads along: {describe_guarantee(own)}."), "lead")
    if not math.isinf(epsilon) and told["unit"]:
        section.say(_plainly(epsilon, told))
    if trusted := told["trusted_server"]:
        theirs = read_epsilon(trusted["parties"].get(source.party, 0.0))
        own = {**trusted, "epsilon": trusted["parties"].get(source.party, 0.0)}
        section.say(
            f"Against the other parties, if the server is trusted: {describe_guarantee(own)}.", "lead"
        )
        if not math.isinf(theirs) and trusted["unit"]:
            section.say(_plainly(theirs, trusted))
    stated = read_epsilon(told["parties"].get(source.party, 0.0))
    if math.isinf(epsilon) and not math.isinf(stated):
        section.say(
            f"The run's own summary has epsilon {stated:g} for {source.party}. It leaves out what"
            " is not protected above.",
            "warning",
        )
    if told["assumptions"]:
        by = "The last sentence names the way in which what several releases tell was added up."
        section.say(f"What that rests on: {' '.join(told['assumptions'])} {by}")
    return section


def _plainly(epsilon: float, block: dict[str, Any]) -> str:
    """What an epsilon means, for whoever has never met one."""
    factor = math.exp(epsilon) if epsilon < math.log(1e12) else math.inf
    times = (
        f"{factor:,.3g} times"
        if factor < FACTOR_WITHOUT_MEANING
        else "more than a thousand times, which protects nobody,"
    )
    what = {"row": "one row", "record": "one training record", "party": "all that this party has"}[
        block["unit"]
    ]
    other = {"blank": "a blank one, which adds nothing", "replaced": "any other"}.get(
        block["neighbours"], "another"
    )
    return (
        "In plain words: whatever anybody concludes from what the method sent, it is at most"
        f" {times} as likely as if {what} had been replaced by {other} (epsilon {epsilon:.3g}; the"
        f" smaller, the less can be told), but for a chance of {block['delta']:g} (delta)."
    )


def _not_guaranteed(source: Source, left: list[Left]) -> Section:
    section = Section("not", "What it does not guarantee")
    told = source.summary["privacy"]
    if bare := _bare(left):
        section.say(
            "Whoever gets what is not protected may find out things about single records from it:"
            f" {_listed(bare)}."
        )
    if told["unit"] == "row":
        section.say(
            "Rows are protected, not records: a record also shapes the model that makes all other"
            " rows, so that more may be learned of a record than of a row."
        )
    if any(row.dst == SERVER and row.kind == "up" for row in source.sent):
        section.say("What the server computes of these values it may send to the other parties.")
    section.say(
        "Other runs on the same records are not on this page. What they gave away adds to what"
        " stands here."
    )
    return section


# What attacks could do.


def _attacked(source: Source) -> Section:
    section = Section("attacks", "What an attack could do")
    found = source.audit
    if found is None:
        say = (
            "No audit of this run was made: nobody has tried what can be found out from what left. "
        )
        if source.place == "simulation":
            say += (
                "To make one, run it again so that it keeps its messages (--record-messages), and"
                " then 'comity audit' with its folder."
            )
        else:
            say += (
                "Of a run between sites none can be made, as it keeps no messages. Simulate the"
                " same method on data that may be used for it, with --record-messages, and then"
                " 'comity audit' with its folder."
            )
        section.say(say, "missing")
        return section
    section.say(
        "These attacks were tried on what all parties sent, and not on this party's values alone."
    )
    rows = []
    for one in found["attacks"]:
        auc = one["measure"] == "AUC"

        def text(value: float, auc: bool = auc) -> str:
            return f"{value:.3f}" if auc else f"{value:.1%}"

        measure = MEASURES.get(one["measure"], one["measure"])
        success = f"{text(one['success'])} ({text(one['low'])} to {text(one['high'])})"
        better = "better than guessing" if one["low"] > one["prior"] else ""
        few = f"over all not told from guessing, but {one['sure']}" if one.get("sure") else ""
        verdict = better or few or "not told from guessing, which shows nothing"
        rows.append([one["attack"], one["how"], measure, success, text(one["prior"]), verdict])
    if rows:
        heads = (
            "Attack",
            "How",
            "Measured by",
            "Success (and its interval)",
            "Guessing gives",
            "So it is",
        )
        section.blocks.append(Table("attacks", "", heads, rows, words=len(heads)))
    if planted := found["canaries"]:
        section.say(_canaries(planted["epsilon"], planted["claimed"], planted["broken"]))
    for one in found["untried"]:
        section.say(f"Not tried: {one['attack']}, as {one['why']}.")
    section.say(
        "An attack that succeeds shows that what left tells so much. One that fails shows nothing:"
        " a better one may succeed."
    )
    return section


def _canaries(shown: float | None, claimed: float, broken: float) -> str:
    """What planted records show of the noise in private training."""
    how = "The noise was tested with planted records that nothing else looks like (canaries)"
    if shown is None:
        return (
            f"{how}. The test would not have noticed a tenth of the noise ({broken:.2f}), so it"
            " says nothing."
        )
    verdict = "which refutes the claim" if shown > claimed else "which does not refute it"
    return (
        f"{how}: they show an epsilon of at least {shown:.2f} where {claimed:.2f} is claimed,"
        f" {verdict}."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
