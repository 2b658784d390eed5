"""What happens to runs whose files were damaged: bytes flipped, files cut, zeroed or lost, digits
and lines swapped.

    python benchmarks/damage.py [--seed 0] [--only stopped|finished] [--times 1] [--files metrics.csv,env.json]

A run that was stopped and one that is finished are copied; one file of the copy is damaged; every
command that reads it is tried. Each try ends in one of three ways: it is *said* (a sentence and an
exit code, or a note on the report's page), it is *harmless* (what comes out is what comes out of
the run as it was), or it is *silent*: something else came out, and nobody was told. The last are
listed; if there are any, so is the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from comity import cli
from comity.measure import study
from comity.measure.representations import representations
from comity.runs import checkpoint

METHOD = "scaffold"  # its parties keep states
SETTINGS = (
    "--parties", "3", "--rounds", "4", "--model", "mlp2(width=8)", "--partition", "iid|keep(samples=60)", "--engine", "loop",
)  # fmt: skip
STOPPED_AFTER = 2
RUN = f"{METHOD}/seed-0"
Damage = Callable[[bytes, random.Random], bytes | None]


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def comity(*args: object) -> Ended:
    """`comity ARGS` inside this process."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["comity", *map(str, args)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    return Ended(int(code or 0), out.getvalue(), err.getvalue())


# Damages: from a file's bytes to other bytes, or None for a lost file.


def flipped(blob: bytes, draw: random.Random) -> bytes:
    """One bit is another."""
    at = draw.randrange(len(blob))
    return blob[:at] + bytes([blob[at] ^ 1 << draw.randrange(8)]) + blob[at + 1 :]


def another_digit(blob: bytes, draw: random.Random) -> bytes:
    """One digit is another, so that what was a number still is one."""
    found = [m.start() for m in re.finditer(rb"[0-9]", blob)]
    if not found:
        return flipped(blob, draw)
    at = draw.choice(found)
    return (
        blob[:at]
        + str((int(blob[at : at + 1]) + draw.randrange(1, 10)) % 10).encode()
        + blob[at + 1 :]
    )


def swapped_digits(blob: bytes, draw: random.Random) -> bytes:
    """Two digits beside each other have changed places."""
    found = [m.start() for m in re.finditer(rb"(?=([0-9])(?!\1)[0-9])", blob)]
    if not found:
        return flipped(blob, draw)
    at = draw.choice(found)
    return blob[:at] + blob[at + 1 : at + 2] + blob[at : at + 1] + blob[at + 2 :]


def swapped_lines(blob: bytes, draw: random.Random) -> bytes:
    """Two lines have changed places."""
    lines = blob.splitlines(keepends=True)
    if len(lines) < 3:
        return flipped(blob, draw)
    one, other = draw.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def lost_line(blob: bytes, draw: random.Random) -> bytes:
    """A line is gone."""
    lines = blob.splitlines(keepends=True)
    del lines[draw.randrange(len(lines))]
    return b"".join(lines)


def twice(blob: bytes, draw: random.Random) -> bytes:
    """The last line is there a second time."""
    return blob + blob.splitlines(keepends=True)[-1]


def cut(blob: bytes, draw: random.Random) -> bytes:
    """What comes after some place is lost."""
    return blob[: draw.randrange(1, len(blob))]


def empty(blob: bytes, draw: random.Random) -> bytes:
    """All of it is lost, but the file is there."""
    return b""


def zeroed(blob: bytes, draw: random.Random) -> bytes:
    """As long as before, all zeros: what a power cut can leave."""
    return bytes(len(blob))


def zeroed_figures(blob: bytes, draw: random.Random) -> bytes:
    """Every digit is 0."""
    return re.sub(rb"[0-9]", b"0", blob)


def lost(blob: bytes, draw: random.Random) -> None:
    """The file is gone."""


DAMAGES: tuple[tuple[Damage, int], ...] = (
    (flipped, 3), (another_digit, 3), (swapped_digits, 2), (swapped_lines, 1), (lost_line, 1), (twice, 1), (cut, 2), (empty, 1),
    (zeroed, 1), (zeroed_figures, 1), (lost, 1),
)  # fmt: skip
"""Each, and how often it is tried in other places."""


# What comes out of a run.


def meaning(path: Path) -> Any:
    """What a file says, however it is written; nothing if it is not there."""
    try:
        blob = path.read_bytes()
        if path.suffix == ".toml":
            return tomllib.loads(blob.decode())
        if path.suffix != ".json":
            return blob
        return _without_time(json.loads(blob))
    except (OSError, ValueError):
        return None


def _without_time(told: Any) -> Any:
    """What must be equal in equal runs; checksums are no figures."""
    if isinstance(told, dict):
        return {
            k: _without_time(v)
            for k, v in told.items()
            if k not in ("seconds", "crc", "files", "lengths")
        }
    return [_without_time(v) for v in told] if isinstance(told, list) else told


def files(folder: Path, *leave_out: str) -> dict[str, Any]:
    """All that the files of a folder say."""
    found = {
        str(p.relative_to(folder)): meaning(p) for p in sorted(folder.rglob("*")) if p.is_file()
    }
    return {
        name: said for name, said in found.items() if Path(name).name not in (".lock", *leave_out)
    }


class Try(NamedTuple):
    """What came out of a command: how it ended, what it put out, and whether it said that something
    is wrong.
    """

    code: int
    brought: Any
    said: str


def resumed(run: Path, known: Path) -> Try:
    """`comity resume`: what it shows, and all files of the run afterwards.

    Of timing.csv, which varies, only what the last checkpoint knew is compared, and nothing if the
    run begins anew without one; of a finished run no states, as none are read.
    """
    anew = not (run / "checkpoints" / "manifest.json").exists()
    ended = comity("resume", run)
    manifest = json.loads((known / "checkpoints" / "manifest.json").read_text(encoding="utf-8"))
    length = (
        manifest["files"]["timing.csv"][0]
        if "files" in manifest
        else manifest["lengths"]["timing.csv"]
    )
    before, after = (
        (p / "timing.csv").read_bytes() if (p / "timing.csv").exists() else b""
        for p in (known, run)
    )
    found: dict[str, Any] = files(run, "timing.csv", "measures.json")
    found["timing.csv"] = anew or before[:length] == after[:length]
    if (known / "summary.json").exists():
        found = {name: said for name, said in found.items() if "checkpoints" not in name}
    return Try(
        ended.code,
        [found, _plain(ended.out.partition("Warning")[0], run)],
        ended.err + _printed_warnings(ended.out),
    )


def reported(root: Path, known: Path) -> Try:
    """`comity report --quick`: the page, and its notes."""
    page = root / "report.html"
    ended = comity("report", root, "--quick", "--out", page)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    text = text.replace(str(root.parent), "").replace(root.name, "")
    return Try(
        ended.code, text, ended.err + "".join(re.findall(r'role="note".*?</', text, re.DOTALL))
    )


def tabled(root: Path, known: Path) -> Try:
    """`comity report --table`: the ranking as text."""
    ended = comity("report", root, "--table", "markdown")
    return Try(
        ended.code,
        ended.out,
        ended.err + "".join(re.findall("^> .*|.*not finished.*", ended.out, re.MULTILINE)),
    )


def represented(run: Path, *args: object, **more: object) -> dict[str, Any]:
    """In place of what `measure` does for minutes: the representations that it would look at, as
    one figure each.
    """
    found = representations(run, ["cut"], samples=60)
    return {"layers": {}, "sums": [float(one.features.double().sum()) for one in found]}


def measured(root: Path, known: Path) -> Try:
    """`comity measure`, without its slow measures."""
    ended = comity("measure", root / RUN, "--json")
    return Try(ended.code, ended.out, ended.err)


def exported(root: Path, known: Path) -> Try:
    """`comity export`."""
    ended = comity("export", root / RUN, "--party", "p1", "--out", root / "taken")
    return Try(ended.code, files(root / "taken") if (root / "taken").exists() else None, ended.err)


def compared(root: Path, known: Path) -> Try:
    """`comity compare` once more: finished runs are taken as they are."""
    ended = comity("compare", METHOD, *SETTINGS, "--out", root, "--no-report")
    return Try(
        ended.code,
        [_plain(ended.out, root), meaning(root / "comparison.json")],
        ended.err + _printed_warnings(ended.out),
    )


def watched(root: Path, known: Path) -> Try:
    """`comity watch` of the one run."""
    ended = comity("watch", root / RUN, "--once")
    return Try(
        ended.code,
        _plain(ended.out, root),
        ended.err + "".join(re.findall("damaged: .*|stopped: .*", ended.out)),
    )


def _plain(text: str, root: Path) -> str:
    """A text without times, places and the width of columns."""
    return " ".join(re.sub(r"\d[\d.]* (ms|s|min)\b|─+", "", text.replace(str(root), "")).split())


def _printed_warnings(text: str) -> str:
    return "".join(re.findall("Warning: .*", text))


COMMANDS: dict[str, Callable[[Path, Path], Try]] = {
    "report": reported, "report --table": tabled, "measure": measured, "export": exported, "compare": compared, "watch": watched,
}  # fmt: skip


# Trying.


@contextlib.contextmanager
def copied(original: Path) -> Iterator[Path]:
    """A copy that goes away again, in a place of the same name each time."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(original, Path(place) / "it"))


def make_stopped(folder: Path) -> None:
    """A run that was stopped after a checkpoint."""
    from comity.runs.build import federation_of, prepare
    from comity.runs.config import experiment
    from comity.runs.run import start
    from comity.runs.server_run import Quiet

    class Stop(Quiet):
        def round(self, t: int, accuracy: float | None, ledger: Any) -> None:
            if t == STOPPED_AFTER:
                raise KeyboardInterrupt

    given = dict(
        zip((name.removeprefix("--") for name in SETTINGS[::2]), SETTINGS[1::2], strict=True)
    )
    chosen = experiment({"algorithm": METHOD, **given})
    with contextlib.suppress(KeyboardInterrupt):
        start(prepare(chosen, federation_of(chosen)), folder, Stop())


def damaged_files(run: Path) -> list[Path]:
    """The files of a run that are tried: all of them, of states those of the server and of one
    party.
    """
    states = [
        next((run / "checkpoints").glob(f"{who}-*.safetensors")) for who in ("server", "party-1")
    ]
    top = [
        p for p in sorted(run.iterdir()) if p.is_file() and p.name not in (".lock", "report.html")
    ]
    return [p.relative_to(run) for p in [*top, run / "checkpoints" / "manifest.json", *states]]


def tries(seed: int, wish: int | None) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """All damages, each in several places, by what they are called."""
    for damage, times in DAMAGES:
        for k in range(wish or times):
            draw = random.Random(f"{seed} {damage.__name__} {k}")

            def do(path: Path, damage: Damage = damage, draw: random.Random = draw) -> None:
                changed = damage(path.read_bytes(), draw)
                path.unlink()
                if changed is not None:
                    path.write_bytes(changed)

            yield f"{damage.__name__} {k}", do


def attack(
    title: str,
    original: Path,
    inside: str,
    commands: dict[str, Callable[[Path, Path], Try]],
    args: Any,
) -> list[str]:
    """Damage each file in each way; what was accepted silently."""
    run = original / inside
    reference = {}
    for name, command in commands.items():
        with copied(original) as place:
            reference[name] = command(place, run)
            assert reference[name].code == 0, (name, reference[name].said)
    counts: Counter[str] = Counter()
    silent = []
    for file in damaged_files(run):
        if args.files and file.name not in args.files.split(","):
            continue
        print(f"{title}: {file}", file=sys.stderr, flush=True)
        for display_name, do in tries(args.seed, args.times):
            with copied(original) as place:
                do(place / inside / file)
                same = meaning(place / inside / file) == meaning(run / file)
                if same:
                    counts["harmless"] += 1
                    continue
                with tempfile.TemporaryDirectory() as second:
                    for name, command in commands.items():
                        where = Path(shutil.copytree(place, Path(second) / name / "it"))
                        found = command(where, run)
                        if found.code or (found.said and found.said != reference[name].said):
                            counts["said"] += 1
                        elif found.brought == reference[name].brought:
                            counts["harmless"] += 1
                        else:
                            counts["silent"] += 1
                            silent.append(f"{title}: {file} {display_name}: {name}")
                        if "Traceback" in found.said or found.code not in (0, 1, 2):
                            silent.append(
                                f"{title}: {file} {display_name}: {name} ended with {found.code}:"
                                f" {found.said[-300:]}"
                            )
    print(
        f"{title}: {sum(counts.values())} tries: "
        + ", ".join(f"{n} {how}" for how, n in counts.items()),
        flush=True,
    )
    return silent


def main() -> None:
    """Make the runs, try all, and list what was accepted silently."""
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=("stopped", "finished"))
    options.add_argument(
        "--times",
        type=int,
        help="how often each damage is tried, in other places; more often where it pays",
    )
    options.add_argument("--files", default="")
    args = options.parse_args()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    study.study = represented  # type: ignore[assignment]
    checkpoint.EVERY_SECONDS = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        silent = []
        if args.only != "finished":
            make_stopped(Path(scratch) / "stopped")
            silent += attack("stopped", Path(scratch) / "stopped", "", {"resume": resumed}, args)
        if args.only != "stopped":
            finished = Path(scratch) / "finished"
            for asked in (
                ("compare", METHOD, *SETTINGS, "--out", finished, "--no-report"),
                ("measure", finished / RUN, "--json"),
            ):
                ended = comity(*asked)
                assert ended.code == 0, ended.err
            silent += attack(
                "finished", finished, RUN, {"resume": partial(_inside, resumed), **COMMANDS}, args
            )
    print("\n".join(silent) or "Nothing was accepted silently.")
    sys.exit(bool(silent))


def _inside(command: Callable[[Path, Path], Try], root: Path, known: Path) -> Try:
    return command(root / RUN, known)


if __name__ == "__main__":
    main()
