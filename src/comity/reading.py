"""The calls that read what lies in folders: `comity.open` gives it back, `comity.report` makes a
page of it, and `comity.disclose` one of what left a party.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from comity.data import Federation
from comity.errors import UsageError
from comity.metrics.custom_metrics import Function, give
from comity.models import OwnModel
from comity.runs.call_settings import check_federation
from comity.runs.folder import RunFolder
from comity.runs.result import Result
from comity.studies.compare import COMPARISON
from comity.studies.finished import Comparison, comparison_of, opened
from comity.text import escape_terminal


def open(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    model: OwnModel | None = None,
    metric: Function | None = None,
    trust: bool = False,
) -> Result | Comparison:
    """What lies in a folder: a run's `Result`, or a `Comparison`, made here, elsewhere, or by the
    command line.

    Files that are not what was written are refused. Figures need neither the data nor anybody's
    code; these are opened when a model is asked for, and code that somebody else's folder names
    runs only with `trust=True`. Data, models and metrics that were given from Python must be given
    again.

    Examples:
        >>> import comity, tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     done = comity.run("fedavg", parties=2, rounds=1, model="linear", out=f"{home}/run")
        ...     comity.open(f"{home}/run").summary == done.summary
        True
    """
    if metric is not None:
        give(metric)
    if federation is not None:
        check_federation("open", str(folder), federation)
    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"There is no folder {place}.")
    if (place / COMPARISON).exists():
        return comparison_of(place, federation, model, trust)
    if RunFolder(place).begun or RunFolder(place).remains:
        return opened(place, federation, model, trust)
    inside = sorted(str(path.parent.relative_to(place)) for path in place.rglob("config.toml"))[:3]
    more = f"; there are runs inside, as {', '.join(inside)}" if inside else ""
    raise UsageError(f"{place} holds neither a run nor a comparison{more}.")


def report(
    what: str | Path | Result | Comparison,
    out: str | Path | None = None,
    *,
    methods: Sequence[str] | None = None,
    target: float | None = None,
    quick: bool = False,
    samples: bool = True,
    figures: Literal["pdf", "svg", "png"] | None = None,
    trust: bool = False,
) -> Path:
    """Write the page of a folder, a result or a comparison, and return its path; it is one file
    that needs no network.

    Args:
        what: a folder with runs, or what `comity.run`, `compare` or `open` gave
        out: where the page goes; `report.html` in the folder unless told
        methods: those whose representations are drawn; the best three and SOLO unless told
        target: the accuracy to which rounds and bytes are counted; SOLO's unless told
        quick: only what the files say, without opening data or models
        samples: whether parties' samples may be on the page
        figures: also every chart as a file, in DIR/figures
        trust: whether files may run that somebody else's runs name
    """
    from comity.report import report as write

    if isinstance(what, Result | Comparison):
        if what.temporary and out is None:
            raise UsageError(
                "The folder of this run is temporary, and its page would go with it: say where,"
                " with out='page.html'."
            )
        what = what.folder
    if not isinstance(what, str | Path):
        raise UsageError(
            f"A page is of a folder, a result or a comparison, not of a {type(what).__name__}."
        )

    def told(text: str) -> None:
        warnings.warn(escape_terminal(text), stacklevel=4)

    return write(
        what,
        methods=methods,
        target=target,
        quick=quick,
        samples=samples,
        figures=figures,
        out=out,
        trust=trust,
        told=told,
    )


def disclose(
    what: str | Path | Result,
    party: str,
    out: str | Path | None = None,
    *,
    federation: Federation | None = None,
    model: OwnModel | None = None,
    trust: bool = False,
) -> tuple[Path, Path]:
    """Write what left a party in a finished run, for whoever answers for its data; the paths of the
    page and of the PDF.

    Args:
        what: a run's folder, or what `comity.run` or `open` gave
        party: whose page
        out: the folder for both files; the run's own unless told
        federation: the data, if they were given from Python and `what` is a folder
        model: the network, if it was given from Python and `what` is a folder
        trust: whether files may run that somebody else's run names

    Examples:
        >>> import comity, tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     done = comity.run("fedavg", parties=2, rounds=1, model="linear", out=f"{home}/run")
        ...     [path.name for path in comity.disclose(done, "p0")]
        ['disclosure-p0.html', 'disclosure-p0.pdf']
    """
    from comity.disclosure import disclose as write

    place = None if out is None else Path(out)
    if isinstance(what, Result):
        if what.temporary and place is None:
            raise UsageError(
                "The folder of this run is temporary, and its page would go with it: say where,"
                " with out='folder'."
            )
        return write(what.folder, party, place, server_run=what.job, trust=trust)
    if not isinstance(what, str | Path):
        raise UsageError(
            "What left a party is told of one run, by its folder or result, not of a"
            f" {type(what).__name__}."
        )
    return write(Path(what), party, place, federation=federation, model=model, trust=trust)
