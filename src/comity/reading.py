"""The calls that read folders of runs: `comity.open`, `comity.report` and `comity.disclose`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from comity.data import Federation
from comity.errors import UsageError
from comity.metrics.custom_metrics import Function, register_function
from comity.models import CustomModel
from comity.notebook import views as _views  # noqa: F401 - registers how results are shown
from comity.runs.call_settings import check_federation
from comity.runs.folder import RunFolder
from comity.runs.result import Result
from comity.studies.compare import COMPARISON
from comity.studies.finished import Comparison, open_comparison, open_run
from comity.text import escape_terminal


def open(
    folder: str | Path,
    federation: Federation | None = None,
    *,
    model: CustomModel | None = None,
    metric: Function | None = None,
    trust: bool = False,
) -> Result | Comparison:
    """Open the folder of a run or of a comparison, made by Python or by the command line.

    The data and users' code are read only when a model is needed. Damaged files are refused.

    Args:
        folder: the folder of a run or of a comparison
        federation: the data, if the run got them from Python
        model: the network, if the run got it from Python
        metric: the metric, if the run got it from Python
        trust: allow the Python files that a folder made by somebody else names to run

    Returns:
        A `Result` or a `Comparison`.

    Raises:
        UsageError: there is no such folder, or it contains neither.
        ComityError: a file is damaged.

    Examples:
        >>> import comity, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = comity.run(
        ...         "fedavg", parties=2, rounds=1, model="linear", out=f"{folder}/run"
        ...     )
        ...     comity.open(f"{folder}/run").summary == result.summary
        True
    """
    if metric is not None:
        register_function(metric)
    if federation is not None:
        check_federation("open", str(folder), federation)
    path = Path(folder)
    if not path.is_dir():
        raise UsageError(f"There is no folder {path}.")
    if (path / COMPARISON).exists():
        return open_comparison(path, federation, model, trust)
    if RunFolder(path).has_run or RunFolder(path).remains:
        return open_run(path, federation, model, trust)
    inside = sorted(str(file.parent.relative_to(path)) for file in path.rglob("config.toml"))[:3]
    hint = f"; there are runs in {', '.join(inside)}" if inside else ""
    raise UsageError(f"{path} contains neither a run nor a comparison{hint}.")


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
    """Write the report of a folder, a result or a comparison as one self-contained HTML page.

    Args:
        what: a folder of runs, a `Result` or a `Comparison`
        out: file of the page; default: `report.html` in the folder
        methods: methods whose representations are drawn; default: the best three and SOLO
        target: accuracy up to which rounds and bytes are counted; default: the accuracy of SOLO
        quick: use only the files of the runs, without opening data or models
        samples: show some samples of the parties
        figures: also write every chart as a file of this format, in the folder `figures`
        trust: allow the Python files that folders made by somebody else name to run

    Returns:
        The path of the page.
    """
    from comity.reporting import report as write_report

    if isinstance(what, Result | Comparison):
        if what.temporary and out is None:
            raise UsageError(
                "The folder of this run is temporary and would be deleted with its page: choose"
                " another place with out='page.html'."
            )
        what = what.folder
    if not isinstance(what, str | Path):
        raise UsageError(
            f"report takes a folder, a result or a comparison, not a {type(what).__name__}."
        )

    def warn(text: str) -> None:
        warnings.warn(escape_terminal(text), stacklevel=4)

    return write_report(
        what,
        methods=methods,
        target=target,
        quick=quick,
        samples=samples,
        figures=figures,
        out=out,
        trust=trust,
        warn=warn,
    )


def disclose(
    what: str | Path | Result,
    party: str,
    out: str | Path | None = None,
    *,
    federation: Federation | None = None,
    model: CustomModel | None = None,
    trust: bool = False,
    operator: str = "",
) -> tuple[Path, Path]:
    """Write what left a party in a finished run, as HTML and PDF for the party's data officer.

    Args:
        what: the folder of a run, or a `Result`
        party: name of the party
        out: folder for both files; default: the folder of the run
        federation: the data, if the run got them from Python and `what` is a folder
        model: the network, if the run got it from Python and `what` is a folder
        trust: allow the Python files that a folder made by somebody else names to run
        operator: who runs the server; default: the operator in site.toml, or in the invitation

    Returns:
        The paths of the HTML page and of the PDF.

    Examples:
        >>> import comity, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = comity.run(
        ...         "fedavg", parties=2, rounds=1, model="linear", out=f"{folder}/run"
        ...     )
        ...     [path.name for path in comity.disclose(result, "p0")]
        ['disclosure-p0.html', 'disclosure-p0.pdf']
    """
    from comity.disclosure import disclose as write

    out_folder = None if out is None else Path(out)
    if isinstance(what, Result):
        if what.temporary and out_folder is None:
            raise UsageError(
                "The folder of this run is temporary and would be deleted with its page: choose"
                " another place with out='folder'."
            )
        return write(
            what.folder, party, out_folder, server_run=what.job, trust=trust, operator=operator
        )
    if not isinstance(what, str | Path):
        raise UsageError(
            f"disclose takes the folder of a run or a result, not a {type(what).__name__}."
        )
    return write(
        Path(what),
        party,
        out_folder,
        federation=federation,
        model=model,
        trust=trust,
        operator=operator,
    )
