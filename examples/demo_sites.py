"""Demo of a run between sites: four hospitals and a server without data; one hospital is killed
during the run.

The server and the sites are separate processes on this machine. Each has its own certificate, and
they communicate over mutual TLS. The screen shows every command. At the end, also after an error,
the demo ends every process that it started, by its id.

Usage: python examples/demo_sites.py [folder; it is created, default: demo-sites]
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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SITES = ("cleveland", "hungarian", "switzerland", "long-beach")
KILLED = "hungarian"
METHOD, ROUNDS = "fedavg+dbe", 40
SETTINGS = ["--rounds", str(ROUNDS), "--model", "mlp2(width=32)", "--metric", "auc"]
FIRST, AWAY = 8, 2  # rounds before the kill, and the least number of rounds that the site misses
DEADLINE = "30"  # seconds; the first request after the kill waits that long
# Lines that explain the columns of a comparison are left out: docs/how-to/compare.md explains them.
EXPLANATIONS = ("over SOLO:", "Points of")
JOB = re.compile(r"^submitted as \S+ to")
WIDTH = 120
COMITY = [sys.executable, "-m", "comity.cli"]


class Demo:
    """One demo, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def show(self) -> None:
        """Run all steps in order."""
        title("Four hospitals learn together, and no patient's record moves.")
        fingerprint = self.create_federation()
        with ThreadPoolExecutor(2) as pool:
            list(
                pool.map(
                    lambda site: self.add_site(site, fingerprint, aloud=site == SITES[0]), SITES
                )
            )
        say("", f"... and so do {', '.join(SITES[1:-1])} and {SITES[-1]}")
        self.relax_policy()
        title(
            f"Server and sites start; the researcher compares {METHOD} with training alone;"
            f" {KILLED} is killed during the run."
        )
        self.start_all()
        run = self.order_runs()
        title(
            f"At {KILLED}: its records, its model and its per-patient test outcomes have stayed"
            " there"
        )
        self.show_site_results(run)
        title("The same on one machine, with the data pooled and the same absences")
        self.compare_with_loop(run)

    def create_federation(self) -> str:
        """Agree on columns and create the federation, as its operator. Return its fingerprint."""
        self.comity("", "data", "split", "--data", "heart", "--out", "hospitals")
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
        with socket.socket() as unused:
            unused.bind(("localhost", 0))
            port = unused.getsockname()[1]
        lines = self.comity(
            "operator",
            "deploy",
            "init",
            "hub",
            "--server",
            f"localhost:{port}",
            "--schema",
            "schema.json",
        )
        fingerprint = lines[-1]
        say("", short(fingerprint))
        return fingerprint

    def add_site(self, site: str, fingerprint: str, aloud: bool) -> None:
        """Request to join as a site, sign as the operator, check the signature as the site.

        The commands are shown on the screen if `aloud`.
        """
        operator, owner = ("operator", site) if aloud else ("", "")
        lines = self.comity(
            owner, "deploy", "join", "hub/invite.json", "--data", f"hospitals/{site}.csv"
        )
        if aloud:
            say("", next(text for text in lines if "stay there" in text))
        self.comity(operator, "deploy", "approve", f"{site}.request.zip", "--federation", "hub")
        self.comity(owner, "deploy", "accept", f"{site}.signed.zip", "--fingerprint", fingerprint)

    def relax_policy(self) -> None:
        """Change the policy of one site, so the tables can be compared whole at the end."""
        policy = self.folder / "switzerland" / "site.toml"
        text = policy.read_text(encoding="utf-8")
        policy.write_text(text.replace("records = 10\n", "records = 9\n"), encoding="utf-8")
        say(
            "switzerland",
            "writes records = 9 into site.toml: otherwise the figure of its 9 validation patients"
            " would stay at the site,",
        )
        say("", "and the tables could not be compared whole at the end")

    def start_all(self) -> None:
        """Start a process for the server and one for each site, in the background."""
        self.start("operator", "hub", "serve")
        for site in SITES:
            self.start(site if site == SITES[0] else "", site, "start")
        say(
            "",
            "... and so do the others: processes"
            f" {', '.join(str(process.pid) for process in self.processes.values())}",
        )
        self.until(
            lambda: all(self.connected(site) for site in SITES), "the sites are not connected"
        )

    def connected(self, site: str) -> bool:
        """Return whether a site has registered at the server, according to FLARE's log."""
        log = self.folder / site / "kit" / "log.txt"
        return log.exists() and "Successfully registered" in log.read_text(
            encoding="utf-8", errors="replace"
        )

    def order_runs(self) -> Path:
        """Order the runs, kill a site and start it again. Return the folder of the method's run."""
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
        process = self.spawn("researcher", words, stdout=subprocess.PIPE)
        run = self.folder / "result" / METHOD / "seed-0"
        with ThreadPoolExecutor(1) as pool:
            disturbance = pool.submit(self.disturb, run, process)
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if not line.startswith(EXPLANATIONS):
                        say("", JOB.sub("submitted to", line.rstrip()))
            except BaseException:
                process.terminate()  # `disturb` waits as long as this process runs
                raise
            disturbance.result()
        if process.wait():
            raise SystemExit("The runs have failed.")
        return run

    def disturb(self, run: Path, process: subprocess.Popen[str]) -> None:
        """Kill a site after some rounds, and start it again after some more."""
        order = run / "federation.json"
        self.until(lambda: process.poll() is not None or order.exists(), "it was not ordered")
        if process.poll() is not None:
            return
        server_folder = self.folder / "hub" / "runs" / name_of(run)

        def past(rounds: int) -> bool:
            return process.poll() is not None or completed_rounds(server_folder) >= rounds

        self.until(lambda: past(FIRST), "the run makes no rounds")
        if process.poll() is not None:
            return
        site = self.processes[KILLED]
        os.kill(site.pid, signal.SIGKILL)
        site.wait()
        killed_after = completed_rounds(server_folder)
        say(KILLED, f"kill -9 {site.pid}      (after round {killed_after})")
        self.until(lambda: past(killed_after + AWAY), "the run does not go on without it")
        if process.poll() is not None:
            return
        (self.folder / KILLED / "kit" / "log.txt").unlink(missing_ok=True)
        self.start(KILLED, KILLED, "start")

    def show_site_results(self, run: Path) -> None:
        """Show a site's page, and use its model on a new patient."""
        site_run = Path(KILLED) / "runs" / name_of(run)
        page = self.folder / site_run / "report.html"
        self.until(page.exists, "the site's page is not there")
        say("its page", str(page))
        with (self.folder / "hospitals" / f"{KILLED}.csv").open(
            encoding="utf-8", newline=""
        ) as file:
            patient = list(csv.DictReader(file))[3]
        del patient["diagnosis"]
        with (self.folder / "new.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(patient))
            writer.writeheader()
            writer.writerow(patient)
        description = ", ".join(
            f"{column.replace('_', ' ')} {value}"
            for column, value in list(patient.items())[:4]
            if value
        )
        say("a patient", f"{description}, ...")
        say(KILLED, f"python {site_run}/model/predict.py new.csv")
        for text in self.execute([sys.executable, f"{site_run}/model/predict.py", "new.csv"]):
            say("", text)

    def compare_with_loop(self, run: Path) -> None:
        """Compute the run again on pooled data, and compare the tables with those of the sites."""
        self.comity("", "data", "import", "hospitals", "--schema", "schema.json", "--out", "pooled")
        options = [
            "--engine",
            "loop",
            "--absent",
            f"{run.relative_to(self.folder)}/absences.csv",
            "--out",
            "loop",
        ]
        self.comity("researcher", "run", METHOD, "--data", "pooled", *SETTINGS, *options)
        loop = self.folder / "loop"
        same = (run / "metrics.csv").read_bytes() == (loop / "metrics.csv").read_bytes()
        say("metrics.csv", "the same bytes" if same else "DIFFERS")
        site_rows, loop_rows = (ledger(folder) for folder in (run, loop))
        same_rows = site_rows == loop_rows
        say("ledger.csv", f"the same {len(site_rows)} lines" if same_rows else "DIFFERS")
        say(
            "",
            "except the last evaluation: a loop also collects per-patient test outcomes, which here"
            " stay at the site",
        )
        if not same or not same_rows:
            raise SystemExit("The run between sites differs from that of the loop.")

    def comity(self, who: str, *words: str) -> list[str]:
        """Run a command to its end and return the lines that it printed.

        The command is shown on the screen if `who` is not empty.
        """
        if who:
            say(who, command(words))
        return self.execute([*COMITY, *words])

    def execute(self, words: Sequence[str]) -> list[str]:
        """Run a command and return the lines that it printed. End the demo if it fails."""
        finished = subprocess.run(
            words, cwd=self.folder, text=True, capture_output=True, check=False
        )
        if finished.returncode:
            raise SystemExit(f"{command(words)} failed:\n{finished.stdout}{finished.stderr}")
        return finished.stdout.splitlines()

    def start(self, who: str, folder: str, action: str) -> None:
        """Start a server or a site in the background."""
        words = ["deploy", action, folder]
        if who:
            say(who, f"{command(words)} &")
        with (self.folder / f"{folder}.out").open("a", encoding="utf-8") as out:
            self.spawn(folder, words, stdout=out, stderr=subprocess.STDOUT)

    def spawn(self, name: str, words: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
        """Start a process that the demo ends at its end. Ctrl-C does not reach it directly."""
        process = subprocess.Popen(
            [*COMITY, *words], cwd=self.folder, text=True, start_new_session=True, **streams
        )
        self.processes[name] = process
        return process

    def until(self, condition: Callable[[], bool], otherwise: str, seconds: float = 180) -> None:
        """Wait for a condition.

        Raises:
            SystemExit: after `seconds`, or if a server or site has ended with an error.
        """
        end = time.monotonic() + seconds
        while not condition():
            for name, process in self.processes.items():
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    raise SystemExit(f"{name} has ended: {self.folder / name}.out may say why.")
            if time.monotonic() > end:
                raise SystemExit(f"After {seconds:.0f} seconds {otherwise}: see {self.folder}.")
            time.sleep(0.1)

    def end(self) -> None:
        """End all processes that were started: first by SIGTERM, after 20 seconds by SIGKILL.

        The researcher's command ends first, then the sites, then the server between them.
        """
        for names in ({"researcher"}, set(SITES), {"hub"}):
            running = [
                process
                for name, process in self.processes.items()
                if name in names and process.poll() is None
            ]
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def name_of(run: Path) -> str:
    """Return the id of an ordered run."""
    return str(json.loads((run / "federation.json").read_text(encoding="utf-8"))["run"])


def rows(file: Path) -> list[dict[str, str]]:
    """Read a table. A file that does not exist has no rows."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def ledger(run: Path) -> list[dict[str, str]]:
    """Return all rows of a ledger, except the sites' replies to the last evaluation."""
    return [
        row
        for row in rows(run / "ledger.csv")
        if not (row["dst"] == "server" and row["kind"] == "eval" and last(row))
    ]


def last(row: dict[str, str]) -> bool:
    """Return whether a row is of the last round."""
    return int(row["round"]) == ROUNDS


def completed_rounds(run: Path) -> int:
    """Return how many rounds a run has completed."""
    return max(
        (int(row["round"]) for row in rows(run / "timing.csv") if row["round"].isdecimal()),
        default=0,
    )


def command(words: Sequence[str]) -> str:
    """Format a command as it is typed."""
    return short(f"comity {shlex.join(words)}")


def short(text: str) -> str:
    """Shorten a fingerprint to its beginning."""
    at = text.find("SHA256:")
    return text if at < 0 else f"{text[: at + 18]}...{text[at + 7 + 95 :]}"


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}\n", flush=True)


def say(who: str, text: str) -> None:
    """Print who does what."""
    lines = textwrap.wrap(
        text, WIDTH - 15, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    ) or [""]
    for k, line in enumerate(lines):
        print(f"  {'' if k else who:<13}{line}", flush=True)


def stop(number: int, _: object) -> None:
    """Exit on a signal, so that `main` ends all processes."""
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
