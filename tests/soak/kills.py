"""Kill runs with -9 at random moments, resume them, kill those again: what comes of it must be what
an undisturbed run leaves.

    python tests/soak/kills.py --kills 200 --seed 0

Every method on every engine, with checkpoints after every round, at times, and never before the
end; absences planned in some; `compare`, with two jobs too, and `tune` as a whole. Compared byte
for byte: all tables, the outcomes, and every state of the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
TABLES = ("metrics.csv", "ledger.csv", "absences.csv", "outcomes.csv")
PLAN = "party,round,call,how\np1,0,,offline\np2,1,,lost\np0,3,,offline\np3,4,,lost\n"
SETTINGS = (
    "--data digits --partition dirichlet(alpha=1.0) --parties 4 --model mlp2(width=8) --rounds 6"
    " --lr 0.02"
)
ENGINES = ("loop", "stacked", "process")
INTERVALS = ("0", "0.03", "0.2", "1000")
MOST_KILLS = 3  # of one run


@dataclass
class Case:
    """Something that can be killed and begun again."""

    name: str
    begin: list[str]
    again: list[str]
    folder: Path
    interval: str
    kills: int = 0


@dataclass
class Soak:
    """All that happened."""

    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    during_resume: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, case: Case, reference: dict[str, bytes], seconds: float) -> None:
        """One case to its end, with kills on the way."""
        command = case.begin
        while True:
            patience = None if case.kills >= MOST_KILLS else self.rng.uniform(0.0, 1.1 * seconds)
            code = _in_child(command, case.interval, patience)
            if code == -signal.SIGKILL:
                self.during_resume += command is case.again
                case.kills += 1
                self.kills[case.name.split()[0] if " " in case.name else case.name] += 1
                command = case.again if _begun(case) else case.begin
                continue
            if code:
                self.wrong.append(f"{case.name}: ended with {code}")
            break
        self.runs += 1
        if differing := [
            name for name, left in reference.items() if _left(case.folder).get(name) != left
        ]:
            self.wrong.append(
                f"{case.name}, checkpoints every {case.interval} s, {case.kills} kills:"
                f" {differing[:3]} differ"
            )


def _begun(case: Case) -> bool:
    return (case.folder / "config.toml").exists() or case.begin is case.again


def _in_child(command: list[str], interval: str, patience: float | None) -> int:
    """Run a command in a fork of this process, which has imported all that is slow to import; kill
    it after a while.
    """
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.environ["COMITY_CHECKPOINT_SECONDS"] = interval
        from comity.cli import main

        sys.argv = ["comity", *command]
        code: object = 1
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            os._exit(code if isinstance(code, int) else 1)
    end = time.monotonic() + patience if patience is not None else None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.002)


def _left(folder: Path) -> dict[str, bytes]:
    """What a run, or a study of several, leaves that may not vary."""
    found: dict[str, bytes] = {}
    for config in sorted(folder.rglob("config.toml")):
        run = config.parent
        where = str(run.relative_to(folder))
        found |= {
            f"{where}/{name}": (run / name).read_bytes() for name in TABLES if (run / name).exists()
        }
        manifest = run / "checkpoints" / "manifest.json"
        if manifest.exists():
            told = json.loads(manifest.read_text())
            for party, file, *_ in [told["server"], *told["parties"]]:
                found[f"{where}/state {party}"] = (run / "checkpoints" / file).read_bytes()
    return found


def _cases(
    folder: Path, plan: Path, rng: random.Random
) -> Iterator[tuple[str, Callable[[Path, str], Case]]]:
    """Cases without end: what is to be run once undisturbed, and how it is made in a folder with an
    interval.
    """
    sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
    from matrix import compositions

    def single(text: str, engine: str, absent: bool) -> Callable[[Path, str], Case]:
        more = [
            "--engine",
            engine,
            *(["--workers", "2"] if engine == "process" else []),
            *(["--absent", str(plan)] if absent else []),
        ]
        return lambda out, interval: Case(
            f"run {text} on {engine}",
            ["run", text, *SETTINGS.split(), *more, "--out", str(out)],
            ["resume", str(out)],
            out,
            interval,
        )

    def study(words: list[str]) -> Callable[[Path, str], Case]:
        def made(out: Path, interval: str) -> Case:
            command = [*words, *SETTINGS.split(), "--out", str(out)]
            return Case(" ".join(words[:2]), command, command, out, interval)

        return made

    everything = [
        (f"run {t} on {e}", single(t, e, absent))
        for k, t in enumerate(compositions())
        for e in ENGINES
        for absent in [k % 3 == 0]
    ]
    rng.shuffle(everything)
    compared = ("compare", study(["compare", "fedavg", "scaffold", "--no-report"]))
    beside = (
        "compare, jobs",
        study(["compare", "fedavg", "scaffold", "--no-report", "--jobs", "2"]),
    )
    tuned = ("tune", study(["tune", "fedprox", "--grid", "mu=0.1,1"]))
    at = 0
    while True:
        yield everything[at % len(everything)]
        if at % 9 == 4:
            yield compared
        if at % 9 == 6:
            yield beside
        if at % 9 == 8:
            yield tuned
        at += 1


def main() -> None:
    """Kill until enough is killed."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--kills", type=int, default=200)
    ask.add_argument("--seed", type=int, default=0)
    given = ask.parse_args()
    import torch

    import comity.runs.run  # what is slow to import is imported once
    import comity.studies.compare
    import comity.studies.tune  # noqa: F401

    torch.set_num_threads(1)
    rng = random.Random(given.seed)
    soak = Soak(rng)
    references: dict[str, tuple[dict[str, bytes], float]] = {}
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        plan = folder / "plan.csv"
        plan.write_text(PLAN)
        for number, (what, make) in enumerate(_cases(folder, plan, rng)):
            if what not in references:
                whole = make(folder / f"whole-{number}", "1000")
                began = time.monotonic()
                if code := _in_child(whole.begin, whole.interval, None):
                    sys.exit(f"{what} ends with {code} even when nobody disturbs it.")
                references[what] = _left(whole.folder), time.monotonic() - began
            case = make(folder / f"case-{number}", rng.choice(INTERVALS))
            soak.take(case, *references[what])
            print(
                f"{case.kills} kills  {case.name}, checkpoints every {case.interval} s", flush=True
            )
            if sum(soak.kills.values()) >= given.kills:
                break
    total = sum(soak.kills.values())
    print(
        f"{soak.runs} runs of {len(references)} kinds, {total} kills, {soak.during_resume} of them"
        f" of runs that went on: {', '.join(f'{n} {w}' for w, n in soak.kills.items())}"
    )
    for sentence in soak.wrong:
        print(f"WRONG: {sentence}")
    print(
        "All left what undisturbed ones leave, byte for byte."
        if not soak.wrong
        else f"{len(soak.wrong)} are wrong."
    )
    sys.exit(bool(soak.wrong))


if __name__ == "__main__":
    main()
