"""The interface that carries requests from the server to the sites, and their replies back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from comity.errors import ComityError


class Aborted(ComityError):
    """The job was aborted from outside during the run. The run can be submitted again."""


class Transport(Protocol):
    """Carries requests from the server to sites, by name, and their replies back, all as bytes."""

    @property
    def names(self) -> list[str]:
        """The names of the sites that are connected to this job."""
        ...

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Send all requests at once, and yield the replies in the order of their arrival.

        Arguments:
            requests: the request to each site, by its name
            seconds: how long to wait for the replies

        Yields the name of each site with its reply, or with None if it failed or did not reply in
        time. An error of a single site raises nothing. Raises `Aborted` if the job is aborted.
        """
        ...
