"""Kill runs with -9 at random moments, resume them and kill them again: the files must equal those
of an undisturbed run.

    python tests/soak/kills.py --kills 200 --seed 0

Every method on every engine is run, with checkpoints after every round, at intervals, or only at the
end, and some with planned absences; `compare` (also with two jobs) and `tune` as well. All tables,
the outcomes and every state of the last checkpoint are compared byte for byte.
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
    """A command that can be killed and repeated."""

    name: str
    begin: list[str]
    again: list[str]
    folder: Path
    interval: str
    kills: int = 0


@dataclass
class Soak:
    """The kills and faults so far."""

    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    during_resume: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, case: Case, reference: dict[str, bytes], seconds: float) -> None:
        """Run one case to its end, with kills on the way."""
        command = case.begin
        while True:
            patience = None if case.kills >= MOST_KILLS else self.rng.uniform(0.0, 1.1 * seconds)
            code = _in_child(command, case.interval, patience)
            if code == -signal.SIGKILL:
                self.during_resume += command is case.again
                case.kills += 1
                self.kills[case.name.split()[0] if " " in case.name else case.name] += 1
                command = case.again if _has_started(case) else case.begin
                continue
            if code:
                self.wrong.append(f"{case.name}: ended with {code}")
            break
        self.runs += 1
        if differing := [
            name for name, content in reference.items() if _files(case.folder).get(name) != content
        ]:
            self.wrong.append(
                f"{case.name}, checkpoints every {case.interval} s, {case.kills} kills:"
                f" {differing[:3]} differ"
            )


def _has_started(case: Case) -> bool:
    return (case.folder / "config.toml").exists() or case.begin is case.again


def _in_child(command: list[str], interval: str, patience: float | None) -> int:
    """Run a command in a fork of this process, which has imported torch and Comity; kill it after
    `patience` seconds. Returns the exit code.
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
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.002)


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a run, or of a study of several runs, that must not vary."""
    content: dict[str, bytes] = {}
    for config in sorted(folder.rglob("config.toml")):
        run = config.parent
        where = str(run.relative_to(folder))
        content |= {
            f"{where}/{name}": (run / name).read_bytes() for name in TABLES if (run / name).exists()
        }
        manifest = run / "checkpoints" / "manifest.json"
        if manifest.exists():
            saved = json.loads(manifest.read_text())
            for party, file, *_ in [saved["server"], *saved["parties"]]:
                content[f"{where}/state {party}"] = (run / "checkpoints" / file).read_bytes()
    return content


def _cases(
    folder: Path, plan: Path, rng: random.Random
) -> Iterator[tuple[str, Callable[[Path, str], Case]]]:
    """An endless series of cases: a name, and a function that makes the case for a folder and a
    checkpoint interval.
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
        def make_case(out: Path, interval: str) -> Case:
            command = [*words, *SETTINGS.split(), "--out", str(out)]
            return Case(" ".join(words[:2]), command, command, out, interval)

        return make_case

    everything = [
        (f"run {t} on {e}", single(t, e, absent))
        for k, t in enumerate(compositions())
        for e in ENGINES
        for absent in [k % 3 == 0]
    ]
    rng.shuffle(everything)
    compare_case = ("compare", study(["compare", "fedavg", "scaffold", "--no-report"]))
    jobs_case = (
        "compare, jobs",
        study(["compare", "fedavg", "scaffold", "--no-report", "--jobs", "2"]),
    )
    tune_case = ("tune", study(["tune", "fedprox", "--grid", "mu=0.1,1"]))
    at = 0
    while True:
        yield everything[at % len(everything)]
        if at % 9 == 4:
            yield compare_case
        if at % 9 == 6:
            yield jobs_case
        if at % 9 == 8:
            yield tune_case
        at += 1


def main() -> None:
    """Run cases until there were enough kills."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    import torch

    import comity.runs.run  # slow imports, done once before forking
    import comity.studies.compare
    import comity.studies.tune  # noqa: F401

    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
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
                    sys.exit(f"{what} ends with {code} even without kills.")
                references[what] = _files(whole.folder), time.monotonic() - began
            case = make(folder / f"case-{number}", rng.choice(INTERVALS))
            soak.take(case, *references[what])
            print(
                f"{case.kills} kills  {case.name}, checkpoints every {case.interval} s", flush=True
            )
            if sum(soak.kills.values()) >= arguments.kills:
                break
    total = sum(soak.kills.values())
    print(
        f"{soak.runs} runs of {len(references)} kinds, {total} kills, {soak.during_resume} of them"
        f" of resumed runs: {', '.join(f'{n} {w}' for w, n in soak.kills.items())}"
    )
    for sentence in soak.wrong:
        print(f"WRONG: {sentence}")
    print(
        "All files equal those of undisturbed runs, byte for byte."
        if not soak.wrong
        else f"{len(soak.wrong)} are wrong."
    )
    sys.exit(bool(soak.wrong))


if __name__ == "__main__":
    main()
