"""Chooses the progress display of calls from Python: a line in a notebook, a bar on a terminal.

This module stands above both displays, as `comity.calls` does: neither imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from comity.errors import UsageError
from comity.notebook.live import LiveLine
from comity.runs.server_run import Progress, Quiet

ProgressFactory = Callable[[str], Progress]
"""Makes the progress display of a run from the run's title."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return hasattr(get_ipython() if get_ipython else None, "kernel")


@contextmanager
def show_progress(
    progress: bool | Progress | ProgressFactory | None, runs: int | None = 1, jobs: int = 1
) -> Iterator[ProgressFactory]:
    """Yield a function that makes the progress display of each run of a call.

    Args:
        progress: whether to show progress (default: only in a notebook), or the user's display: an
            object, or a function that makes one from a run's title
        runs: how many runs the call has, None if that is not known beforehand; titles of several
            runs are numbered
        jobs: how many runs take place at once

    Raises:
        UsageError: if one display is to show several runs at once, or `progress` is no display
    """
    if progress is None:
        progress = in_notebook()
    if isinstance(progress, bool):
        if progress and in_notebook():
            line = LiveLine(runs)
            try:
                yield line
            finally:
                line.clear()
        elif progress:
            from comity.cli import screen  # rich takes time to import

            yield screen.progress_of_runs(runs, jobs) if runs != 1 else screen.progress
        else:
            yield lambda title: Quiet()
    elif isinstance(progress, Progress):
        if jobs > 1:
            raise UsageError(
                "One object cannot show the progress of several runs at once: pass progress a"
                " function that makes an object from a run's title."
            )
        display = progress
        yield lambda title: display
    elif callable(progress):
        yield progress
    else:
        raise UsageError(
            "progress must be True, False, or an object with the methods begin, add_replies, round"
            f" and end, not a {type(progress).__name__}."
        )
