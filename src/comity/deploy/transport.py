"""Who carries requests from the server to sites and their answers back, whatever lies between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from comity.errors import ComityError


class Aborted(ComityError):
    """The job was ended from outside, in mid-run: nobody can be asked any more. The run can be
    ordered again.
    """


class Transport(Protocol):
    """Carries requests from the server to sites, by name, and their answers back: bytes in, bytes
    out.
    """

    @property
    def names(self) -> list[str]:
        """The sites that are connected to this job, by name."""
        ...

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Ask all at once; answers come in the order of their arrival.

        None stands for a site that failed or said nothing within `seconds`. No single site's fault
        raises; `Aborted` is raised when the whole job is ended.
        """
        ...
