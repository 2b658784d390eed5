"""A deployment on this machine: real processes with mutual TLS, on the loopback interface."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from comity.deploy.flare import startup_kits
from comity.deploy.flare.jobs import Jobs
from comity.deploy.flare.processes import descendants, end_all

HERE = Path(__file__).parent
OUTSIDE_FOLDERS = (Path("/tmp/nvflare"), Path.home() / ".nvflare")  # where FLARE writes by default
START = (
    "import sys; from pathlib import Path; from comity.deploy.flare.processes import {what};"
    " {what}(*map(Path, sys.argv[1:]))"
)


def free_port() -> int:
    """A free port."""
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return int(at.getsockname()[1])


class Deployment:
    """A server and sites that can be started, killed and restarted. `handler` is the module with
    the server's and the sites' part of their jobs.
    """

    def __init__(self, folder: Path, names: Sequence[str], handler: str = "echo") -> None:
        self.folder = folder
        self.hub = folder / "hub"
        self.names = list(names)
        self.handler = handler
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.before = [folder for folder in OUTSIDE_FOLDERS if folder.exists()]
        invite = startup_kits.init(self.hub, "localhost", free_port())
        for name in names:
            request = startup_kits.join(invite, name, self.site(name))
            startup_kits.accept(
                startup_kits.approve(self.hub, request), self.site(name), invite.fingerprint
            )

    def site(self, name: str) -> Path:
        """A site's own folder."""
        return self.folder / name

    def start(self, *names: str, first: str = "", handler: str | None = None) -> None:
        """Start "server" or sites by name; `first` is code that their processes begin with, and
        `handler` replaces the module of the deployment.
        """
        for name in names:
            at = (
                [self.hub, self.hub / startup_kits.SERVER]
                if name == "server"
                else [self.site(name), self.site(name) / startup_kits.KIT]
            )
            env = os.environ | {
                "COMITY_SITES_HANDLER": self.handler if handler is None else handler
            }
            env["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
            )
            what = "run_server" if name == "server" else "run_site"
            with (self.folder / f"{name}.out").open("ab") as out:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-c", first + START.format(what=what), *map(str, at)],
                    env=env,
                    stdout=out,
                    stderr=out,
                )
            if name == "server":
                self._wait_for_port()

    def _wait_for_port(self) -> None:
        port = startup_kits.Invite.load(self.hub / startup_kits.INVITE).port
        for _ in range(300):
            with socket.socket() as at:
                if at.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(self.output("server"))

    def output(self, name: str) -> str:
        """The output of a server or a site."""
        return (self.folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")

    def log(self, name: str) -> str:
        """FLARE's log at a server or a site."""
        kit = (
            self.hub / startup_kits.SERVER
            if name == "server"
            else self.site(name) / startup_kits.KIT
        )
        return "".join(
            file.read_text(encoding="utf-8", errors="replace")
            for file in sorted(kit.rglob("log.txt*"))
        )

    @contextmanager
    def jobs(self, kit: str = startup_kits.LEAD, seconds: float = 20) -> Iterator[Jobs]:
        """The researcher's connection to the server."""
        with Jobs.at(self.hub / kit, seconds) as jobs:
            yield jobs

    def wait_for(self, jobs: Jobs, *names: str, seconds: float = 60) -> None:
        """Wait until these sites are connected."""
        end = time.monotonic() + seconds
        while not set(names or self.names) <= set(jobs.sites()):
            assert time.monotonic() < end, (
                f"{jobs.sites()} are there after {seconds} s, not {names or self.names}"
            )
            time.sleep(0.5)

    def wait_until_gone(self, jobs: Jobs, name: str, seconds: float = 90) -> None:
        """Wait until the server has noticed that a site is disconnected."""
        end = time.monotonic() + seconds
        while name in jobs.sites():
            assert time.monotonic() < end, f"{name} is still there after {seconds} s"
            time.sleep(0.5)

    def steps(self) -> list[dict[str, Any]]:
        """The results of the finished steps."""
        return [step for step in self._lines() if "answers" in step]

    def _lines(self) -> list[dict[str, Any]]:
        file = self.hub / "steps.jsonl"
        return (
            [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            if file.exists()
            else []
        )

    def wait_for_steps(self, count: int, seconds: float = 90) -> list[dict[str, Any]]:
        """Wait until `count` steps are finished. Returns them."""
        end = time.monotonic() + seconds
        while len(self.steps()) < count:
            assert time.monotonic() < end, (
                f"{len(self.steps())} steps after {seconds} s\n{self.log('server')[-3000:]}"
            )
            time.sleep(0.05)
        return self.steps()

    def wait_until_asked(self, ask: str, seconds: float = 90) -> None:
        """Wait until the server has begun a step."""
        end = time.monotonic() + seconds
        while not any(line.get("started") == ask for line in self._lines()):
            assert time.monotonic() < end, (
                f"{ask} was not asked within {seconds} s\n{self.log('server')[-3000:]}"
            )
            time.sleep(0.05)

    def go(self, name: str) -> None:
        """Start a step that waits for a file of this name."""
        (self.hub / name).touch()

    def tree(self, name: str) -> list[psutil.Process]:
        """All processes of a server or a site: the command, then FLARE's process, then the jobs'."""
        return descendants([self.processes[name].pid])

    def job_process(self, name: str) -> psutil.Process:
        """The process of the running job of a server or a site."""
        (process,) = [
            candidate
            for candidate in self.tree(name)
            if any(".runner_process" in w or ".worker_process" in w for w in candidate.cmdline())
        ]
        return process

    def kill(self, name: str) -> None:
        """Kill all processes of a server or a site at once, as a power cut would."""
        for process in self.tree(name):
            process.kill()
        self.processes.pop(name).wait()

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        """Send a signal to a server or a site, and wait until it ends. Returns its exit code."""
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(timeout=30)

    def restore(self) -> None:
        """Start all processes that do not run, and delete the results of earlier steps."""
        for file in [*self.hub.glob("go*"), self.hub / "steps.jsonl"]:
            file.unlink(missing_ok=True)
        self.start(*(name for name in ("server", *self.names) if name not in self.processes))

    def close(self) -> None:
        """Stop all processes, and check that none remains. The name of the folder in a command
        identifies our processes.
        """
        for name in list(self.processes):
            self.stop(name)
        remaining = self.remaining_processes()
        end_all([process.pid for process in remaining])
        assert not remaining, f"still running: {[process.info for process in remaining]}"

    def remaining_processes(self, seconds: float = 5) -> list[psutil.Process]:
        """Processes with this folder in their command that remain after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            processes = [p for p in psutil.process_iter(["pid", "cmdline"]) if self._ours(p)]
            if not processes or time.monotonic() > end:
                return processes
            time.sleep(0.2)

    def _ours(self, process: psutil.Process) -> bool:
        return process.pid != os.getpid() and any(
            str(self.folder) in word for word in process.info["cmdline"] or ()
        )


def expire(certificate: Path, root: Path) -> None:
    """Replace a certificate by one of last year, signed by the same root."""
    sign(certificate, root, -400, -35)


def sign(certificate: Path, root: Path, first: int, last: int) -> None:
    """Replace a certificate by one that a root signs, valid between two days, counted from today."""
    original = x509.load_pem_x509_certificate(certificate.read_bytes())
    key: Any = serialization.load_pem_private_key((root / "rootCA.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((root / "rootCA.pem").read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(original.subject)
        .issuer_name(issuer.subject)
        .public_key(original.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=-first))
        .not_valid_after(now - datetime.timedelta(days=-last))
    )
    for extension in original.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate.write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
