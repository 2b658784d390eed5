"""Revoked certificates: a list that the operator signs with the root's key, and that the server and
the sites check before they trust a certificate.

The server sends the list with its first request of each job. A site stores the newest list that it
has seen, so that an older one cannot replace it. TLS does not check the list: a revoked site can
still connect, but no run is begun with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from comity.deploy.signatures import Signer, sign, verified
from comity.errors import UsageError
from comity.safe_files import write_atomically

REVOKED = "revoked.json"
"""The list in the folder of the operator, and of a site."""
LARGEST = 1 << 20
"""Bytes of a list, at most."""


class Revocations:
    """The revoked certificates that this server or site knows of.

    Arguments:
        folder: the folder of the operator or of a site; None to store nothing
        root: the root certificate of the federation
    """

    def __init__(self, folder: Path | None, root: x509.Certificate) -> None:
        self._path = folder / REVOKED if folder else None
        self._root = root
        self.text = ""
        """The list as it was signed; empty if nothing is revoked."""
        self.number = 0
        self._names: dict[int, str] = {}
        if self._path is not None and self._path.exists():
            text = self._path.read_text(encoding="utf-8", errors="replace")
            if not self._take(text):
                raise UsageError(
                    f"{self._path} is not a list of revoked certificates that the root of this"
                    " federation has signed: get it from the operator again."
                )

    def update(self, text: str) -> bool:
        """Take over a newer list, and return whether it was newer.

        Raises `UsageError` if the list is not signed by the root.
        """
        if not text:
            return False
        before = self.number
        if not self._take(text):
            raise UsageError(
                "The server's list of revoked certificates is not signed by the root of this"
                " federation."
            )
        if self.number == before:
            return False
        if self._path is not None:
            write_atomically(self._path, text, private=True)
        return True

    def has(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate is revoked."""
        return certificate.serial_number in self._names

    def has_serial(self, serial: str) -> bool:
        """Whether the certificate with this number, in hexadecimal digits, is revoked."""
        return int(serial, 16) in self._names

    @property
    def names(self) -> list[str]:
        """Whose certificates are revoked."""
        return sorted(set(self._names.values()))

    def _take(self, text: str) -> bool:
        """Read a list if its signature is valid. One that is not newer changes nothing."""
        if len(text) > LARGEST:
            return False
        try:
            content: dict[str, Any] = json.loads(text)
            signature = bytes.fromhex(content.pop("signature"))
            number = int(content["number"])
            names = {int(row["serial"], 16): str(row["name"]) for row in content["revoked"]}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False
        if not verified(self._root.public_key(), signature, _signed_text(content)):
            return False
        if number > self.number:
            self.text, self.number, self._names = text, number, names
        return True


def revoke(folder: Path, root: Path, serials: Iterable[str], name: str) -> Revocations:
    """Add certificates to the operator's list, sign it and write it.

    Arguments:
        folder: the operator's folder
        root: the folder with the root's certificate and key
        serials: the numbers of the certificates, in hexadecimal digits
        name: the site or the researcher that the certificates were issued to
    """
    certificate, key = _read_root(root)
    before = Revocations(folder, certificate)
    rows = list(json.loads(before.text)["revoked"]) if before.text else []
    revoked = {int(row["serial"], 16) for row in rows}
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    rows += [
        {"name": name, "serial": serial, "on": today}
        for serial in serials
        if int(serial, 16) not in revoked
    ]
    content: dict[str, Any] = {"number": before.number + 1, "revoked": rows}
    signature = sign(key, _signed_text(content)).hex()
    text = json.dumps(content | {"signature": signature}, indent=2) + "\n"
    write_atomically(folder / REVOKED, text)
    return Revocations(folder, certificate)


def _read_root(root: Path) -> tuple[x509.Certificate, Signer]:
    try:
        certificate = x509.load_pem_x509_certificate((root / "rootCA.pem").read_bytes())
        key = load_pem_private_key((root / "rootCA.key").read_bytes(), None)
    except (OSError, ValueError) as why:
        raise UsageError(f"The root's certificate and key are not in {root}.") from why
    if not isinstance(key, Signer):
        raise UsageError(f"The key in {root} is of a kind that cannot sign.")
    return certificate, key


def _signed_text(content: dict[str, Any]) -> bytes:
    return b"comity revoked " + json.dumps(content, sort_keys=True).encode()
