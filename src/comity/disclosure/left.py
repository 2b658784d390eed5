"""Every kind of value that left a party: what it is, how much, to whom, how often, and what
protects it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_origin

import torch

from comity.base.declared import declared
from comity.base.record import Params
from comity.core.release import KEPT, NEIGHBOURS, UNITS, Asked, releases_of, reply_fields
from comity.core.signature import party_functions, records_in, sealed_fields, signature
from comity.core.validate import shapes_on_wire
from comity.core.wrapper import chain
from comity.disclosure.sources import Source, to_server
from comity.disclosure.words import KINDS, Behind, Meaning, meaning
from comity.privacy.account import AGAINST_SERVER, AGAINST_PARTIES, PrivacyCharge
from comity.training.task import LearningTask
from comity.wire.ledger import Charge

NOTHING = "nothing: it left as it is"
INTRODUCED, SCALED = "introduce", "scale"
EVALUATIONS = {
    "evaluate": (
        "how good the party's model is: on validation and test records, how many are answered right"
        " and how wrong it is"
    ),
    "alone": "how good a model is that was trained on this party's records alone: the same figures",
}


@dataclass(frozen=True)
class Left:
    """A kind of value that left."""

    words: str
    name: str
    """Its technical name, as in Model.theta."""
    form: str
    """Its shape, in words."""
    records: str
    """What records are behind it."""
    rows: tuple[Charge, ...]
    """The rows of the ledger of the messages that it was in."""
    together: tuple[str, ...]
    """The names of all that was in the same messages."""
    route: str
    """To whom, where `rows` do not tell."""
    protection: str
    open: bool
    """Whether nothing protects it from whoever gets it."""
    training: bool = True
    """Whether it is part of what the method itself sends, and the account keeps."""

    mixed: bool = False
    """Whether the ledger counts these messages together with others."""

    @property
    def display_name(self) -> str:
        """In words, with its technical name."""
        return f"{self.words} ({self.name})"


def what_left(source: Source) -> list[Left]:
    """All kinds of values that left the party, those without protection first."""
    found = [*_sent_by_works(source), *_made_known(source)]
    found.sort(key=lambda one: not one.open)
    return [*found, *_evaluated(source), *_introduced(source)]


# What the method sends.


@dataclass(frozen=True)
class SentMessage:
    """What works send: the same fields by the same way. Methods that ask for one thing in several
    works are one message.
    """

    works: tuple[str, ...]
    names: tuple[str, ...]
    rows: tuple[Charge, ...]
    sealed: bool


def _sent_by_works(source: Source) -> list[Left]:
    outermost = source.server_run.algorithm
    names = list(dict.fromkeys(name for _, name in party_functions(outermost)))
    sealing = [name for name in names if _sealed_of(source, name)]
    found: list[SentMessage] = []
    for function in names:
        sealed = _sealed_of(source, function)
        plain = [name for name in _declared(source, function) if name not in sealed]
        found += _message(source, function, plain, to_server(source.sent, function), False)
        found += (
            _message(source, function, sealed, _sealed_rows(source, function, sealing), True)
            if sealed
            else []
        )
    known = {(function, name) for function in names for name in _declared(source, function)}
    others = {
        (row.call, name): None for row in _against(source, AGAINST_SERVER) for name in _names(row)
    }
    for function, name in others:
        if (function, name) not in known and function != INTRODUCED:
            rows = (
                []
                if name == KEPT
                else to_server(source.sent, function, "setup" if function == SCALED else "up")
            )
            found.append(SentMessage((function,), (name,), tuple(rows), False))
    mixed = source.place != "site" and len(sealing) > 1
    left = [(one, _left(source, one, name)) for one in _merged(found) for name in one.names]
    return [replace(each, mixed=mixed and one.sealed) for one, each in left]


def _message(
    source: Source, function: str, names: Sequence[str], rows: list[Charge], sealed: bool
) -> list[SentMessage]:
    """The message of a work, if there was one, with its fields but for those that were empty
    throughout.
    """
    noted = {
        name
        for row in _against(source, AGAINST_SERVER)
        if row.call == function
        for name in _names(row)
    }

    def may_be_there(name: str) -> bool:
        return sealed or (
            _tells_nothing(source, function, name)
            and _is_sent(source, _meaning(source, function, name))
        )

    there = [name for name in names if name in noted or (rows and may_be_there(name))]
    if rows and not there:
        there = list(names) or ["message"]
    return [SentMessage((function,), tuple(there), tuple(rows), sealed)] if there else []


def _merged(found: list[SentMessage]) -> list[SentMessage]:
    """Messages with the same fields as one; what is no record's field means something else in each
    work.
    """
    made: dict[tuple[object, ...], SentMessage] = {}
    for one in found:
        key = one.names, one.sealed, None if all("." in name for name in one.names) else one.works
        before = made.get(key)
        more = tuple(row for row in one.rows if not before or row not in before.rows)
        made[key] = (
            replace(before, works=before.works + one.works, rows=before.rows + more)
            if before
            else one
        )
    return list(made.values())


def _left(source: Source, message: SentMessage, name: str) -> Left:
    known = _meaning(source, message.works[0], name)
    protection, open_ = _protection(source, message.works, name)
    empty = message.sealed and not _is_sent(source, known)
    words = (
        f"{known.words}; by the method's settings there is none of it in the parcels"
        if empty
        else known.words
    )
    form = _form(source, message.works[0], name) if name != KEPT else "none"
    return Left(
        words,
        name,
        form,
        _records(source, known.behind),
        message.rows,
        message.names,
        "" if name == KEPT else "to the server",
        protection,
        open_ and not empty,
    )


def _is_sent(source: Source, known: Meaning) -> bool:
    """Whether the method, as it is set, says that its parties send things of that kind."""
    return not known.kind or any(
        known.kind in one.leaves for one in chain(source.server_run.algorithm)
    )


def _declared(source: Source, function: str) -> list[str]:
    outermost = source.server_run.algorithm
    return list(
        dict.fromkeys(
            name for place in _places(source, function) for name in reply_fields(outermost, *place)
        )
    )


def _sealed_of(source: Source, function: str) -> list[str]:
    outermost = source.server_run.algorithm
    return list(
        dict.fromkeys(
            name for place in _places(source, function) for name in sealed_fields(outermost, *place)
        )
    )


def _places(source: Source, function: str) -> list[tuple[int, str]]:
    return [place for place in party_functions(source.server_run.algorithm) if place[1] == function]


def _sealed_rows(source: Source, function: str, sealing: list[str]) -> list[Charge]:
    """The rows of the ledger for what a work sealed. A site charges parcels to the work that seals
    them, a server to the one that they are opened in: there those of several works are not told
    apart.
    """
    rows = [row for row in source.sent if row.kind == "peer"]
    return (
        rows
        if source.place != "site" or len(sealing) == 1
        else [row for row in rows if row.call == function]
    )


def _against(source: Source, whom: str) -> list[PrivacyCharge]:
    return [row for row in source.spent if row.against == whom]


def _names(row: PrivacyCharge) -> list[str]:
    """The fields of a row of privacy.csv: a release may be of several."""
    return [row.release] if row.to_release() is None else row.release.split(", ")


def _releases(source: Source, function: str) -> dict[str, Any]:
    server_run = source.server_run
    i = server_run.common.seats.names.index(source.party)
    asked = Asked(server_run.info, i, source.said.train, server_run.info.training)
    found: dict[str, Any] = {}
    for depth, name in _places(source, function):
        found |= releases_of(server_run.algorithm, depth, name, asked)
    return found


def _tells_nothing(source: Source, function: str, name: str) -> bool:
    """Whether a method declares of a field that it depends on nobody's data."""
    releases = _releases(source, function).get(name)
    return releases is not None and not releases


def _protection(
    source: Source, works: Sequence[str], name: str, whom: str = AGAINST_SERVER
) -> tuple[str, bool]:
    """What protects a field that works send, in words, and whether nothing does."""
    rows = [row for row in _against(source, whom) if row.call in works and name in _names(row)]
    if any(row.to_release() is None or not row.noise for row in rows):
        return NOTHING, True
    if rows:
        return behind_noise(rows), False
    if all(_tells_nothing(source, function, name) for function in works):
        return (
            "nothing, and nothing is needed: the method declares that it depends on no record",
            False,
        )
    return "nothing that the run's account knows of", True


def behind_noise(rows: Sequence[PrivacyCharge]) -> str:
    """The noise of some rows of privacy.csv, in words: a sentence for each kind of it."""
    kinds: dict[tuple[object, ...], list[PrivacyCharge]] = {}
    for row in rows:
        kinds.setdefault(
            (row.mechanism, row.unit, row.neighbours, row.rate, row.drawn_of, row.release), []
        ).append(row)
    return ". And ".join(map(_one_kind, kinds.values()))


def _one_kind(rows: Sequence[PrivacyCharge]) -> str:
    first = rows[0]
    several = len(_names(first)) > 1
    once = f". One noise for {first.release} together, counted once" if several else ""
    each = sorted({f"{row.epsilon:.3g}" for row in rows}, key=float)
    span = each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"
    kind = {
        "gaussian": "noise from a bell curve (Gaussian)",
        "laplace": "noise from a Laplace distribution",
    }[first.mechanism]
    ratio = sorted({row.noise / row.sensitivity if row.sensitivity else math.inf for row in rows})
    size = f"{ratio[0]:.3g}" if ratio[0] == ratio[-1] else f"{ratio[0]:.3g} to {ratio[-1]:.3g}"
    unit = UNITS[first.unit]  # type: ignore[index]
    drawn = ""
    if first.rate < 1:
        drawn = (
            f"; in each of {first.steps:,} steps it has a chance of {first.rate:.2%} to take part"
        )
    elif first.drawn_of:
        drawn = f"; {first.drawn} of {first.drawn_of} are drawn each time"
    return (
        f"{kind}, {size} times as wide as the most that {unit} can change it by{drawn}. Protects"
        f" {unit}: "
        f"{NEIGHBOURS[first.neighbours]}. Epsilon (how much can be told at most) {span} at delta (the chance that it is more) "  # type: ignore[index]
        f"{first.delta:g}, each time; charged {len(rows):,}"
        f" {'time' if len(rows) == 1 else 'times'}{once}"
    )


# What they are.


def _meaning(source: Source, function: str, name: str) -> Meaning:
    """What a field is. The words are those of Comity's own methods: another's record may have a
    name like one of theirs.
    """
    outermost = source.server_run.algorithm
    homes = [type(chain(outermost)[depth]).__module__ for depth, _ in _places(source, function)]
    for depth, place in _places(source, function):
        for kind in records_in(signature(outermost, depth, place).reply):
            if name.startswith(f"{kind.__name__}."):
                homes = [kind.__module__]
    known = meaning(function, name)
    if all(home.startswith("comity.") for home in homes):
        return known
    kinds = kinds_of(source)
    return Meaning(f"a value of a method of somebody's own, whose parties send {kinds}", "")


def kinds_of(source: Source) -> str:
    """What kinds of things the method has parties send, in words."""
    kinds = sorted({kind for one in chain(source.server_run.algorithm) for kind in one.leaves})
    return "; ".join(KINDS.get(kind, kind) for kind in kinds) or "nothing of their data"


def _records(source: Source, behind: Behind) -> str:
    said = source.said
    return {
        "training": f"all {said.train:,} training records may be behind it",
        "by class": (
            f"the {said.train:,} training records, each class by itself; how many are of each this"
            " page does not say"
        ),
        "validation": f"the {said.validation:,} validation records",
        "nothing": "none",
    }[behind]


def _form(source: Source, function: str, name: str) -> str:
    """The shape of a field, in words."""
    server_run = source.server_run
    task = server_run.common.task(source.party)
    shapes: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for depth, place in _places(source, function):
        shapes |= shapes_on_wire(server_run.algorithm, depth, task, len(server_run.info.names))
        reply = signature(server_run.algorithm, depth, place).reply
        hints |= {
            f"{kind.__name__}.{f.name}": declared(kind, f)
            for kind in records_in(reply)
            for f in fields(kind)
        }
        hints.setdefault("message", reply)
    if name in shapes:
        like = shapes[name]
        return (
            _weights(like, "")
            if isinstance(like, LearningTask)
            else "numbers, as many as there are"
            if like is None
            else _table(like)
        )
    hint = hints.get(name)
    if hint == Params:
        return _weights(task, "at most ")
    if hint in (int, float, bool, float | None, int | None):
        return "one number"
    if get_origin(hint) is dict:
        return "a number for each party that it is about"
    if name == "sums and squares of columns":
        return f"3 numbers for each of {server_run.info.shared_columns} columns"
    return "numbers; how many the method does not say"


def _weights(task: LearningTask, before: str) -> str:
    count = sum(
        math.prod(shape) for name, (shape, _) in task.shapes.items() if name not in task.private
    )
    return f"{before}{count:,} numbers, in the form of the network {task.network.name}"


def _table(shape: tuple[int, ...]) -> str:
    sides = [side for side in shape if side != -1]
    inner = " x ".join(map(str, sides))
    if -1 not in shape:
        count = torch.Size(shape).numel()
        return f"{inner} numbers" + (f", {count:,} in all" if len(sides) > 1 else "")
    if not sides:
        return "a list of numbers, as long as needed"
    return f"{'rows' if len(sides) == 1 else 'tables'} of {inner} numbers, as many as are sent"


# What leaves beside that.


def _made_known(source: Source) -> list[Left]:
    """What the server makes known of what it got, where it adds noise itself."""
    found = []
    for name in dict.fromkeys(
        name for row in _against(source, AGAINST_PARTIES) for name in _names(row)
    ):
        protection, open_ = _protection(source, ["server"], name, AGAINST_PARTIES)
        words = f"made by the server of all parties' values: {meaning('server', name).words}"
        route = "from the server to all parties: the server itself gets the value above"
        known = _records(source, "training")
        found.append(
            Left(
                words,
                name,
                "as it came to the server",
                known,
                (),
                (name,),
                route,
                protection,
                open_,
            )
        )
    return found


def _evaluated(source: Source) -> list[Left]:
    found, said = [], source.said
    for function in dict.fromkeys(row.call for row in source.sent if row.kind == "eval"):
        words = EVALUATIONS.get(function, "figures of how good a model is")
        if function == "evaluate" and source.answers_left is not False:
            sure = (
                "in the last round"
                if source.answers_left
                else "in the last round perhaps (this folder does not tell)"
            )
            words += f"; and {sure} for each test record the right answer and the model's"
        form = "a few numbers each time" + (
            f", and {said.test:,} pairs of answers" if source.answers_left else ""
        )
        records = f"{said.validation:,} validation records and {said.test:,} test records"
        rows = [row for row in source.sent if row.kind == "eval" and row.call == function]
        found.append(_beside(words, function, form, records, rows))
    return found


def _introduced(source: Source) -> list[Left]:
    said = source.said
    if source.place == "simulation":
        words, form = (
            "the party's name, how many training records it has, and whom it wishes to learn from",
            "a name and a number",
        )
    else:
        words = (
            "the party's name; how many training, validation and test records it has; whether they"
            " are enough to be judged by;"
            f" {'how many training records there are of each class; ' if said.counts is not None else ''}the"
            " form of a record, the names of the classes, and by which constants inputs are scaled"
        )
        form = "names and a few numbers"
    records = (
        f"{said.train:,} training, {said.validation:,} validation and {said.test:,} test records"
    )
    rows = [row for row in source.sent if row.kind == "setup" and row.call == INTRODUCED]
    return [_beside(words, INTRODUCED, form, records, rows)]


def _beside(words: str, name: str, form: str, records: str, rows: Iterable[Charge]) -> Left:
    return Left(
        words,
        name,
        form,
        records,
        tuple(rows),
        (name,),
        "to the server",
        NOTHING,
        True,
        training=False,
    )
