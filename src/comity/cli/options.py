"""What commands have in common: every option of an experiment is declared once, in
`experiments.config.Experiment`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from comity.cli.usage import App
from comity.cli.version import version_line
from comity.errors import ComityError, CorruptedFile, UsageError, describe
from comity.runs.config import Experiment, experiment, read
from comity.spec import value

if TYPE_CHECKING:
    from comity.track import Trackers

app = App(
    help="Collaborative learning between parties whose data differ and may not be pooled.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click suggests already
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = App(
    help="Look at federations, and bring one's own.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,
)
app.add_typer(data_app, name="data")
deploy_app = App(
    help="Runs between real sites: an operator admits them, each keeps its own law.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,
)
app.add_typer(deploy_app, name="deploy")


def _version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_version, is_eager=True, help="say which version this is"),
]


def _completion(shell: str | None) -> None:
    if shell is not None:
        from comity.cli.completion import script

        print(script(shell), end="")
        raise typer.Exit


Completion = Annotated[
    str | None,
    typer.Option(
        "--show-completion",
        callback=_completion,
        is_eager=True,
        metavar="bash|zsh|fish",
        help="print what lets a shell complete commands and names",
    ),
]


@app.callback()
def _main(version: Version = False, completion: Completion = None) -> None:
    """What stands before a command."""


Settings = dict[str, Any]
Out = Annotated[Path | None, typer.Option("--out", help="folder for the results")]
Algo = Annotated[
    str, typer.Argument(metavar="ALGO", help="method (fedavg, fedavg+dbe, ./mine.py) or FILE.toml")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the folder of a run")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", help="log to tensorboard or mlflow, too, or to a ./tracker.py", metavar="NAME"
    ),
]
Seeds = Annotated[str | None, typer.Option("--seeds", help="several seeds, as in 0,1,2")]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        help="runs at once, each with one worker; auto: one a core, if memory allows",
        metavar="N|auto",
    ),
]
Report = Annotated[
    bool,
    typer.Option(
        "--report/--no-report", envvar="COMITY_REPORT", help="end with a page: report.html"
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="run the Python files that somebody else's folder names")
]
Tape = Annotated[
    bool, typer.Option("--record-messages", help="keep every message, for comity audit")
]
NOT_OPTIONS = {"algorithm", "set", "party"}


def _plain(kind: Any) -> Any:
    """`int | None` -> int; a choice of words -> str (checked by Experiment, whose sentence is
    better).
    """
    inner = [k for k in get_args(kind) if k is not type(None)] or [kind]
    return inner[0] if inner[0] in (bool, int, float, str) else str


def with_experiment(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of an experiment; it receives those that were typed as `settings`."""
    added: dict[str, Any] = {}
    for name, about in Experiment.model_fields.items():
        if name in NOT_OPTIONS:
            continue
        default = "" if about.default is None or about.default is False else f" [{about.default}]"
        choices = (
            "|".join(get_args(about.annotation))
            if get_origin(about.annotation) is Literal
            else None
        )
        text = f"{about.description}{default}"
        said = name.replace("_", "-")
        spelled = f"--{said}/--no-{said}" if about.annotation is bool else f"--{said}"
        flag = typer.Option(spelled, help=text, show_default=False, metavar=choices)
        added[name] = Annotated[_plain(about.annotation) | None, flag]
    flag = typer.Option(
        "--set", help="a method's own option: mu=1, or dbe.mu=1", metavar="NAME=VALUE"
    )
    added["set"] = Annotated[list[str] | None, flag]
    flag = typer.Option(
        "--party",
        help="what one party does its own way: p1.model=lenet5",
        metavar="NAME.SETTING=VALUE",
    )
    added["party"] = Annotated[list[str] | None, flag]

    def read(typed: dict[str, Any]) -> dict[str, Any]:
        settings = {n: v for n, v in typed.items() if v is not None}
        if "set" in settings:
            settings["set"] = dict(_pair(text) for text in settings["set"])
        if "party" in settings:
            settings["party"] = _parties(settings["party"])
        return settings

    return with_options(command, added, "settings", read)


def with_options(
    command: Callable[..., None],
    added: Mapping[str, Any],
    receives: str,
    read: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Give a command more options than it names; it gets what `read` makes of what was typed for
    them, as `receives`.
    """
    own = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != receives
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, keyword, default=None, annotation=kind)
        for name, kind in added.items()
    ]

    def wrapped(**given: Any) -> None:
        typed = {name: given.pop(name) for name in added}
        command(**given, **{receives: read(typed)})

    parameters = [p.replace(kind=keyword) for p in own] + more
    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _pair(text: str) -> tuple[str, Any]:
    name, equals, right = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set takes name=value, not {text!r}.")
    return name.strip(), value(right)


def _parties(texts: list[str]) -> dict[str, dict[str, Any]]:
    """`p1.model=lenet5`, one or more, as tables by party."""
    tables: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        name, dot, setting = left.strip().rpartition(".")
        if not (equals and dot and name and setting):
            raise UsageError(
                f"--party takes name.setting=value, as in p1.model=lenet5, not {text!r}."
            )
        tables.setdefault(name, {})[setting] = (
            right.split(",") if setting == "peers" else right.strip()
        )
    return tables


def chosen_experiment(algo: str, settings: Settings, trust: bool) -> Experiment:
    """What was asked for: a file's settings, or a method's name, with the typed options on top."""
    if algo.endswith((".yaml", ".yml", ".json")):
        raise UsageError(
            f"An experiment's file is TOML, not {Path(algo).suffix[1:]}: every run's config.toml is"
            " an example of one."
        )
    if algo.endswith(".toml"):
        base = read(algo)
        _check_code(Path(algo), base, trust)
        if "set" in settings:
            settings["set"] = base.set | settings["set"]
        if "party" in settings:
            before = {name: own.model_dump(exclude_none=True) for name, own in base.party.items()}
            settings["party"] = before | {
                name: before.get(name, {}) | own for name, own in settings["party"].items()
            }
        return base.but(**settings)
    return experiment({"algorithm": algo, **settings})


def _check_code(file: Path, saved: Experiment, trust: bool) -> None:
    """A user's own file of settings names what it likes; one that lies in a run's folder is
    whoever's made that.
    """
    from comity.runs.folder import RunFolder
    from comity.runs.trust import check, code_of

    home = RunFolder(file.parent)
    if home.begun:
        check(home.path, file.read_text(encoding="utf-8"), code_of(saved), trust)


def chosen_seeds(text: str | None, default: int) -> list[int]:
    """The seeds that were typed, as in 0,1,2; if none were, the experiment's own."""
    if text is None:
        return [default]
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers, as in 0,1,2, not {text!r}.") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds takes different numbers from 0, not {text!r}.")
    if len(seeds) == 1 and seeds[0] > 1:
        caution(f"One seed, number {seeds[0]}: for {seeds[0]} seeds give --seeds 0,1,...")
    return seeds


class Stopped(ComityError):
    """Ctrl-C."""

    exit_code = 130


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """Whatever ends a run early, the last words say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"Stopped; go on from the last checkpoint with: {how}") from None
    except (UsageError, CorruptedFile):  # going on would end here again
        raise
    except (
        ComityError,
        OSError,
        MemoryError,
        RuntimeError,
    ) as why:  # torch says by the last that memory is not enough
        raise ComityError(f"{describe(why)} Go on with: {how}") from why


def write_report(folder: Path) -> None:
    """The page at the end of a command; what it cannot show must not fail what was computed."""
    from comity.cli import screen
    from comity.reporting import report

    try:
        path = report(folder, warn=caution)
    except KeyboardInterrupt:
        raise Stopped(
            "Stopped; the runs are finished, and only the page is not. Go on with: comity report"
            f" {folder}"
        ) from None
    except Exception as why:
        caution(f"The report cannot be written: {describe(why)}")
    else:
        screen.out.print(f"The report is in {path}", soft_wrap=True)


def free_folder(name: str) -> Path:
    """The first of runs/name, runs/name-2, ... that holds nothing yet."""
    base = Path("runs") / name
    return next(
        p
        for k in range(1, 10**6)
        if not (p := base if k == 1 else base.with_name(f"{name}-{k}")).exists()
    )


def trackers(names: list[str] | None, home: Path) -> Trackers:
    """Who else writes the runs in a folder down."""
    from comity.track import Trackers

    return Trackers(names or (), home, caution)


def caution(text: str) -> None:
    """On stdout: stderr is for the one sentence of a run that fails."""
    from comity.cli import screen

    screen.out.print(f"Caution: {text}", soft_wrap=True)
