"""Finds every kind of value that left a party: what it is, how much, to whom, how often, and what
protects it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_origin

import torch

from comity.base.content import Content, record_contents
from comity.base.declared import resolve_field_type
from comity.base.record import Params
from comity.core.charging import COLUMN_SUMS
from comity.core.class_means import smallest_class_means
from comity.core.release import KEPT, NEIGHBOURS, UNITS, PartyFacts, releases_of, reply_fields
from comity.core.signature import (
    party_functions,
    records_in,
    reply_contents,
    sealed_fields,
    signature,
    wire_types,
)
from comity.core.traits import LEAVES
from comity.core.undeclared import UNDECLARED_SAMPLES
from comity.core.validate import shapes_on_wire
from comity.core.wrapper import chain
from comity.deploy.group_size import LocalData, groups
from comity.deploy.secure_costs import describe_limits
from comity.deploy.secure_server import Limits
from comity.disclosure.sources import Source, to_server
from comity.privacy.account import AGAINST_PARTIES, AGAINST_SERVER, PrivacyCharge
from comity.training.task import LearningTask
from comity.wire.ledger import SERVER, Charge

NOTHING = "nothing: it left as it is"
KINDS = {
    **LEAVES,
    "weights": "weights of a model (the numbers that training adjusts)",
    "representations": "representations of single records (what a model makes of each)",
    "gradients": "gradients (in which direction some records would change a model)",
}
"""The kinds of content that methods have parties send, with what that means."""
OUTSIDE_MESSAGES = {
    COLUMN_SUMS: Content(
        "of each column of numbers: how many, their sum, and that of their squares"
    ),
    KEPT: Content(
        "nothing by itself: this training counts because what it changed may leave later"
    ),
}
"""What the account of a run names beside the fields of messages."""
PROTOCOL = (
    "keys, encrypted shares and signatures of secure aggregation, by which the server removes the"
    " masks of a sum"
)
UNDESCRIBED = "a value that its method does not describe: ask the method's author"
INTRODUCED, SCALED = "introduce", "scale"
EVALUATIONS = {
    "evaluate": (
        "how good the party's model is: on validation and test records, how many are answered right"
        " and how wrong it is"
    ),
    "alone": "how good a model is that was trained on this party's records alone: the same figures",
}


@dataclass(frozen=True)
class SentValue:
    """A kind of value that left."""

    words: str
    name: str
    """Its technical name, for instance Model.theta."""
    form: str
    """Its shape, in words."""
    records: str
    """The records from which it was computed, in words."""
    rows: tuple[Charge, ...]
    """The rows of the ledger for the messages that contained it."""
    together: tuple[str, ...]
    """The names of all values in the same messages."""
    route: str
    """To whom it went, where `rows` do not say it."""
    protection: str
    """What protects it, in words."""
    open: bool
    """Whether nothing protects it from its recipient."""
    training: bool = True
    """Whether the method itself sends it, so that it is in the privacy account."""

    mixed: bool = False
    """Whether the ledger counts these messages together with others."""

    @property
    def display_name(self) -> str:
        """Its description with its technical name."""
        return f"{self.words} ({self.name})"


def what_left(source: Source) -> list[SentValue]:
    """All kinds of values that left the party, those without protection first."""
    by_method = [*_sent_by_functions(source), *_released_by_server(source)]
    if source.secure:
        by_method = _through_secure_aggregation(source, source.secure, by_method)
    by_method.sort(key=lambda value: not value.open)
    return [*by_method, *_evaluations(source), *_introduction(source)]


# What the method sends.


@dataclass(frozen=True)
class SentMessage:
    """A message of one or several party functions: the same fields to the same recipients."""

    functions: tuple[str, ...]
    names: tuple[str, ...]
    rows: tuple[Charge, ...]
    sealed: bool


def _sent_by_functions(source: Source) -> list[SentValue]:
    outermost = source.server_run.algorithm
    functions = list(dict.fromkeys(name for _, name in party_functions(outermost)))
    sealing = [function for function in functions if _sealed_fields(source, function)]
    messages: list[SentMessage] = []
    for function in functions:
        sealed = _sealed_fields(source, function)
        plain = [name for name in _declared(source, function) if name not in sealed]
        rows = to_server(source.sent_rows, function)
        messages += _message(source, function, plain, rows, False)
        if sealed:
            rows = _sealed_rows(source, function, sealing)
            messages += _message(source, function, sealed, rows, True)
    declared = {(function, name) for function in functions for name in _declared(source, function)}
    charged = {
        (row.call, name): None for row in _against(source, AGAINST_SERVER) for name in _names(row)
    }
    for function, name in charged:
        if (function, name) not in declared and function != INTRODUCED:
            kind = "setup" if function == SCALED else "up"
            rows = [] if name == KEPT else to_server(source.sent_rows, function, kind)
            messages.append(SentMessage((function,), (name,), tuple(rows), False))
    mixed = source.place != "site" and len(sealing) > 1
    return [
        replace(_sent_value(source, message, name), mixed=mixed and message.sealed)
        for message in _merge(messages)
        for name in message.names
    ]


def _message(
    source: Source, function: str, names: Sequence[str], rows: list[Charge], sealed: bool
) -> list[SentMessage]:
    """The message of a party function, without fields that were always empty.

    The list is empty if the function sent nothing.
    """
    charged = {
        name
        for row in _against(source, AGAINST_SERVER)
        if row.call == function
        for name in _names(row)
    }

    def may_be_sent(name: str) -> bool:
        return sealed or (
            _tells_nothing(source, function, name)
            and _is_sent(source, _content(source, function, name))
        )

    names_sent = [name for name in names if name in charged or (rows and may_be_sent(name))]
    if rows and not names_sent:
        names_sent = list(names) or ["message"]
    return [SentMessage((function,), tuple(names_sent), tuple(rows), sealed)] if names_sent else []


def _merge(messages: list[SentMessage]) -> list[SentMessage]:
    """Merge messages with the same fields.

    A value that is not the field of a record has another meaning in each party function, so that
    such messages are not merged.
    """
    merged: dict[tuple[object, ...], SentMessage] = {}
    for message in messages:
        only_record_fields = all("." in name for name in message.names)
        key = message.names, message.sealed, None if only_record_fields else message.functions
        before = merged.get(key)
        if before is None:
            merged[key] = message
            continue
        more = tuple(row for row in message.rows if row not in before.rows)
        merged[key] = replace(
            before, functions=before.functions + message.functions, rows=before.rows + more
        )
    return list(merged.values())


def _sent_value(source: Source, message: SentMessage, name: str) -> SentValue:
    content = _content(source, message.functions[0], name)
    protection, open_ = _protection(source, message.functions, name)
    empty = message.sealed and not _is_sent(source, content)
    words = (
        f"{content.words}; by the method's settings the sealed messages contain none of it"
        if empty
        else content.words
    )
    form = _form(source, message.functions[0], name) if name != KEPT else "none"
    return SentValue(
        words,
        name,
        form,
        _records(source, content, name),
        message.rows,
        message.names,
        "" if name == KEPT else "to the server",
        protection,
        open_ and not empty,
    )


def _is_sent(source: Source, content: Content) -> bool:
    """Whether the method with its settings declares that its parties send values of that kind."""
    return not content.kind or any(
        content.kind in layer.traits.leaves for layer in chain(source.server_run.algorithm)
    )


def _declared(source: Source, function: str) -> list[str]:
    outermost = source.server_run.algorithm
    return list(
        dict.fromkeys(
            name for place in _places(source, function) for name in reply_fields(outermost, *place)
        )
    )


def _sealed_fields(source: Source, function: str) -> list[str]:
    outermost = source.server_run.algorithm
    return list(
        dict.fromkeys(
            name for place in _places(source, function) for name in sealed_fields(outermost, *place)
        )
    )


def _places(source: Source, function: str) -> list[tuple[int, str]]:
    return [place for place in party_functions(source.server_run.algorithm) if place[1] == function]


def _sealed_rows(source: Source, function: str, sealing: list[str]) -> list[Charge]:
    """The rows of the ledger for the messages that a party function sealed.

    A site charges a sealed message to the function that seals it. A server charges it to the
    function that opens it, so that messages of several sealing functions cannot be separated there.
    """
    rows = [row for row in source.sent_rows if row.kind == "peer"]
    if source.place == "site" and len(sealing) > 1:
        return [row for row in rows if row.call == function]
    return rows


def _against(source: Source, whom: str) -> list[PrivacyCharge]:
    return [row for row in source.privacy_rows if row.against == whom]


def _names(row: PrivacyCharge) -> list[str]:
    """The fields of a row of privacy.csv: a release may cover several."""
    return [row.release] if row.to_release() is None else row.release.split(", ")


def _releases(source: Source, function: str) -> dict[str, Any]:
    server_run = source.server_run
    i = server_run.context.roster.names.index(source.party)
    request = PartyFacts(
        server_run.info, i, source.info.train, server_run.info.training, source.info.patients
    )
    releases: dict[str, Any] = {}
    for depth, name in _places(source, function):
        releases |= releases_of(server_run.algorithm, depth, name, request)
    return releases


def _tells_nothing(source: Source, function: str, name: str) -> bool:
    """Whether the method declares that a field depends on no data."""
    releases = _releases(source, function).get(name)
    return releases is not None and not releases


def _protection(
    source: Source, functions: Sequence[str], name: str, whom: str = AGAINST_SERVER
) -> tuple[str, bool]:
    """What protects a field of these functions, in words, and whether nothing does."""
    rows = [row for row in _against(source, whom) if row.call in functions and name in _names(row)]
    if any(row.to_release() is None or not row.noise for row in rows):
        return NOTHING, True
    if rows:
        return describe_noise(rows), False
    described = _is_described(_content(source, functions[0], name))
    if described and all(_tells_nothing(source, function, name) for function in functions):
        return (
            "nothing, and nothing is needed: the method declares that it depends on no record",
            False,
        )
    return "nothing that the run's account knows of", True


def describe_noise(rows: Sequence[PrivacyCharge]) -> str:
    """The noise of these rows of privacy.csv, with a sentence for each kind of noise."""
    kinds: dict[tuple[object, ...], list[PrivacyCharge]] = {}
    for row in rows:
        kinds.setdefault(
            (row.mechanism, row.unit, row.neighbours, row.rate, row.drawn_of, row.release), []
        ).append(row)
    return ". And ".join(map(_describe_kind, kinds.values()))


def _describe_kind(rows: Sequence[PrivacyCharge]) -> str:
    first = rows[0]
    several = len(_names(first)) > 1
    once = f". One noise for {first.release} together, counted once" if several else ""
    epsilons = sorted({f"{row.epsilon:.3g}" for row in rows}, key=float)
    span = epsilons[0] if len(epsilons) == 1 else f"{epsilons[0]} to {epsilons[-1]}"
    kind = {
        "gaussian": "noise from a bell curve (Gaussian)",
        "laplace": "noise from a Laplace distribution",
        "discrete gaussian": (
            "whole numbers from a bell curve (discrete Gaussian), of which each site adds a share,"
            " together at least"
        ),
    }[first.mechanism]
    ratios = sorted({row.noise / row.sensitivity if row.sensitivity else math.inf for row in rows})
    low, high = f"{ratios[0]:.3g}", f"{ratios[-1]:.3g}"
    size = low if ratios[0] == ratios[-1] else f"{low} to {high}"
    unit = UNITS[first.unit]  # type: ignore[index]
    neighbours = NEIGHBOURS[first.neighbours]  # type: ignore[index]
    sampling = ""
    if first.rate < 1:
        sampling = (
            f"; in each of {first.steps:,} steps it has a chance of {first.rate:.2%} to take part"
        )
    elif first.drawn_of:
        sampling = f"; {first.drawn} of {first.drawn_of} are drawn each time"
    times = "time" if len(rows) == 1 else "times"
    return (
        f"{kind}, {size} times as wide as the most that {unit} can change it by{sampling}. Protects"
        f" {unit}: {neighbours}. Epsilon (how much can be told at most) {span} at delta (the chance"
        f" that it is more) {first.delta:g}, each time; charged {len(rows):,} {times}{once}"
    )


# What they are.


def _content(source: Source, function: str, name: str) -> Content:
    """What a field of a party function's reply holds, as it is described where it is declared."""
    if name in OUTSIDE_MESSAGES:
        return OUTSIDE_MESSAGES[name]
    if name.startswith(UNDECLARED_SAMPLES):
        return Content(
            "values in the form of training records, although the method declares that parties"
            f" send {kinds_of(source)}",
            "samples",
        )
    outermost = source.server_run.algorithm
    for depth, place in _places(source, function):
        if described := reply_contents(outermost, depth, place).get(name):
            return described
    return Content(f"{UNDESCRIBED}. The method declares that parties send {kinds_of(source)}")


def _is_described(content: Content) -> bool:
    return not content.words.startswith(UNDESCRIBED)


def _content_from_server(source: Source, name: str) -> str:
    """What a field holds that the server sends, in words."""
    kinds = records_in(*wire_types(source.server_run.algorithm))
    described = (record_contents(kind).get(name) for kind in kinds)
    return next((content.words for content in described if content), UNDESCRIBED)


def kinds_of(source: Source) -> str:
    """The kinds of values that the method's parties send, in words."""
    kinds = sorted(
        {kind for layer in chain(source.server_run.algorithm) for kind in layer.traits.leaves}
    )
    return "; ".join(KINDS.get(kind, kind) for kind in kinds) or "nothing of their data"


def smallest_means(source: Source) -> dict[str, int]:
    """The least number of records behind each field with class means that left without noise.

    Where the folder does not show how many records there are of each class, it is the least number
    that the method allows.
    """
    server_run, info = source.server_run, source.info
    class_means = smallest_class_means(server_run.algorithm)
    i = server_run.context.roster.names.index(source.party)
    facts = server_run.privacy.about_party(i)
    counts = (1,) if source.class_counts is None else source.class_counts
    data = LocalData.of_counts(info.train, info.validation, counts, facts.training)
    return {
        group.field: group.size
        for group in groups(server_run.algorithm, data, facts)
        if group.field in class_means and group.size is not None
    }


def _records(source: Source, content: Content, name: str) -> str:
    info = source.info
    least = smallest_means(source).get(name) if content.behind == "by class" else None
    fewest = "" if least is None else f". The smallest of these values is of {least:,} records"
    return {
        "training": f"all {info.train:,} training records may be behind it",
        "by class": (
            f"the {info.train:,} training records, each class by itself; this page does not say"
            f" how many there are of each{fewest}"
        ),
        "validation": f"the {info.validation:,} validation records",
        "single": f"single records, of {info.train:,} training records",
        "nothing": "none",
    }[content.behind]


def _form(source: Source, function: str, name: str) -> str:
    """The shape of a field, in words."""
    server_run = source.server_run
    task = server_run.context.task(source.party)
    shapes: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for depth, place in _places(source, function):
        shapes |= shapes_on_wire(server_run.algorithm, depth, task, len(server_run.info.names))
        reply = signature(server_run.algorithm, depth, place).reply
        hints |= {
            f"{kind.__name__}.{f.name}": resolve_field_type(kind, f)
            for kind in records_in(reply)
            for f in fields(kind)
        }
        hints.setdefault("message", reply)
    if name in shapes:
        return _describe_shape(shapes[name])
    hint = hints.get(name)
    if hint == Params:
        return _describe_weights(task, "at most ")
    if hint in (int, float, bool, float | None, int | None):
        return "one number"
    if get_origin(hint) is dict:
        return "a number for each party that it is about"
    if name == COLUMN_SUMS:
        return f"3 numbers for each of {server_run.info.shared_columns} columns"
    return "numbers; how many the method does not say"


def _describe_shape(shape: LearningTask | tuple[int, ...] | None) -> str:
    if isinstance(shape, LearningTask):
        return _describe_weights(shape, "")
    return "numbers, as many as there are" if shape is None else _describe_array(shape)


def _describe_weights(task: LearningTask, before: str) -> str:
    count = sum(
        math.prod(shape) for name, (shape, _) in task.shapes.items() if name not in task.private
    )
    return f"{before}{count:,} numbers, in the form of the network {task.network.name}"


def _describe_array(shape: tuple[int, ...]) -> str:
    sides = [side for side in shape if side != -1]
    inner = " x ".join(map(str, sides))
    if -1 not in shape:
        count = torch.Size(shape).numel()
        return f"{inner} numbers" + (f", {count:,} in all" if len(sides) > 1 else "")
    if not sides:
        return "a list of numbers, as long as needed"
    return f"{'rows' if len(sides) == 1 else 'tables'} of {inner} numbers, as many as are sent"


# What secure aggregation changes.


def _through_secure_aggregation(
    source: Source, limits: Limits, values: list[SentValue]
) -> list[SentValue]:
    """The values as they left through secure aggregation, and the messages of its protocol."""
    sites = len(source.server_run.info.names)
    route = f"to the server, as part of a sum: {describe_limits(sites, limits)}"
    masked: list[SentValue] = []
    protocol: dict[tuple[Charge, ...], None] = {}
    for value in values:
        if not value.rows or value.rows[0].dst != SERVER:
            masked.append(value)
            continue
        replies = _masked_replies(source, value.rows)
        protocol[tuple(row for row in value.rows if row not in replies)] = None
        protection = f"secure aggregation hides it in the sum. On the sum: {value.protection}"
        masked.append(replace(value, rows=replies, route=route, protection=protection))
    rows = [row for rows in protocol for row in rows]
    if rows:
        masked.append(
            SentValue(
                words=PROTOCOL,
                name="secure aggregation",
                form="texts of digits",
                records="none",
                rows=tuple(rows),
                together=("secure aggregation",),
                route="to the server, and from there to the other sites",
                protection="nothing is needed: they are random, and depend on no record",
                open=False,
            )
        )
    return masked


def _masked_replies(source: Source, rows: Sequence[Charge]) -> tuple[Charge, ...]:
    """Of all messages to the server, those with a masked reply: one in each round, of as many bytes
    as the reply without a mask. All messages of a round in which no one has that size.
    """
    server_run = source.server_run
    i = server_run.context.roster.names.index(source.party)
    accounting = server_run.algorithm.accounting
    replies: list[Charge] = []
    for t in sorted({row.round for row in rows}):
        in_round = [row for row in rows if row.round == t]
        size = accounting.traffic(replace(server_run.info, round=t), [i]).up
        replies += [row for row in in_round if row.bytes == size][:1] or in_round
    return tuple(replies)


# What leaves beside that.


def _released_by_server(source: Source) -> list[SentValue]:
    """What a server that adds noise itself sends of the values that it got."""
    values = []
    charged = [name for row in _against(source, AGAINST_PARTIES) for name in _names(row)]
    for name in dict.fromkeys(charged):
        protection, is_open = _protection(source, ["server"], name, AGAINST_PARTIES)
        words = f"made by the server of all parties' values: {_content_from_server(source, name)}"
        values.append(
            SentValue(
                words=words,
                name=name,
                form="as it came to the server",
                records=_records(source, Content(words), name),
                rows=(),
                together=(name,),
                route="from the server to all parties: the server itself gets the value above",
                protection=protection,
                open=is_open,
            )
        )
    return values


def _evaluations(source: Source) -> list[SentValue]:
    values, info = [], source.info
    for function in dict.fromkeys(row.call for row in source.sent_rows if row.kind == "eval"):
        words = EVALUATIONS.get(function, "figures of how good a model is")
        if function == "evaluate" and source.outcomes_left is not False:
            when = (
                "in the last round"
                if source.outcomes_left
                else "in the last round perhaps (this folder does not tell)"
            )
            words += f"; and {when} for each test record the right answer and the model's"
        form = "a few numbers each time"
        if source.outcomes_left:
            form += f", and {info.test:,} pairs of answers"
        records = f"{info.validation:,} validation records and {info.test:,} test records"
        rows = [row for row in source.sent_rows if row.kind == "eval" and row.call == function]
        values.append(_outside_method(words, function, form, records, rows))
    return values


def _introduction(source: Source) -> list[SentValue]:
    info = source.info
    if source.place == "simulation":
        of_patients = "" if info.patients is None else ", how many patients these are of"
        words = (
            f"the party's name, how many training records it has{of_patients}, and whom it wishes"
            " to learn from"
        )
        form = "a name and a number" if info.patients is None else "a name and two numbers"
    else:
        patients = "how many patients the training records are of; "
        counts = "how many training records there are of each class; "
        words = (
            "the party's name; how many training, validation and test records it has;"
            f" {patients if info.patients is not None else ''}whether they are enough to be judged"
            f" by; {counts if info.counts is not None else ''}the form of a record, the names of"
            " the classes, and by which constants inputs are scaled"
        )
        form = "names and a few numbers"
    records = (
        f"{info.train:,} training, {info.validation:,} validation and {info.test:,} test records"
    )
    rows = [row for row in source.sent_rows if row.kind == "setup" and row.call == INTRODUCED]
    return [_outside_method(words, INTRODUCED, form, records, rows)]


def _outside_method(
    words: str, name: str, form: str, records: str, rows: Iterable[Charge]
) -> SentValue:
    """A value that leaves in every run, whatever the method sends."""
    return SentValue(
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
