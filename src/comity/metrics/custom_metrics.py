"""A user's own metric: one function of what is true and what a model answered, from a file or given
from Python.

It is judged by its contract wherever it is asked: one number between `low` and 1 for any answers,
or None where samples of these labels have no such figure. Gains are worked out from answers that
were written down, so a function of answers is all it can be.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from comity.errors import UsageError, quote
from comity.metrics.metrics import METRICS, TWO, Metric
from comity.plugins import from_file, is_code
from comity.text import first_paragraph

Function = Callable[..., Any]
GIVEN = "given:"
"""How settings begin that name a function which was given from Python."""
DRAWS = 500
"""Drawings for an interval: fewer than for Comity's metrics, as a user's function is called for
each of them.
"""
TAKEN = {
    "loss", "silence", "algorithm", "dataset", "partition", "parties", "without", "seed", "model", "metric", "newcomers",
    "diverged", "absent", "bytes", "seconds", "rounds", "steps", "server_steps", "remarks", "discarded", "privacy",
    "cautions", "classes", "too_few", "withheld",
}  # fmt: skip
"""What else has such a name in a run's tables and its summary."""


@dataclass(frozen=True)
class OwnMetric:
    """A function of a user's, with what must be known of its figures; it can be called as before."""

    function: Function
    name: str
    about: str
    low: float = 0.0

    def __call__(self, *answers: Any) -> Any:
        return self.function(*answers)

    @property
    def scored(self) -> bool:
        """Whether it wants scores too, which are known for two classes only."""
        try:
            wanted = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # of something that is not written in Python
            return False
        return (
            sum(
                p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                for p in wanted
            )
            > TWO
        )

    def figure(self, *answers: Any) -> float | None:
        """The figure of these answers, if it keeps the contract."""
        try:
            found = self.function(*answers)
        except Exception as why:
            raise UsageError(f"metric {self.name} failed: {type(why).__name__}: {why}") from why
        if found is None:
            return None
        if np.ndim(found) != 0 or np.asarray(found).dtype.kind not in "fiub":
            what = f"an array of shape {np.shape(found)}" if np.ndim(found) else quote(found)
            raise UsageError(f"metric {self.name} must give one number (or None), but gave {what}.")
        value = float(found)
        if not math.isfinite(value):
            raise UsageError(
                f"metric {self.name} gave {value} for {len(answers[0])} samples: let it say what it"
                " is there (0, say), or return None where samples of these labels have no figure,"
                " whatever is answered."
            )
        if not self.low - 1e-9 <= value <= 1 + 1e-9:
            raise UsageError(
                f"metric {self.name} gave {value:g}, which is not between {self.low:g} and 1: say"
                " how low it can be with @comity.metric(low=...), and divide by the most that it"
                " can be if that is more than 1."
            )
        return min(1.0, max(self.low, value))


@overload
def metric(function: Function, /, *, name: str = ..., low: float = ...) -> OwnMetric: ...
@overload
def metric(*, name: str = ..., low: float = ...) -> Callable[[Function], OwnMetric]: ...
def metric(
    function: Function | None = None, /, *, name: str = "", low: float = 0.0
) -> OwnMetric | Callable[[Function], OwnMetric]:
    """A metric of one's own: a function of numpy arrays `(truth, answer)`, the classes by their
    numbers, that gives one number.

    More is better, and it lies between `low` (0, -1 or -inf) and 1, as people read it in
    hundredths: of an error return what is left, `1 - error`. It returns None where samples of these
    labels have no figure. With a third argument it also gets, for two classes, by how much the
    second one's score is the larger.

    Examples:
        >>> import comity
        >>> @comity.metric
        ... def near(truth, answer):
        ...     "the share of answers that are off by one at most"
        ...     return (abs(truth - answer) <= 1).mean()
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> result = comity.run("fedavg", fed, rounds=1, model="linear", metric=near)
        >>> result.summary["metric"], 0 <= result.summary["near"]["mean"] <= 1
        ('near', True)
    """
    if function is None:
        return lambda given: metric(given, name=name, low=low)
    if not callable(function):
        raise UsageError(f"A metric is a function of (truth, answer), not {quote(function)}.")
    if low not in (0, -1, -math.inf):
        raise UsageError(f"A metric's low is 0, -1 or -inf, not {quote(low)}.")
    display_name = name or str(getattr(function, "__name__", type(function).__name__)).strip("<>")
    about = first_paragraph(inspect.getdoc(function) or "a metric of the user's own").rstrip(".")
    return OwnMetric(function, display_name, about, low)


def _checked(name: str) -> str:
    """A name that can stand in tables beside all others."""
    plain = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z]\w{0,39}", plain, re.ASCII):
        raise UsageError(
            f"A metric cannot be called {quote(name)}: use up to 40 letters, digits and"
            " underscores."
        )
    if plain in METRICS or plain in TAKEN:
        raise UsageError(
            f"A metric cannot be called {plain!r}, as something else is: give it another, with"
            " @comity.metric(name=...)."
        )
    return plain


# What is known in this process, by its name and by what settings call it.


def is_own(key: str) -> bool:
    """Whether settings name a user's own metric."""
    return is_code(key) or key.startswith(GIVEN)


def give(function: Function) -> str:
    """Make a function known; what settings call it tells it from others of its name."""
    own = function if isinstance(function, OwnMetric) else metric(function)
    key = f"{GIVEN}{_checked(own.name)}:{_digest(own)}"
    _know(key, own)
    return key


def use(key: str) -> Metric:
    """The metric that settings name; a user's file is run."""
    if is_code(key):
        own = from_file(key, "metric")
        own = own if isinstance(own, OwnMetric) else metric(own, name=Path(key).stem)
        _know(key, replace(own, name=Path(key).stem) if own.name == "metric" else own)
    if key.startswith(GIVEN) and (key not in METRICS.own or not METRICS.own[key].known):
        raise UsageError(
            f"The metric {key.split(':')[1]} was given from Python as a function: give the same one"
            " again, with metric=... (what else is known of it is in the run's files)."
        )
    return METRICS[key]


def describe(key: str) -> dict[str, Any] | None:
    """What env.json keeps of a user's own metric, so that the run can be read where its function is
    not.
    """
    known = METRICS[key]
    return (
        {name: getattr(known, name) for name in ("name", "about", "bounded")}
        if is_own(key)
        else None
    )


def described(key: str, told: Mapping[str, Any]) -> Metric:
    """A metric of which only the description is here: figures that were written down can be shown,
    but none worked out.
    """
    name, about, bounded = str(told["name"]), str(told["about"]), bool(told["bounded"])
    known = METRICS.own.get(key) or METRICS.own.get(_checked(name))
    if known is None:
        known = Metric(name, _title(name), about, _nothing, bounded=bounded, known=False)
    if (known.name, known.about, known.bounded) != (name, about, bounded):
        raise UsageError(
            f"There are two metrics called {name} here, which differ: look at their runs one by"
            " one."
        )
    METRICS.own |= {key: known, name: known}
    return known


def _know(key: str, own: OwnMetric) -> None:
    own = replace(own, name=_checked(own.name))
    fits = (lambda classes: classes == TWO) if own.scored else (lambda classes: classes > 0)
    made = Metric(
        own.name,
        _title(own.name),
        own.about,
        figures=partial(_figures, own),
        needs=lambda y: (
            len(y) > 0
            and own.figure(*_arrays(own, y.numpy(), y.numpy(), y.double().numpy() - 0.5))
            is not None
        ),
        fits=fits,
        bounded=own.low == 0,
        draws=DRAWS,
    )
    METRICS.own |= {key: made, own.name: made}


def _title(name: str) -> str:
    return name.replace("_", " ")


def _arrays(own: OwnMetric, *arrays: Any) -> tuple[Any, ...]:
    return arrays if own.scored else arrays[:TWO]


def _figures(own: OwnMetric, scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """A figure for each row of weights: the function is called with each sample as often as it
    counts.
    """
    score = (
        (scores[:, 1] - scores[:, 0]).double() if scores.shape[1] == TWO else torch.zeros(len(y))
    )
    arrays = _arrays(own, y.numpy(), scores.argmax(1).numpy(), score.numpy())
    found = []
    for times in weights.long().numpy():
        drawn = np.repeat(np.arange(len(y)), times)
        found.append(own.figure(*(array[drawn] for array in arrays)))
    return torch.tensor([math.nan if one is None else one for one in found], dtype=weights.dtype)


def _nothing(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return torch.full((len(weights),), math.nan, dtype=weights.dtype)


def _digest(own: OwnMetric) -> str:
    """A short name for a function as it is written."""
    try:
        text = inspect.getsource(own.function)
    except (OSError, TypeError):
        code = getattr(own.function, "__code__", None)
        text = repr((code.co_code, code.co_names)) if code else repr(type(own.function))
    return blake2b(repr((text, own.low)).encode(), digest_size=4).hexdigest()
