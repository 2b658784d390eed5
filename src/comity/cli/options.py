"""The apps, options and helper functions that commands share.

The options for settings of an experiment are made from `comity.runs.config.Experiment`.
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
from comity.errors import ComityError, CorruptedFile, UsageError, describe, may_pass
from comity.runs.config import Experiment, experiment, read
from comity.spec import parse_value
from comity.text import shell_line

if TYPE_CHECKING:
    from comity.track import Trackers

app = App(
    help="Collaborative learning between parties whose data differ and may not be pooled.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # comity.cli.usage makes suggestions
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = App(
    help="Inspect federations and import your own data.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,
)
app.add_typer(data_app, name="data")
deploy_app = App(
    help="Runs between real sites: an operator admits sites, each site has its own policy.",
    no_args_is_help=True,
    rich_markup_mode=None,
    suggest_commands=False,
)
app.add_typer(deploy_app, name="deploy")


def _print_version(requested: bool) -> None:
    if requested:
        print(version_line())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
]


def _print_completion(shell: str | None) -> None:
    if shell is not None:
        from comity.cli.completion import script

        print(script(shell), end="")
        raise typer.Exit


Completion = Annotated[
    str | None,
    typer.Option(
        "--show-completion",
        callback=_print_completion,
        is_eager=True,
        metavar="bash|zsh|fish",
        help="print a script that completes commands and names in a shell",
    ),
]


@app.callback()
def _main(version: Version = False, completion: Completion = None) -> None:
    """Options before the command."""


Settings = dict[str, Any]
Out = Annotated[Path | None, typer.Option("--out", help="folder for the results")]
Algo = Annotated[
    str, typer.Argument(metavar="ALGO", help="method (fedavg, fedavg+dbe, ./mine.py) or FILE.toml")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the folder of a run")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", help="also log to tensorboard, mlflow, wandb or a ./tracker.py", metavar="NAME"
    ),
]
Seeds = Annotated[str | None, typer.Option("--seeds", help="several seeds, as in 0,1,2")]
Folds = Annotated[
    int | None,
    typer.Option(
        "--folds",
        min=1,
        help="cross-validation with K folds of each party's samples: each method is run K times,"
        " and every sample is tested once; default: 5 for small tables, otherwise 1 (none)",
        metavar="K",
    ),
]
Repeats = Annotated[
    int,
    typer.Option("--repeats", min=1, help="repeat cross-validation, with other folds", metavar="R"),
]
PlainModels = Annotated[
    str,
    typer.Option(
        "--plain",
        help="plain models that each party also trains alone; gains are over the best of them: auto"
        " (all on tables), none, linear, boosting, or linear,boosting",
        metavar="MODELS",
    ),
]
Jobs = Annotated[
    str,
    typer.Option(
        "--jobs",
        help="runs in parallel, each with one worker; auto: one per core, if memory allows",
        metavar="N|auto",
    ),
]
Report = Annotated[
    bool,
    typer.Option(
        "--report/--no-report", envvar="COMITY_REPORT", help="write report.html at the end"
    ),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="allow Python files named by a folder that somebody else made"),
]
RecordMessages = Annotated[
    bool, typer.Option("--record-messages", help="keep every message, for comity audit")
]
NOT_OPTIONS = {"algorithm", "set", "party"}


def _option_type(kind: Any) -> Any:
    """Return the type of an option: int for `int | None`, and str for a choice of words.

    `Experiment` checks the choices, since its error messages are clearer.
    """
    inner = [k for k in get_args(kind) if k is not type(None)] or [kind]
    return inner[0] if inner[0] in (bool, int, float, str) else str


def with_experiment(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all settings to a command, which receives the typed ones as `settings`."""
    added: dict[str, Any] = {}
    for name, field in Experiment.model_fields.items():
        if name in NOT_OPTIONS:
            continue
        default = "" if field.default is None or field.default is False else f" [{field.default}]"
        is_choice = get_origin(field.annotation) is Literal
        choices = "|".join(get_args(field.annotation)) if is_choice else None
        flag = name.replace("_", "-")
        flags = f"--{flag}/--no-{flag}" if field.annotation is bool else f"--{flag}"
        option = typer.Option(
            flags, help=f"{field.description}{default}", show_default=False, metavar=choices
        )
        added[name] = Annotated[_option_type(field.annotation) | None, option]
    option = typer.Option(
        "--set", help="an option of the method, as in mu=1 or dbe.mu=1", metavar="NAME=VALUE"
    )
    added["set"] = Annotated[list[str] | None, option]
    option = typer.Option(
        "--party",
        help="a setting of one party, as in p1.model=lenet5",
        metavar="NAME.SETTING=VALUE",
    )
    added["party"] = Annotated[list[str] | None, option]

    def read_settings(typed: dict[str, Any]) -> dict[str, Any]:
        settings = {n: v for n, v in typed.items() if v is not None}
        if "set" in settings:
            settings["set"] = dict(_pair(text) for text in settings["set"])
        if "party" in settings:
            settings["party"] = _parties(settings["party"])
        return settings

    return with_options(command, added, "settings", read_settings)


def with_options(
    command: Callable[..., None],
    added: Mapping[str, Any],
    parameter: str,
    read: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Add options to a command.

    Args:
        command: the command
        added: the annotations of the added options, by name
        parameter: the parameter through which the command receives the values of these options
        read: converts the typed values, by name, to the value of this parameter
    """
    command_parameters = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != parameter
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(name, keyword, default=None, annotation=kind)
        for name, kind in added.items()
    ]

    def run_command(**values: Any) -> None:
        typed = {name: values.pop(name) for name in added}
        command(**values, **{parameter: read(typed)})

    parameters = [p.replace(kind=keyword) for p in command_parameters] + more
    run_command.__name__ = command.__name__
    run_command.__doc__ = command.__doc__
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_command


def _pair(text: str) -> tuple[str, Any]:
    name, equals, right = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set takes name=value, not {text!r}.")
    return name.strip(), parse_value(right)


def _parties(texts: list[str]) -> dict[str, dict[str, Any]]:
    """Parse texts such as `p1.model=lenet5` into settings by party."""
    tables: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, right = text.partition("=")
        name, dot, setting = key.strip().rpartition(".")
        if not (equals and dot and name and setting):
            raise UsageError(
                f"--party takes name.setting=value, as in p1.model=lenet5, not {text!r}."
            )
        tables.setdefault(name, {})[setting] = (
            right.split(",") if setting == "peers" else right.strip()
        )
    return tables


def chosen_experiment(algo: str, settings: Settings, trust: bool) -> Experiment:
    """Return the experiment of a command.

    Args:
        algo: the name of a method, or a TOML file of settings
        settings: the typed options, which override those of the file
        trust: allow Python files that a run's folder names
    """
    from comity.runs.folder import RunFolder

    if algo.endswith((".yaml", ".yml", ".json")):
        raise UsageError(
            f"Experiments are TOML files, not {Path(algo).suffix[1:]}: the config.toml of any run"
            " is an example."
        )
    if algo.endswith(".toml"):
        base = read(algo, beside=not RunFolder(Path(algo).parent).has_run)
        _check_code(Path(algo), base, trust)
        if "set" in settings:
            settings["set"] = base.set | settings["set"]
        if "party" in settings:
            in_file = {
                name: party.model_dump(exclude_none=True) for name, party in base.party.items()
            }
            settings["party"] = in_file | {
                name: in_file.get(name, {}) | typed for name, typed in settings["party"].items()
            }
        return base.but(**settings)
    return experiment({"algorithm": algo, **settings})


def _check_code(file: Path, saved: Experiment, trust: bool) -> None:
    """Refuse untrusted code if a settings file lies in a run's folder, which others may have made.

    The user's other settings files may name any code.
    """
    from comity.runs.folder import RunFolder
    from comity.runs.trust import check, code_of

    folder = RunFolder(file.parent)
    if folder.has_run:
        check(folder.path, file.read_text(encoding="utf-8"), code_of(saved), trust)


def chosen_seeds(text: str | None, default: int) -> list[int]:
    """Return the typed seeds, as in 0,1,2; without any, the default."""
    if text is None:
        return [default]
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds takes whole numbers, as in 0,1,2, not {text!r}.") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds takes different numbers from 0 on, not {text!r}.")
    if len(seeds) == 1 and seeds[0] > 1:
        print_warning(
            f"--seeds {seeds[0]} is one seed, number {seeds[0]}: for {seeds[0]} seeds write --seeds"
            " 0,1,..."
        )
    return seeds


class StoppedByUser(ComityError):
    """The user stopped the command with Ctrl-C."""

    exit_code = 130


@contextlib.contextmanager
def resumable(how: str, *, always: bool = False) -> Iterator[None]:
    """Add how to resume to the message of what ends a run early, if resuming may help.

    An error in a method's code would occur again. It helps `always` between sites, where one may
    be corrected, and in a study, whose finished runs are kept.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedByUser(f"Stopped; resume from the last checkpoint with: {how}") from None
    except (UsageError, CorruptedFile):  # resuming would fail again
        raise
    except Exception as why:
        if may_pass(why) or (always and isinstance(why, ComityError | RuntimeError)):
            raise ComityError(f"{describe(why)} Resume with: {how}") from why
        raise


def write_report(folder: Path) -> None:
    """Write the report at the end of a command. A failure is only a warning: the runs are done."""
    from comity.cli import screen
    from comity.reporting import report

    try:
        path = report(folder, warn=print_warning)
    except KeyboardInterrupt:
        raise StoppedByUser(
            "Stopped; the runs are finished, but the report is not. Write it with:"
            f" {shell_line('comity', 'report', folder)}"
        ) from None
    except Exception as why:
        print_warning(f"The report cannot be written: {describe(why)}")
    else:
        screen.out.print(f"The report is in {path}", soft_wrap=True)


def free_folder(name: str) -> Path:
    """Return the first of runs/name, runs/name-2, ... that does not exist."""
    path = Path("runs") / name
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(f"{name}-{number}")
    return path


def trackers(names: list[str] | None, folder: Path) -> Trackers:
    """Return the trackers that log the runs in a folder."""
    from comity.track import Trackers

    return Trackers(names or (), folder, print_warning)


def print_warning(text: str) -> None:
    """Print a warning on stdout; stderr is for the one sentence of a run that fails."""
    from comity.cli import screen

    screen.out.print(f"Warning: {text}", soft_wrap=True)
