"""What the fields of messages hold, described where the fields are declared.

    @record
    class Judged:
        theta: Params = describe(WEIGHTS)
        loss: float = describe(Content("how wrong the model is on the training records", "means"))

The disclosure page of a run shows these words to readers who know no method. A field without a
description is shown as undescribed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Any, Literal, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Behind = Literal["training", "by class", "validation", "single", "nothing"]


class Content(NamedTuple):
    """What a field of a message holds."""

    words: str
    """In words for somebody who has never seen a message."""
    kind: str = ""
    """The kind of content, of `core.traits.LEAVES`; "" if it is of none of these."""
    behind: Behind = "training"
    """The records that it is computed from: all for training, those of each class, those for
    validation, one or a few of them ("single"), or none.
    """


WEIGHTS = Content(
    "the weights of the model, which are the numbers that training adjusts", "weights"
)
AVERAGED_PART = Content(f"{WEIGHTS.words}, as far as they are averaged", "weights")
CLASS_COUNTS = Content(
    "how many training records there are of each class (each possible answer)",
    "class counts",
    "by class",
)
CLASSES_PRESENT = Content(
    "which classes (possible answers) occur among the training records", "class counts", "by class"
)
REPRESENTATIONS = Content(
    "what the model makes of single records (representations), a row for each record",
    "representations",
    "single",
)
CLASS_MEANS = Content(
    "averages of what the model makes of the records of a class", "means", "by class"
)
OBSERVATIONS = Content(
    "averages of what the model makes of a few records of a class", "means", "by class"
)
TRAINING_LOSS = Content("how wrong a model is on the training records, on average", "means")
TRAINING_ACCURACY = Content(
    "the share of training records that the common model answers right", "weights"
)
OTHER_PARTIES = Content("the numbers of other parties", "", "nothing")


def describe(content: Content, *, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """A field of a record with a description of what it holds."""
    metadata = {"content": content}
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def describe_reply(content: Content) -> Callable[[Function], Function]:
    """Describe the reply of a party function where it is no record, a number for instance."""

    def mark(function: Function) -> Function:
        function.__reply_content__ = content  # type: ignore[attr-defined]
        return function

    return mark


def content_of(declared: Field[Any]) -> Content | None:
    """The description of a record's field; None if there is none."""
    content: Content | None = declared.metadata.get("content")
    return content


def record_contents(kind: type) -> dict[str, Content | None]:
    """The descriptions of all fields of a record type, by names as in "Model.theta"."""
    return {f"{kind.__name__}.{f.name}": content_of(f) for f in fields(kind)}


def reply_content(cls: type, function: str) -> Content | None:
    """The description of a party function's reply; that of the overridden one if it has none."""
    methods = (vars(base)[function] for base in cls.__mro__ if function in vars(base))
    described = (getattr(method, "__reply_content__", None) for method in methods)
    return next(filter(None, described), None)
