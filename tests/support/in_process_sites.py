"""Sites without a network: real desks in folders of their own, a server that has no data, and a
courier that hands bytes over.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

import comity
from comity.data.importing import import_federation
from comity.deploy.comparison import compare_sites
from comity.deploy.data import import_site_data
from comity.deploy.flare.startup_kits import LEAD
from comity.deploy.handler import RequestHandler
from comity.deploy.job_submission import SubmittedJob
from comity.deploy.key_exchange import Identity
from comity.deploy.policy import NAME, write
from comity.deploy.server import FAILURE, RUNS, SitesRefused, serve
from comity.deploy.session import content_of
from comity.deploy.signatures import Signer
from comity.runs.config import experiment
from comity.runs.folder import RunFolder
from comity.studies.compare import Findings

HUB = "hub.example"
"""The name in the server's certificate."""
OPEN = {  # a law that allows what a simulation does
    'never = ["centralized", "fed-sps(mode=samples)"]': "never = []",
    '"gradients"]': '"gradients", "class counts", "covariances", "samples"]',
    "records = 10\n": "records = 0\n",
    "held_out = 0.5": "held_out = 1.0",
    "digits = 3": "digits = 17",
    "sites = 2": "sites = 1",
    "outcomes = false": "outcomes = true",
}


class Root:
    """A certificate authority for tests."""

    def __init__(self, days: int = 10) -> None:
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.certificate = self.certified("root", self.key, days)
        self.lasting: dict[str, Identity] = {}
        """Identities of sites, which a restart does not change."""

    def identity(self, name: str, days: int = 10, since: int = 30) -> Identity:
        """Somebody whom the root vouches for, since some days ago and for some days more."""
        key = ed25519.Ed25519PrivateKey.generate()
        return Identity(self.certified(name, key, days, since), key, self.certificate)

    def lasting_identity(self, name: str) -> Identity:
        """The identity of a site, the same each time."""
        if name not in self.lasting:
            self.lasting[name] = self.identity(name)
        return self.lasting[name]

    def certified(self, name: str, key: Signer, days: int, since: int = 30) -> x509.Certificate:
        """A certificate for somebody's key."""
        subject, issuer = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, "root")
        )
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
        )
        made = made.serial_number(x509.random_serial_number()).not_valid_before(
            now - timedelta(days=since)
        )
        return made.not_valid_after(now + timedelta(days=days)).sign(self.key, None)


class Handed:
    """A courier within one process. `lost` says whose answer is lost, or who is not there at all
    (then nothing is asked).
    """

    def __init__(self, desks: Mapping[str, RequestHandler]) -> None:
        self.desks = dict(desks)
        self.lost: Callable[[str, bytes], str] = lambda name, request: ""
        self.changed: Callable[[str, bytes], bytes] = lambda name, answer: answer
        self.authenticated = True
        self.carried = 0

    @property
    def names(self) -> list[str]:
        return sorted(self.desks)

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        for name in reversed(list(requests)):  # in whatever order
            self.carried += len(requests[name])
            how = self.lost(name, content_of(requests[name]))
            if how == "offline" or name not in self.desks:
                yield name, None
                continue
            answer = self.desks[name].answer(requests[name])
            self.carried += len(answer)
            yield name, None if how == "lost" else self.changed(name, answer)


class Sites:
    """A federation of sites in folders of their own, and the same data pooled, to compare with."""

    def __init__(
        self,
        folder: Path,
        sizes: Mapping[str, tuple[int, int]],
        changes: Mapping[str, str] = OPEN,
        data: str = "digits",
        classes: int = 10,
    ) -> None:
        whole = comity.load(data)
        self.folder = folder
        self.root = Root()
        self.names = sorted(sizes)
        files = folder / "files"
        files.mkdir(parents=True)
        at = 0
        for name, (learn, test) in sizes.items():
            cuts = [slice(at, at + learn), slice(at + learn, at + learn + test)]
            x, y = whole.x.numpy(), whole.y.numpy() % classes
            np.savez(
                files / f"{name}.npz",
                x=x[cuts[0]],
                y=y[cuts[0]],
                x_test=x[cuts[1]],
                y_test=y[cuts[1]],
            )
            at += learn + test
            self.site(name).mkdir()
            import_site_data(files / f"{name}.npz", self.site(name) / "data", None, classes=classes)
            write(self.site(name), name, "data")
            self.change(name, changes)
        import_federation(files, folder / "pooled", classes=classes)
        (folder / "hub").mkdir()

    def site(self, name: str) -> Path:
        return self.folder / name

    def change(self, name: str, changes: Mapping[str, str]) -> None:
        """Change lines of a site's law."""
        policy = self.site(name) / NAME
        text = policy.read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        policy.write_text(text, encoding="utf-8")

    def handler(self, name: str, server: str | None = HUB) -> RequestHandler:
        """A site's request handler; without a `server` it answers whoever asks."""
        return RequestHandler(
            self.site(name), "lead@comity", self.root.lasting_identity(name), server
        )

    def transport(self, server: str | None = HUB) -> Handed:
        """A transport to all sites; without a `server` its requests may be changed on the way."""
        transport = Handed({name: self.handler(name, server) for name in self.names})
        transport.authenticated = server is not None
        return transport

    def run(self, method: str, run: str, transport: Handed | None = None, **settings: Any) -> Path:
        """A run between the sites: its folder at the server."""
        order = {
            "run": run,
            "settings": {"algorithm": method, "data": "sites", "partition": "natural", **settings},
        }
        serve(
            transport or self.transport(),
            json.loads(json.dumps(order)),
            self.folder / "hub",
            identity=None if transport and not transport.authenticated else self.root.identity(HUB),
        )
        return self.folder / "hub" / RUNS / run

    def compare(
        self, methods: list[str], out: Path, plain: str = "auto", **settings: Any
    ) -> Findings:
        """A comparison between the sites, with one seed."""

        def conduct(job: SubmittedJob, folder: Path) -> dict[str, Any]:
            run = self.run(job.settings["algorithm"], job.run, **job.settings | {"engine": "flare"})
            if (run / FAILURE).exists():
                raise SitesRefused((run / FAILURE).read_text())
            shutil.copytree(run, folder, dirs_exist_ok=True)
            return ended(folder)

        (self.folder / "hub" / LEAD).mkdir(exist_ok=True)
        base = experiment(settings)
        return compare_sites(
            self.folder / "hub", base, methods, [base.seed], out, conduct, 60, 0, plain
        )

    def pooled(self, method: str, out: Path, **settings: Any) -> comity.Result:
        """The same run with all data in one place, in a loop unless told."""
        fed = comity.load(str(self.folder / "pooled")).partition(
            "natural(min=1)", seed=settings.get("seed", 0), test=settings.get("test", "own(0.25)"),
            validation=settings.get("validation", 0.1),
        )  # fmt: skip
        return comity.run(method, fed, out=out, **{"engine": "loop"} | settings)


def watched(transport: Handed) -> list[tuple[str, bytes]]:
    """All that a courier carries, from now on, by whom it is to or from."""
    seen: list[tuple[str, bytes]] = []
    lost, changed = transport.lost, transport.changed

    def asks(name: str, request: bytes) -> str:
        seen.append((name, request))
        return lost(name, request)

    def answers(name: str, answer: bytes) -> bytes:
        seen.append((name, answer))
        return changed(name, answer)

    transport.lost, transport.changed = asks, answers
    return seen


def ended(folder: Path) -> dict[str, Any]:
    """The summary of a run that came to its end."""
    assert not (folder / FAILURE).exists(), (folder / FAILURE).read_text()
    summary = RunFolder(folder).read_summary()
    assert summary is not None
    return summary


def figures(folder: Path, party: str, split: str) -> list[float]:
    return [
        r.value
        for r in RunFolder(folder).read_metrics()
        if (r.party, r.split, r.metric) == (party, split, "accuracy")
    ]


def same_as_planned(sites: Sites, folder: Path, method: str, **settings: Any) -> None:
    """The tables are, byte for byte, those of a loop in which the same parties miss the same."""
    plan = str(folder / "absences.csv")
    out = folder.parent.parent / f"loop{folder.name}"
    pooled = sites.pooled(method, out, **settings, absent=plan if Path(plan).exists() else None)
    for name in ("metrics.csv", "ledger.csv", "outcomes.csv", "absences.csv"):
        one, other = folder / name, pooled.folder / name
        assert one.exists() == other.exists(), name
        if one.exists():
            assert one.read_text() == other.read_text(), name
