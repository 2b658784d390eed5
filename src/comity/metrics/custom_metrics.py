"""Custom metrics: a user's function of labels and predictions, from a file or passed from Python.

Every call of the function is checked: it must return one number between `low` and 1 for any
predictions, or None where the metric is not defined for the labels. Gains are computed from stored
predictions, so a custom metric can be a function of predictions only.
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
PYTHON_PREFIX = "given:"
"""The prefix of a setting `metric` that names a function passed from Python."""
DRAWS = 500
"""Bootstrap samples of an interval: fewer than for Comity's metrics, as the user's function is
called once for each.
"""
RESERVED = {
    "loss",
    "silence",
    "algorithm",
    "dataset",
    "partition",
    "parties",
    "without",
    "seed",
    "model",
    "metric",
    "calibrate",
    "newcomers",
    "diverged",
    "absent",
    "bytes",
    "seconds",
    "rounds",
    "steps",
    "server_steps",
    "plain_steps",
    "party_rounds",
    "discarded",
    "privacy",
    "warnings",
    "classes",
    "too_few",
    "withheld",
    "failed_endings",
    *("cautions", "remarks"),  # in summaries of earlier versions
}
"""Names that have another meaning in a run's tables or its summary."""


@dataclass(frozen=True)
class CustomMetric:
    """A user's function with the name, description and lower bound of its values.

    It can be called as the function itself.
    """

    function: Function
    name: str
    about: str
    low: float = 0.0

    def __call__(self, *answers: Any) -> Any:
        return self.function(*answers)

    @property
    def scored(self) -> bool:
        """Whether it takes scores as its third argument, which exist for two classes only."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # a function that is not written in Python
            return False
        positional = [
            p
            for p in parameters
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        return len(positional) > TWO

    def figure(self, *answers: Any) -> float | None:
        """Return the value for these predictions.

        Raises UsageError if the function fails, or returns no number between `low` and 1.
        """
        try:
            output = self.function(*answers)
        except Exception as why:
            raise UsageError(f"metric {self.name} failed: {type(why).__name__}: {why}") from why
        if output is None:
            return None
        if np.ndim(output) != 0 or np.asarray(output).dtype.kind not in "fiub":
            what = f"an array of shape {np.shape(output)}" if np.ndim(output) else quote(output)
            raise UsageError(f"metric {self.name} must give one number (or None), but gave {what}.")
        value = float(output)
        if not math.isfinite(value):
            raise UsageError(
                f"metric {self.name} gave {value} for {len(answers[0])} samples: return a number"
                " (such as 0), or None where the metric is not defined for these labels, whatever"
                " the predictions are."
            )
        if not self.low - 1e-9 <= value <= 1 + 1e-9:
            raise UsageError(
                f"metric {self.name} gave {value:g}, which is not between {self.low:g} and 1: set"
                " its lower bound with @comity.metric(low=...), and divide by its upper bound if"
                " that is more than 1."
            )
        return min(1.0, max(self.low, value))


@overload
def metric(function: Function, /, *, name: str = ..., low: float = ...) -> CustomMetric: ...
@overload
def metric(*, name: str = ..., low: float = ...) -> Callable[[Function], CustomMetric]: ...
def metric(
    function: Function | None = None, /, *, name: str = "", low: float = 0.0
) -> CustomMetric | Callable[[Function], CustomMetric]:
    """Define a custom metric: a function of numpy arrays `(truth, answer)` of class numbers.

    It returns one number. Higher is better, and the number lies between `low` (0, -1 or -inf) and
    1, as it is printed in percent: for an error return `1 - error`. It returns None where the
    metric is not defined for the labels. A function with a third argument also gets, for two
    classes, the second class's score minus the first's.

    Args:
        function: The function. Its name and the first paragraph of its docstring describe it.
        name: Another name.
        low: The lower bound.

    Examples:
        >>> import comity
        >>> @comity.metric
        ... def near(truth, answer):
        ...     "the fraction of predictions that are off by one at most"
        ...     return (abs(truth - answer) <= 1).mean()
        >>> fed = comity.load("digits").partition("iid", parties=2, seed=0)
        >>> result = comity.run("fedavg", fed, rounds=1, model="linear", metric=near)
        >>> result.summary["metric"], 0 <= result.summary["near"]["mean"] <= 1
        ('near', True)
    """
    if function is None:
        return lambda decorated: metric(decorated, name=name, low=low)
    if not callable(function):
        raise UsageError(f"A metric is a function of (truth, answer), not {quote(function)}.")
    if low not in (0, -1, -math.inf):
        raise UsageError(f"A metric's low is 0, -1 or -inf, not {quote(low)}.")
    display_name = name or str(getattr(function, "__name__", type(function).__name__)).strip("<>")
    about = first_paragraph(inspect.getdoc(function) or "a metric of the user's own").rstrip(".")
    return CustomMetric(function, display_name, about, low)


def _check_name(name: str) -> str:
    """Return a name as it stands in tables. Raises UsageError if it is malformed or reserved."""
    plain = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z]\w{0,39}", plain, re.ASCII):
        raise UsageError(
            f"A metric cannot be called {quote(name)}: use up to 40 letters, digits and"
            " underscores."
        )
    if plain in METRICS or plain in RESERVED:
        raise UsageError(
            f"A metric cannot be called {plain!r}, which has another meaning: choose another name"
            " with @comity.metric(name=...)."
        )
    return plain


# The metrics registered in this process, by name and by the key that settings hold.


def is_custom(key: str) -> bool:
    """Return whether a setting `metric` names a custom metric."""
    return is_code(key) or key.startswith(PYTHON_PREFIX)


def register_function(function: Function) -> str:
    """Register a function as a metric, and return its key for the setting `metric`.

    The key has a digest, which distinguishes functions of the same name.
    """
    custom = function if isinstance(function, CustomMetric) else metric(function)
    key = f"{PYTHON_PREFIX}{_check_name(custom.name)}:{_digest(custom)}"
    _register(key, custom)
    return key


def load_metric(key: str) -> Metric:
    """Return the metric that a setting names; a user's file is run.

    Raises UsageError if it is a function from Python that is not registered in this process.
    """
    if is_code(key):
        custom = from_file(key, "metric")
        custom = custom if isinstance(custom, CustomMetric) else metric(custom, name=Path(key).stem)
        _register(key, replace(custom, name=Path(key).stem) if custom.name == "metric" else custom)
    registered = METRICS.custom.get(key)
    if key.startswith(PYTHON_PREFIX) and (registered is None or not registered.has_function):
        raise UsageError(
            f"The metric {key.split(':')[1]} was given from Python as a function: give the same one"
            " again, with metric=... (the run's files hold its description only)."
        )
    return METRICS[key]


def describe(key: str) -> dict[str, Any] | None:
    """Return the description of a custom metric that env.json holds; None for Comity's metrics.

    With it, a run can be read where the function is not available.
    """
    if not is_custom(key):
        return None
    custom = METRICS[key]
    return {name: getattr(custom, name) for name in ("name", "about", "bounded")}


def register_description(key: str, description: Mapping[str, Any]) -> Metric:
    """Register a custom metric by its description, without its function.

    Its stored values can be shown, but none computed. Raises UsageError if a different metric of
    that name is registered.
    """
    name, about = str(description["name"]), str(description["about"])
    bounded = bool(description["bounded"])
    custom = METRICS.custom.get(key) or METRICS.custom.get(_check_name(name))
    if custom is None:
        custom = Metric(name, _title(name), about, _undefined, bounded=bounded, has_function=False)
    if (custom.name, custom.about, custom.bounded) != (name, about, bounded):
        raise UsageError(
            f"These runs have two different metrics called {name}: look at the runs one by one."
        )
    METRICS.custom |= {key: custom, name: custom}
    return custom


def _register(key: str, custom: CustomMetric) -> None:
    custom = replace(custom, name=_check_name(custom.name))

    def is_defined(y: Tensor) -> bool:
        """Return whether the function has a value where all predictions are right."""
        if not len(y):
            return False
        arrays = _arrays(custom, y.numpy(), y.numpy(), y.double().numpy() - 0.5)
        return custom.figure(*arrays) is not None

    fits = (lambda classes: classes == TWO) if custom.scored else (lambda classes: classes > 0)
    registered = Metric(
        custom.name,
        _title(custom.name),
        custom.about,
        figures=partial(_figures, custom),
        is_defined=is_defined,
        fits=fits,
        bounded=custom.low == 0,
        draws=DRAWS,
    )
    METRICS.custom |= {key: registered, custom.name: registered}


def _title(name: str) -> str:
    return name.replace("_", " ")


def _arrays(custom: CustomMetric, *arrays: Any) -> tuple[Any, ...]:
    return arrays if custom.scored else arrays[:TWO]


def _figures(custom: CustomMetric, scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return a value for each row of weights: samples are repeated as often as they count."""
    score = (
        (scores[:, 1] - scores[:, 0]).double() if scores.shape[1] == TWO else torch.zeros(len(y))
    )
    arrays = _arrays(custom, y.numpy(), scores.argmax(1).numpy(), score.numpy())
    figures = []
    for counts in weights.long().numpy():
        rows = np.repeat(np.arange(len(y)), counts)
        figure = custom.figure(*(array[rows] for array in arrays))
        figures.append(math.nan if figure is None else figure)
    return torch.tensor(figures, dtype=weights.dtype)


def _undefined(scores: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return torch.full((len(weights),), math.nan, dtype=weights.dtype)


def _digest(custom: CustomMetric) -> str:
    """Return a digest of a function's source, or of its code where there is no source."""
    try:
        text = inspect.getsource(custom.function)
    except (OSError, TypeError):
        code = getattr(custom.function, "__code__", None)
        text = repr((code.co_code, code.co_names)) if code else repr(type(custom.function))
    return blake2b(repr((text, custom.low)).encode(), digest_size=4).hexdigest()
