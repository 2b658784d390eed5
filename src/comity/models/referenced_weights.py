"""A file of initial weights that a setting names by its content instead of its place.

A run between sites is a set of settings that its submitter signs. With the digest of the file among
them, the signature covers the weights, too, and each site can check what it is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from comity.errors import UsageError

INITIAL_WEIGHTS = "initial_weights.safetensors"
"""The file of initial weights in the folder of a run between sites."""
PATTERN = re.compile(r"sha256:([0-9a-f]{64}):([1-9][0-9]{0,14})")


@dataclass(frozen=True)
class WeightsReference:
    """What identifies a file of initial weights."""

    digest: str
    """The SHA-256 of the file, in hexadecimal digits."""
    size: int
    """The file's bytes."""

    @staticmethod
    def of(content: bytes) -> WeightsReference:
        """The reference to a file with this content."""
        return WeightsReference(sha256(content).hexdigest(), len(content))

    @staticmethod
    def read(setting: str | None) -> WeightsReference | None:
        """The reference that the setting `weights` is; None if it is the path of a file."""
        match = PATTERN.fullmatch(setting or "")
        return WeightsReference(match[1], int(match[2])) if match else None

    def __str__(self) -> str:
        return f"sha256:{self.digest}:{self.size}"

    def check(self, content: bytes) -> None:
        """Raise `UsageError` if a file's content is another."""
        if WeightsReference.of(content) != self:
            raise UsageError("The initial weights are not those that the run's settings name.")

    def read_file(self, path: Path) -> bytes:
        """The content of the file at `path`, after a check."""
        try:
            content = path.read_bytes()
        except OSError as why:
            raise UsageError(f"The initial weights of this run are not in {path}.") from why
        self.check(content)
        return content
