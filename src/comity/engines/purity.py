"""The rules for a method's code at parties, checked while it runs: it writes to nothing that it
receives, and all its random numbers come from keys.

A method that breaks them gives other results on other engines or in a second run. The checks
compare version counters and the states of generators, which takes microseconds. Only when one of
them has failed, the code runs once more, line by line, to find the line.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from inspect import iscoroutine
from operator import is_
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from comity.base.record import is_record
from comity.errors import PACKAGE, ComityError, is_authors_file
from comity.training.descent import fold, train
from comity.training.requests import FoldRequest


class LineFinder:
    """A context manager that finds the first line of a method's file after which `changed()`.

    `place` is then that line, as in "local, mine.py:12"; empty if there was none.
    """

    def __init__(self, changed: Callable[[], bool]) -> None:
        self.place = ""
        self._changed = changed
        self._last = ""
        self._outer: Any = None

    def __enter__(self) -> LineFinder:
        self._outer = sys.gettrace()
        sys.settrace(self._enter_frame)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: object, traceback: TracebackType | None
    ) -> None:
        sys.settrace(self._outer)

    def _enter_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._step if is_authors_file(frame.f_code.co_filename) else None

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self.place and self._last and self._changed():
            self.place = self._last
        self._last = f"{_name(frame)}, {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        return self._step


def _name(frame: FrameType) -> str:
    """The function that a frame belongs to; of a comprehension, that around it."""
    outer = frame
    while outer.f_code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
        if outer.f_back is None:
            break
        outer = outer.f_back
    return outer.f_code.co_name


def in_line(place: str) -> str:
    """A place for a message: " (local, mine.py:12)"; empty if it is unknown."""
    return f" ({place})" if place else ""


# Writing to what was received.


_CONTENTS: ContextVar[bool] = ContextVar("comity_compares_contents", default=False)
"""Whether values are compared: only `comity check` does, around a whole run of its own."""


@contextmanager
def comparing_contents() -> Iterator[None]:
    """Compare all values of received tensors, and not only their version counters.

    Writes through `.data` or `.numpy()` leave the counters as they are. To compare values takes too
    long for large models, so `comity check` does it for tiny ones.
    """
    token = _CONTENTS.set(True)
    try:
        yield
    finally:
        _CONTENTS.reset(token)


def _bytes_of(tensor: Tensor) -> bytes:
    """The values of a tensor as bytes, in which NaN equals itself."""
    flat = tensor.detach().cpu().reshape(-1).contiguous()
    return flat.view(torch.uint8).numpy().tobytes()


def _version(tensor: Tensor) -> object:
    return tensor._version


class Unwritten:
    """Values that a function must leave as they are, by what they are called in a message.

    All tensors, dicts and lists are found once, so that a comparison is quick.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._mark = _bytes_of if _CONTENTS.get() else _version
        """What of a tensor tells whether it was written to: its version, or all of its values."""
        self._tensors: list[Tensor] = []
        self._containers: list[tuple[Collection[Any], list[Any]]] = []
        """The content of each dict (its values) and list, and what is in it now."""
        for tree in values.values():
            self._find(tree)
        self._marks = [self._mark(tensor) for tensor in self._tensors]

    def _find(self, tree: Any) -> None:
        """Find all tensors, dicts and lists in a tree."""
        if isinstance(tree, Tensor):
            self._add(tree)
        elif isinstance(tree, dict):
            self._find_in(tree.values(), mutable=True)
        elif isinstance(tree, list | tuple):
            self._find_in(tree, mutable=isinstance(tree, list))
        elif is_record(tree):
            self._find_in(vars(tree).values(), mutable=False)

    def _find_in(self, items: Collection[Any], mutable: bool) -> None:
        if mutable:
            self._containers.append((items, list(items)))
        for item in items:
            if isinstance(item, Tensor):
                self._add(item)
            elif item is not None:
                self._find(item)

    def _add(self, tensor: Tensor) -> None:
        if not tensor.is_inference():  # such a tensor has no counter
            self._tensors.append(tensor)

    def restore(self) -> None:
        """Write the values back that tensors had, where these were compared."""
        for tensor, mark in zip(self._tensors, self._marks, strict=True):
            if isinstance(mark, bytes) and mark:
                values = torch.frombuffer(bytearray(mark), dtype=tensor.dtype)
                tensor.data.copy_(values.reshape(tensor.shape))

    def unchanged(self) -> bool:
        """Whether nothing was written to, replaced, added or removed since."""
        return [self._mark(tensor) for tensor in self._tensors] == self._marks and all(
            len(items) == len(before) and all(map(is_, items, before))
            for items, before in self._containers
        )

    def changed_value(self) -> str:
        """What was written to, as in "its message, theta['weight']".

        Tensors that came from another process have one counter together: then only the message
        is named.
        """
        before = dict(zip(map(id, self._tensors), self._marks, strict=True))
        changed = {
            name: [
                pytree.keystr(path).lstrip(".")
                for path, leaf in pytree.tree_flatten_with_path(tree)[0]
                if isinstance(leaf, Tensor)
                and not leaf.is_inference()
                and before.get(id(leaf)) != self._mark(leaf)
            ]
            for name, tree in self.values.items()
        }
        names = [name for name, paths in changed.items() if paths] or list(self.values)
        paths = [path for paths in changed.values() for path in paths]
        return f"{names[0]}, {paths[0]}" if len(paths) == 1 else " or ".join(names)


class WriteCheck:
    """Refuses a function that wrote to its arguments.

    `start` calls the function once more with the same arguments, to find the line. `layers` is the
    random stream of its layers.
    """

    def __init__(
        self,
        function: str,
        start: Callable[[], Any],
        values: Mapping[str, Any],
        layers: AbstractContextManager[object] | None = None,
    ) -> None:
        self._function = function
        self._start = start
        self._layers = layers or nullcontext()
        self._unwritten = Unwritten(values)

    def check(self) -> None:
        """Raise ComityError if a value was written to since."""
        if self._unwritten.unchanged():
            return
        value = self._unwritten.changed_value()
        raise ComityError(
            f"{self._function} wrote to {value}{in_line(self._find_line())}: create a new tensor or"
            " dict instead, since other parties and the server may read the same one."
        )

    def _find_line(self) -> str:
        self._unwritten.restore()  # a value that is written twice changes only once
        again = Unwritten(self._unwritten.values)
        finder = LineFinder(lambda: not again.unchanged())
        with suppress(Exception), self._layers, finder:
            _run_to_end(self._start())
        return finder.place


def _run_to_end(result: Any) -> None:
    """Run a party function to its end, if it is one: each training alone."""
    if not iscoroutine(result):
        return
    fitted: Any = None
    while True:  # until StopIteration
        request = result.send(fitted)
        fitted = fold(request) if isinstance(request, FoldRequest) else train(request)


# Drawing from global generators.


GENERATORS = ("torch's", "numpy's", "Python's")


def generator_states() -> tuple[object, ...]:
    """The states of the global generators of torch (on the CPU), numpy and Python."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - reads, draws nothing
    position = numpy_state["state"]
    return (
        torch.get_rng_state().numpy().tobytes(),
        (position["key"].tobytes(), position["pos"], numpy_state["has_gauss"])
        if "key" in position
        else repr(position),
        random.getstate(),
    )


def drawn_from(before: tuple[object, ...]) -> str:
    """Whose global generator has drawn since: "torch's", "numpy's" or "Python's"; empty if none."""
    now = generator_states()
    return next((whose for whose, a, b in zip(GENERATORS, before, now, strict=True) if a != b), "")


class UnkeyedDraw(ComityError):
    """A method drew random numbers from a global generator.

    `place` is the line, if it is known, and `key` how code there gets a key.
    """

    def __init__(self, function: str, whose: str, place: str, key: str) -> None:
        self.function, self.whose, self.place, self.key = function, whose, place, key
        instead = f"generator={key}.generator()" if whose == GENERATORS[0] else f"{key}.numpy()"
        super().__init__(
            f"{function} drew random numbers from {whose} global generator{in_line(place)}, so a"
            f" second run would differ: draw with {instead}."
        )


# Generators without a seed.


class UnseededFinder:
    """A context manager that finds the lines of a method's file that seed a generator from the
    system, as `numpy.random.default_rng()`, `random.Random()` and `torch.Generator().seed()` do.

    `places` has them as in "local, mine.py:12". Such a generator is of use where results do not
    depend on it, for the name of a temporary file for instance.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        self._outer: Any = None

    def __enter__(self) -> UnseededFinder:
        self._outer = sys.getprofile()
        sys.setprofile(self._observe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: object, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(self._outer)

    def _observe(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call":
            seeds = arg is os.urandom or (
                getattr(arg, "__name__", "") == "seed"
                and isinstance(getattr(arg, "__self__", None), torch.Generator)
            )
        elif event == "call":
            is_seed = frame.f_code is random.Random.seed.__code__
            seeds = is_seed and frame.f_locals.get("a") is None
        else:
            return
        if seeds and (place := _calling_line(frame)) and place not in self.places:
            self.places.append(place)


def _calling_line(frame: FrameType) -> str:
    """The line of a method's file that a call comes from; empty if it comes from Comity itself."""
    outer: FrameType | None = frame
    while outer is not None:
        file = outer.f_code.co_filename
        if is_authors_file(file):
            return f"{_name(outer)}, {Path(file).name}:{outer.f_lineno}"
        if PACKAGE in Path(file).parents:
            return ""
        outer = outer.f_back
    return ""
