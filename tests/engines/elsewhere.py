"""Sites without a network: real desks in folders of their own, a server that has no data, and a courier that hands bytes over."""

from __future__ import annotations

import json
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
from comity.sites.data import bring
from comity.sites.desk import Desk
from comity.sites.law import NAME, write
from comity.sites.passports import Identity
from comity.sites.server import RUNS, serve

OPEN = {  # a law that allows what a simulation does
    'never = ["centralized", "fed-sps(mode=samples)"]': "never = []",
    '"class counts"]': '"class counts", "samples"]',
    "records = 10 ": "records = 0 ",
    "outcomes = false": "outcomes = true",
    "class_counts = false": "class_counts = true",
}


class Root:
    """A certificate authority for tests."""

    def __init__(self, days: int = 10) -> None:
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.certificate = self._made("root", self.key, days)

    def identity(self, name: str, days: int = 10) -> Identity:
        """Somebody whom the root vouches for."""
        key = ed25519.Ed25519PrivateKey.generate()
        return Identity(self._made(name, key, days), key, self.certificate)

    def _made(self, name: str, key: ed25519.Ed25519PrivateKey, days: int) -> x509.Certificate:
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, "root"))
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=30))
        return made.not_valid_after(now + timedelta(days=days)).sign(self.key, None)


class Handed:
    """A courier within one process. `lost` says whose answer is lost, or who is not there at all (then nothing is asked)."""

    def __init__(self, desks: Mapping[str, Desk]) -> None:
        self.desks = dict(desks)
        self.lost: Callable[[str, bytes], str] = lambda name, request: ""
        self.changed: Callable[[str, bytes], bytes] = lambda name, answer: answer
        self.carried = 0

    @property
    def names(self) -> list[str]:
        return sorted(self.desks)

    def ask(self, requests: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | None]]:
        for name in reversed(list(requests)):  # in whatever order
            self.carried += len(requests[name])
            how = self.lost(name, requests[name])
            if how == "dead":
                yield name, None
                continue
            answer = self.desks[name].answer(requests[name])
            self.carried += len(answer)
            yield name, None if how == "lost" else self.changed(name, answer)


class Sites:
    """A federation of sites in folders of their own, and the same data pooled, to compare with."""

    def __init__(
        self, folder: Path, sizes: Mapping[str, tuple[int, int]], changes: Mapping[str, str] = OPEN, data: str = "digits"
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
            x, y = whole.x.numpy(), whole.y.numpy()
            np.savez(files / f"{name}.npz", x=x[cuts[0]], y=y[cuts[0]], x_test=x[cuts[1]], y_test=y[cuts[1]])
            at += learn + test
            self.site(name).mkdir()
            bring(files / f"{name}.npz", self.site(name) / "data", None, classes=10)
            write(self.site(name), name, "data")
            self.change(name, changes)
        import_federation(files, folder / "pooled", classes=10)
        (folder / "hub").mkdir()

    def site(self, name: str) -> Path:
        return self.folder / name

    def change(self, name: str, changes: Mapping[str, str]) -> None:
        """Change lines of a site's law."""
        law = self.site(name) / NAME
        text = law.read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        law.write_text(text, encoding="utf-8")

    def desk(self, name: str) -> Desk:
        return Desk(self.site(name), "lead@comity", self.root.identity(name))

    def courier(self) -> Handed:
        return Handed({name: self.desk(name) for name in self.names})

    def run(self, method: str, run: str, courier: Handed | None = None, **settings: Any) -> Path:
        """A run between the sites: its folder at the server."""
        order = {"run": run, "settings": {"algorithm": method, "data": "sites", "partition": "natural", **settings}}
        serve(courier or self.courier(), json.loads(json.dumps(order)), self.folder / "hub")
        return self.folder / "hub" / RUNS / run

    def pooled(self, method: str, out: Path, **settings: Any) -> comity.Result:
        """The same run with all data in one place, in a loop unless told."""
        fed = comity.load(str(self.folder / "pooled")).partition(
            "natural(min=1)", seed=settings.get("seed", 0), test=settings.get("test", "own(0.25)"),
            validation=settings.get("validation", 0.1),
        )  # fmt: skip
        return comity.run(method, fed, out=out, **{"engine": "loop"} | settings)
