"""The demo of a run between sites: four hospitals, a server without data, and one hospital that is
killed on the way.

Server and sites are processes of their own on this machine, with certificates of their own, and
talk over mutual TLS. All that is typed stands on the screen. Whatever happens, every process that
was started here is ended, by its id.

Usage: python examples/demo_sites.py [folder, which is made; demo-sites unless told]
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SITES = ("cleveland", "hungarian", "switzerland", "long-beach")
KILLED = "hungarian"
METHOD, ROUNDS = "fedavg+dbe", 40
SETTINGS = ["--rounds", str(ROUNDS), "--model", "mlp2(width=32)", "--metric", "auc"]
FIRST, AWAY = 8, 2  # rounds before the kill, and rounds that it misses at least
DEADLINE = "30"  # seconds; the first request after the kill takes so long
EXPLAINED = (
    "over SOLO:",
    "Points of",
)  # what the columns of a comparison mean: docs/compare.md says it, too
JOB = re.compile(r"^submitted as \S+ to")
WIDTH = 120
COMITY = [sys.executable, "-m", "comity.cli"]


class Demo:
    """One showing, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: dict[str, subprocess.Popen[str]] = {}

    def show(self) -> None:
        """All of it, in order."""
        title("Four hospitals learn together, and no patient's record moves.")
        fingerprint = self.found()
        with ThreadPoolExecutor(2) as both:
            list(
                both.map(lambda site: self.joined(site, fingerprint, aloud=site == SITES[0]), SITES)
            )
        say("", f"... and so do {', '.join(SITES[1:-1])} and {SITES[-1]}")
        self.at_ease()
        title(
            f"Server and sites start; the researcher compares {METHOD} with training alone;"
            f" {KILLED} is killed on the way."
        )
        self.starting()
        run = self.ordered()
        title(
            f"At {KILLED}, where its patients, its model and which of its patients were judged"
            " rightly have stayed"
        )
        self.at_home(run)
        title("The same on one machine, with the data pooled and the same absences")
        self.checked(run)

    def found(self) -> str:
        """The operator's part: the agreed columns, and the federation; its fingerprint."""
        self.comity("", "data", "deal", "--data", "heart", "--out", "hospitals")
        (self.folder / "hospitals" / "va_long_beach.csv").rename(
            self.folder / "hospitals" / "long-beach.csv"
        )
        self.comity(
            "",
            "data",
            "schema",
            "hospitals",
            "--label",
            "diagnosis",
            "--positive",
            "ill",
            "--out",
            "schema.json",
        )
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        told = self.comity(
            "operator",
            "deploy",
            "init",
            "hub",
            "--server",
            f"localhost:{port}",
            "--schema",
            "schema.json",
        )
        say("", short(told[-1]))
        return told[-1]

    def joined(self, site: str, fingerprint: str, aloud: bool) -> None:
        """A site asks, the operator signs, the site checks whose signature it is."""
        operator, owner = ("operator", site) if aloud else ("", "")
        told = self.comity(
            owner, "deploy", "join", "hub/invite.json", "--data", f"hospitals/{site}.csv"
        )
        if aloud:
            say("", next(text for text in told if "stay there" in text))
        self.comity(operator, "deploy", "approve", f"{site}.request.zip", "--federation", "hub")
        self.comity(owner, "deploy", "accept", f"{site}.signed.zip", "--fingerprint", fingerprint)

    def at_ease(self) -> None:
        """One site changes its law, for the sake of the check at the end."""
        policy = self.folder / "switzerland" / "site.toml"
        text = policy.read_text(encoding="utf-8")
        policy.write_text(text.replace("records = 10\n", "records = 9\n"), encoding="utf-8")
        say(
            "switzerland",
            "writes records = 9 into site.toml: else the figure of its 9 validation patients would"
            " stay at home,",
        )
        say("", "and the tables could not be compared whole at the end")

    def starting(self) -> None:
        """A process for the server and one for each site, in the background."""
        self.start("operator", "hub", "serve")
        for site in SITES:
            self.start(site if site == SITES[0] else "", site, "start")
        say(
            "",
            "... and so do the others: processes"
            f" {', '.join(str(one.pid) for one in self.started.values())}",
        )
        self.until(
            lambda: all(self.connected(site) for site in SITES), "the sites are not connected"
        )

    def connected(self, site: str) -> bool:
        """Whether a site has found the server, by FLARE's own log."""
        log = self.folder / site / "kit" / "log.txt"
        return log.exists() and "Successfully registered" in log.read_text(
            encoding="utf-8", errors="replace"
        )

    def ordered(self) -> Path:
        """The run, with a site that is killed and returns; its folder."""
        words = [
            "compare",
            METHOD,
            "--federation",
            "hub",
            *SETTINGS,
            "--deadline",
            DEADLINE,
            "--out",
            "result",
        ]
        say("researcher", command(words))
        run = self.spawn("researcher", words, stdout=subprocess.PIPE)
        made = self.folder / "result" / METHOD / "seed-0"
        with ThreadPoolExecutor(1) as aside:
            disturbed = aside.submit(self.disturb, made, run)
            assert run.stdout is not None
            try:
                for line in run.stdout:
                    if not line.startswith(EXPLAINED):
                        say("", JOB.sub("submitted to", line.rstrip()))
            except BaseException:
                run.terminate()  # or it would be waited for: `disturb` goes on as long as it does
                raise
            disturbed.result()
        if run.wait():
            raise SystemExit("The runs have failed.")
        return made

    def disturb(self, made: Path, run: subprocess.Popen[str]) -> None:
        """Kill a site after some rounds, and start it again after some more."""
        order = made / "federation.json"
        self.until(lambda: run.poll() is not None or order.exists(), "it was not ordered")
        if run.poll() is not None:
            return
        there = self.folder / "hub" / "runs" / name_of(made)

        def past(rounds: int) -> bool:
            return run.poll() is not None or done(there) >= rounds

        self.until(lambda: past(FIRST), "the run makes no rounds")
        if run.poll() is not None:
            return
        site = self.started[KILLED]
        os.kill(site.pid, signal.SIGKILL)
        site.wait()
        killed = done(there)
        say(KILLED, f"kill -9 {site.pid}      (after round {killed})")
        self.until(lambda: past(killed + AWAY), "the run does not go on without it")
        if run.poll() is not None:
            return
        (self.folder / KILLED / "kit" / "log.txt").unlink(missing_ok=True)
        self.start(KILLED, KILLED, "start")

    def at_home(self, run: Path) -> None:
        """What a site has at the end: its page, and its model, which answers for a new patient."""
        home = Path(KILLED) / "runs" / name_of(run)
        self.until((self.folder / home / "report.html").exists, "the site's page is not there")
        say("its page", str(self.folder / home / "report.html"))
        with (self.folder / "hospitals" / f"{KILLED}.csv").open(
            encoding="utf-8", newline=""
        ) as file:
            patient = list(csv.DictReader(file))[3]
        del patient["diagnosis"]
        with (self.folder / "new.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(patient))
            writer.writeheader()
            writer.writerow(patient)
        known = ", ".join(
            f"{column.replace('_', ' ')} {value}"
            for column, value in list(patient.items())[:4]
            if value
        )
        say("a patient", f"{known}, ...")
        say(KILLED, f"python {home}/model/predict.py new.csv")
        answered = self.typed([sys.executable, f"{home}/model/predict.py", "new.csv"])
        for text in answered:
            say("", text)

    def checked(self, run: Path) -> None:
        """The loop's tables beside those of the sites."""
        self.comity("", "data", "import", "hospitals", "--schema", "schema.json", "--out", "pooled")
        there = [
            "--engine",
            "loop",
            "--absent",
            f"{run.relative_to(self.folder)}/absences.csv",
            "--out",
            "loop",
        ]
        self.comity("researcher", "run", METHOD, "--data", "pooled", *SETTINGS, *there)
        loop = self.folder / "loop"
        same = (run / "metrics.csv").read_bytes() == (loop / "metrics.csv").read_bytes()
        say("metrics.csv", "the same bytes" if same else "DIFFERS")
        paid, at_loop = (ledger(folder) for folder in (run, loop))
        say("ledger.csv", f"the same {len(paid)} lines" if paid == at_loop else "DIFFERS")
        say(
            "",
            "but for the last evaluation: a loop also collects which patients were judged rightly,"
            " and here that stays at home",
        )
        if not same or paid != at_loop:
            raise SystemExit("The run between sites is not that of the loop.")

    def comity(self, who: str, *words: str) -> list[str]:
        """A command, to its end; what it printed. It is on the screen if somebody types it."""
        if who:
            say(who, command(words))
        return self.typed([*COMITY, *words])

    def typed(self, words: Sequence[str]) -> list[str]:
        """Run a command, and end if it fails."""
        ran = subprocess.run(words, cwd=self.folder, text=True, capture_output=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{command(words)} failed:\n{ran.stdout}{ran.stderr}")
        return ran.stdout.splitlines()

    def start(self, who: str, folder: str, action: str) -> None:
        """A server or a site, in the background."""
        words = ["deploy", action, folder]
        if who:
            say(who, f"{command(words)} &")
        with (self.folder / f"{folder}.out").open("a", encoding="utf-8") as out:
            self.spawn(folder, words, stdout=out, stderr=subprocess.STDOUT)

    def spawn(self, name: str, words: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
        """Start a process that is ended at the end; Ctrl-C reaches it only through us."""
        made = subprocess.Popen(
            [*COMITY, *words], cwd=self.folder, text=True, start_new_session=True, **streams
        )
        self.started[name] = made
        return made

    def until(self, true: Any, otherwise: str, seconds: float = 180) -> None:
        """Wait for something, but not for ever, and not for a server or site that has ended."""
        end = time.monotonic() + seconds
        while not true():
            for name, one in self.started.items():
                if one.poll() not in (None, 0, -signal.SIGKILL):
                    raise SystemExit(f"{name} has ended: {self.folder / name}.out may say why.")
            if time.monotonic() > end:
                raise SystemExit(f"After {seconds:.0f} seconds {otherwise}: see {self.folder}.")
            time.sleep(0.1)

    def end(self) -> None:
        """End whatever was started: gently, then not."""
        for some in (
            {"researcher"},
            set(SITES),
            {"hub"},
        ):  # who orders, who answers, who is in between
            left = [
                one for name, one in self.started.items() if name in some and one.poll() is None
            ]
            for one in left:
                one.terminate()
            for one in left:
                try:
                    one.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    one.kill()
                    one.wait()


def name_of(run: Path) -> str:
    """The name of a run that was ordered."""
    return str(json.loads((run / "federation.json").read_text(encoding="utf-8"))["run"])


def rows(file: Path) -> list[dict[str, str]]:
    """A table; nothing where there is none."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def ledger(run: Path) -> list[dict[str, str]]:
    """All that was charged, but for what sites answered to the last evaluation."""
    return [
        row
        for row in rows(run / "ledger.csv")
        if not (row["dst"] == "server" and row["kind"] == "eval" and last(row))
    ]


def last(row: dict[str, str]) -> bool:
    """Whether a row is of the last round."""
    return int(row["round"]) == ROUNDS


def done(run: Path) -> int:
    """How many rounds a run has behind it."""
    return max(
        (int(row["round"]) for row in rows(run / "timing.csv") if row["round"].isdecimal()),
        default=0,
    )


def command(words: Sequence[str]) -> str:
    """A command as it is typed."""
    return short(f"comity {shlex.join(words)}")


def short(text: str) -> str:
    """A fingerprint's beginning says enough here."""
    at = text.find("SHA256:")
    return text if at < 0 else f"{text[: at + 18]}...{text[at + 7 + 95 :]}"


def title(text: str) -> None:
    """A heading."""
    print(f"\n{text}\n", flush=True)


def say(who: str, text: str) -> None:
    """Who does what."""
    lines = textwrap.wrap(
        text, WIDTH - 15, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    ) or [""]
    for k, line in enumerate(lines):
        print(f"  {'' if k else who:<13}{line}", flush=True)


def stop(number: int, _: object) -> None:
    """A polite request to end is one to clean up."""
    raise SystemExit(128 + number)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-sites").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    demo = Demo(folder)
    try:
        demo.show()
    except KeyboardInterrupt:
        raise SystemExit("\nStopped.") from None
    finally:
        demo.end()


if __name__ == "__main__":
    main()
