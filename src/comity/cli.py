"""The command line. Every option of an experiment is declared once, in `config.Experiment`."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click
import typer

from comity.config import Experiment, experiment, read
from comity.errors import ComityError, Refusal, describe, unknown
from comity.spec import show as show_value
from comity.spec import value

if TYPE_CHECKING:
    from comity.algorithms import Option

app = typer.Typer(
    help="Collaborative learning between parties whose data differ and may not be pooled.",
    no_args_is_help=True,
    add_completion=False,
    suggest_commands=False,  # click suggests already
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="Look at federations.", no_args_is_help=True, rich_markup_mode=None, suggest_commands=False
)
app.add_typer(data_app, name="data")

Settings = dict[str, Any]
Out = Annotated[Path | None, typer.Option("--out", help="folder for the results")]
Algo = Annotated[str, typer.Argument(metavar="ALGO", help="method (fedavg, fedavg+dbe, ./mine.py) or FILE.toml")]
Seeds = Annotated[str | None, typer.Option("--seeds", help="several seeds, as in 0,1,2")]
NOT_OPTIONS = {"algorithm", "set", "party"}


def _plain(kind: Any) -> Any:
    """`int | None` -> int; a choice of words -> str (checked by Experiment, whose sentence is better)."""
    inner = [k for k in get_args(kind) if k is not type(None)] or [kind]
    return inner[0] if inner[0] in (int, float, str) else str


def with_experiment(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of an experiment; it receives those that were typed as `settings`."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "settings"]
    added = []
    for name, about in Experiment.model_fields.items():
        if name in NOT_OPTIONS:
            continue
        default = "" if about.default is None else f" [{about.default}]"
        flag = typer.Option(f"--{name.replace('_', '-')}", help=f"{about.description}{default}", show_default=False)
        kind: Any = Annotated[_plain(about.annotation) | None, flag]
        added.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))
    flag = typer.Option("--set", help="a method's own option: mu=1, or dbe.mu=1", metavar="NAME=VALUE")
    pairs = Annotated[list[str] | None, flag]
    added.append(inspect.Parameter("set", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=pairs))
    flag = typer.Option("--party", help="what one party does its own way: p1.model=lenet5", metavar="NAME.SETTING=VALUE")
    own_ways = Annotated[list[str] | None, flag]
    added.append(inspect.Parameter("party", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=own_ways))
    names = [p.name for p in added]

    def wrapped(**given: Any) -> None:
        typed = {n: given.pop(n) for n in names}
        settings = {n: v for n, v in typed.items() if v is not None}
        if "set" in settings:
            settings["set"] = dict(_pair(text) for text in settings["set"])
        if "party" in settings:
            settings["party"] = _parties(settings["party"])
        command(**given, settings=settings)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _pair(text: str) -> tuple[str, Any]:
    name, equals, right = text.partition("=")
    if not equals or not name.strip():
        raise Refusal(f"--set takes name=value, not {text!r}.")
    return name.strip(), value(right)


def _parties(texts: list[str]) -> dict[str, dict[str, Any]]:
    """`p1.model=lenet5`, one or more, as tables by party."""
    tables: dict[str, dict[str, Any]] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        name, dot, setting = left.strip().rpartition(".")
        if not (equals and dot and name and setting):
            raise Refusal(f"--party takes name.setting=value, as in p1.model=lenet5, not {text!r}.")
        tables.setdefault(name, {})[setting] = right.split(",") if setting == "peers" else right.strip()
    return tables


def _experiment(algo: str, settings: Settings) -> Experiment:
    """What was asked for: a file's settings, or a method's name, with the typed options on top."""
    if algo.endswith(".toml"):
        base = read(algo)
        if "set" in settings:
            settings["set"] = base.set | settings["set"]
        if "party" in settings:
            before = {name: own.model_dump(exclude_none=True) for name, own in base.party.items()}
            settings["party"] = before | {name: before.get(name, {}) | own for name, own in settings["party"].items()}
        return base.but(**settings)
    return experiment({"algorithm": algo, **settings})


def _seeds(text: str | None, default: int) -> list[int]:
    if text is None:
        return [default]
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise Refusal(f"--seeds takes whole numbers, as in 0,1,2, not {text!r}.") from None
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise Refusal(f"--seeds takes different numbers from 0, not {text!r}.")
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
    except Refusal:
        raise
    except (ComityError, OSError) as why:
        raise ComityError(f"{describe(why)} Go on with: {how}") from why


def _free_folder(name: str) -> Path:
    """The first of runs/name, runs/name-2, ... that holds nothing yet."""
    base = Path("runs") / name
    return next(p for k in range(1, 10**6) if not (p := base if k == 1 else base.with_name(f"{name}-{k}")).exists())


@app.command()
@with_experiment
def run(algo: Algo, settings: Settings, out: Out = None) -> None:
    """Run one method, or an experiment's file."""
    from comity import screen
    from comity.compare import folder_name
    from comity.job import federation_of, prepare
    from comity.run import start

    chosen = _experiment(algo, settings)
    job = prepare(chosen, federation_of(chosen))
    for text in job.cautions():
        _caution(text)
    folder = out or _free_folder(f"{folder_name(chosen.algorithm)}-{Path(chosen.data).stem}-s{chosen.seed}")
    with resumable(f"comity resume {folder}"):
        _finish(folder, start(job, folder, screen.progress(chosen.algorithm)).summary)


@app.command()
def resume(run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")]) -> None:
    """Continue a run that was stopped or killed; the result is what it would have been."""
    from comity import screen
    from comity.compare import finished
    from comity.run import check_run, reopen, resume_in

    check_run(run_dir)
    with resumable(f"comity resume {run_dir}"):
        if (done := finished(run_dir)) is None:
            job = reopen(run_dir)
            done = resume_in(job, run_dir, screen.progress(job.experiment.algorithm)).summary
        _finish(run_dir, done)


def _caution(text: str) -> None:
    """On stdout: stderr is for the one sentence of a run that fails."""
    from comity import screen

    screen.out.print(f"Caution: {text}", markup=False, soft_wrap=True)


def _finish(folder: Path, summary: dict[str, Any]) -> None:
    """The end of a run on the screen."""
    from comity import screen

    got, sent, took = summary["accuracy"], summary["bytes"], summary["seconds"]
    screen.out.print(
        f"{summary['algorithm']}: accuracy {got['mean']:.1%} (mean of {summary['parties']} parties), "
        f"worst {got['per_party'][got['worst_party']]:.1%} ({got['worst_party']}), "
        f"best {got['per_party'][got['best_party']]:.1%} ({got['best_party']})",
        soft_wrap=True,
    )
    if got["unfinished"] is not None:
        screen.out.print(f"before its last fine-tuning: {got['unfinished']:.1%}")
    for name, new in summary["newcomers"].items():
        screen.out.print(
            f"newcomer {name}: offered {new['offered']:.1%}, after its warm-up {new['joined']:.1%}, "
            f"alone {new['alone']:.1%}: {100 * new['gain']:+.1f} points by joining",
            soft_wrap=True,
        )
    screen.out.print(
        f"up {screen.size(sent['up'])}, down {screen.size(sent['down'])}, peer {screen.size(sent['peer'])}, "
        f"{summary['steps']} steps, {screen.duration(took['total'])}"
    )
    screen.out.print(f"The run is in {folder}", soft_wrap=True)
    if summary["diverged"]:
        print(f"comity: The loss of {', '.join(summary['diverged'])} is not finite; try a smaller --lr.", file=sys.stderr)


@app.command()
@with_experiment
def compare(
    algos: Annotated[list[str], typer.Argument(metavar="ALGO...")], settings: Settings, seeds: Seeds = None, out: Out = None
) -> None:
    """Run several methods, and SOLO, on one split; end with a table."""
    from comity import screen
    from comity.compare import compare as compare_runs

    base = experiment(settings)
    every = _seeds(seeds, base.seed)
    folder = out or _free_folder(f"compare-{Path(base.data).stem}")
    several = len(every) > 1
    with resumable(f"the same command and --out {folder}"):
        rows = compare_runs(
            base,
            algos,
            every,
            folder,
            lambda e: screen.progress(e.algorithm + (f" seed {e.seed}" if several else "")),
            _caution,
        )
    shown = []
    for row in rows:
        mean, worst = sum(row.accuracy) / len(row.accuracy), sum(row.worst) / len(row.worst)
        shown.append([
            row.algorithm,
            f"{mean:.1%}" + (f" ± {100 * row.spread():.1f}" if several else ""),
            f"{worst:.1%}",
            f"{row.gained}/{row.judged}" if row.judged else "",
            f"{row.hurt}/{row.judged}" if row.judged else "",
            *([f"{row.joined:.1%} ({100 * (row.joined_gain or 0):+.1f})"] if row.joined is not None else []),
            *(screen.size(row.bytes[kind]) if row.bytes[kind] else "0" for kind in ("up", "down", "peer")),
            screen.duration(row.seconds),
        ])
    title = f"{base.data}, {base.partition}, {base.rounds} rounds" + (f", {len(every)} seeds" if several else "")
    late = ["newcomers"] if base.newcomers else []
    screen.table(["method", "accuracy", "worst", "gained", "hurt", *late, "up", "down", "peer", "time"], shown, title)
    screen.out.print(
        "worst: the worst party. gained, hurt: parties whose 95% interval against SOLO, paired over their test samples, "
        "excludes zero."
        + (" newcomers: their accuracy after joining, and what it gave them against training alone." if late else ""),
        style="dim",
    )
    screen.out.print(f"The runs are in {folder}", soft_wrap=True)


@app.command()
@with_experiment
def tune(
    algo: Algo,
    settings: Settings,
    grid: Annotated[list[str], typer.Option("--grid", help="values to try: mu=0.1,1", metavar="NAME=V,V")],
    seeds: Seeds = None,
    out: Out = None,
) -> None:
    """Try a grid of values with equal budgets; choose on validation data."""
    from comity import screen
    from comity.compare import folder_name, parse_grid
    from comity.compare import tune as tune_runs

    base = _experiment(algo, settings)
    folder = out or _free_folder(f"tune-{folder_name(base.algorithm)}")
    points = parse_grid(grid)
    with resumable(f"the same command and --out {folder}"):
        trials = tune_runs(base, points, _seeds(seeds, base.seed), folder, lambda e: screen.progress(e.algorithm))
    rows = [[*(str(v) for v in t.settings.values()), f"{t.validation:.1%}", f"{t.test:.1%}"] for t in trials]
    screen.table([*points, "validation", "test"], rows, f"{base.algorithm}, {base.rounds} rounds each, best by validation first")
    best = ", ".join(f"{n}={v}" for n, v in trials[0].settings.items())
    screen.out.print(f"Chosen on validation data: {best}. The runs are in {folder}", soft_wrap=True)


@app.command()
@with_experiment
def plan(algo: Algo, settings: Settings) -> None:
    """Bytes, memory and time before a run."""
    from comity import screen
    from comity.job import federation_of, prepare
    from comity.plan import plan as make

    chosen = _experiment(algo, settings)
    job = prepare(chosen, federation_of(chosen))
    made = make(job)
    bytes_of = ("up", "down", "peer")
    rows = [
        [name, *(screen.size(getattr(part, kind)) for kind in bytes_of)]
        for name, part in (("before round 1", made.start), ("largest round", made.per_round), ("whole run", made.total))
    ]
    screen.table(["bytes", *bytes_of], rows, f"{chosen.algorithm} on {chosen.data}, {len(job.parties)} parties")
    screen.out.print(f"closed form: {job.algorithm.bytes_formula}")
    screen.out.print(
        f"model: {job.info.task.network.name}, {made.parameters:,} values, {screen.size(made.model_bytes)}; "
        f"representation of {job.info.width}"
    )
    screen.out.print(
        f"memory beside torch itself: data {screen.size(made.data_bytes)}, party states {screen.size(made.state_bytes)}, "
        f"messages of a round {screen.size(made.message_bytes)}"
    )
    where = job.experiment.engine + (f" with {job.experiment.workers} workers" if job.experiment.workers else "")
    screen.out.print(
        f"time, scaled from one round tried with one party: training {screen.duration(made.train_seconds)}, evaluation "
        f"{screen.duration(made.evaluate_seconds)}; {made.steps:,} steps on engine {where}"
    )


def _cell(thing: Any) -> str:
    """A value of a catalogue for people: shapes as 1x8x8, options as in a call."""
    if isinstance(thing, dict):
        return ", ".join(name if v is None else f"{name}={show_value(v)}" for name, v in thing.items())
    if isinstance(thing, bool):
        return "yes" if thing else ""
    return "x".join(map(str, thing)) if isinstance(thing, list | tuple) else str(thing)


FOR_PROGRAMS = {"licence", "hub", "missing", "files"}  # too much for a table: `list --json` has them
LISTS = ("algorithms", "datasets", "models", "partitions")


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(LISTS))],
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """What there is."""
    from comity import algorithms, data, models, screen

    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "algorithms": algorithms.catalogue,
        "datasets": data.catalogue,
        "models": models.catalogue,
        "partitions": data.partition_catalogue,
    }
    if what not in makers:
        raise unknown("list of", what, makers)
    rows = makers[what]()
    if as_json:
        print(json.dumps(rows))
        return
    columns = [c for c in rows[0] if c not in FOR_PROGRAMS]
    wide = next(k for k, c in enumerate(columns) if c in ("description", "paper"))
    screen.table(columns, [[_cell(row[c]) for c in columns] for row in rows], words=len(columns), wide=wide)


def _meaning(option: Option) -> str:
    """What an option does, and what it may be if that is one of a few words."""
    words = [str(word) for word in get_args(option.kind)] if get_origin(option.kind) is Literal else []
    return option.doc + (f"; one of {', '.join(words)}" if words else "")


@app.command()
def show(algo: Algo) -> None:
    """A method's card: idea, equations, defaults, options, deviations, bytes in closed form."""
    from comity import algorithms, screen

    for part in algo.split("+"):
        card = algorithms.card(part)
        screen.out.print(card.text, markup=False)
        screen.out.print(f"\nBytes: {card.bytes}" if card.bytes else "", markup=False)
        rows = [[o.name, "none" if o.default in ("", None) else show_value(o.default), _meaning(o)] for o in card.options]
        if rows:
            screen.table(["option", "default", "meaning"], rows, words=3, wide=2)
        screen.out.print()


@data_app.command("inspect")
@with_experiment
def inspect_data(settings: Settings) -> None:
    """Who has what: training samples by party and class."""
    from comity import screen
    from comity.job import federation_of

    federation = federation_of(experiment(settings))
    counts = federation.counts().tolist()
    shares = federation.split.parties
    shifts = any(share.shift for share in shares.values())
    rows = [
        [name, *([shares[name].shift or "none"] if shifts else []), *(str(len(s)) for s in (d.train, d.validation, d.test))]
        + [str(n) if n else "·" for n in line]
        for (name, d), line in zip(federation.parties.items(), counts, strict=True)
    ]
    columns = ["party", *(["shift"] if shifts else []), "train", "validation", "test", *map(str, range(federation.classes))]
    title = f"{federation.name}: samples of shape {'x'.join(map(str, federation.shape))}, {federation.split.partition}"
    screen.table(columns, rows, title, words=1 + shifts)


def main() -> None:
    """The entry point: whatever goes wrong is one sentence on stderr and an exit code."""
    try:
        if app(standalone_mode=False) == Stopped.exit_code:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except click.exceptions.NoArgsIsHelpError as help_:
        print(help_.format_message())
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as why:
        _complain(why.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        _complain("Stopped before anything was run.", 130)
    except ComityError as why:
        _complain(str(why), why.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as why:
        if os.environ.get("COMITY_DEBUG"):
            raise
        _complain(describe(why), 1)


def _complain(sentence: str, code: int) -> None:
    print(f"comity: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
