"""The terms of a round, which all its sites must agree on, and the limits that each site sets."""

from __future__ import annotations

from dataclasses import dataclass

from comity.base.call import CallId
from comity.core.algorithm import AnyAlgorithm
from comity.core.wrapper import check_can_be_summed
from comity.errors import UsageError
from comity.privacy.secagg.encoding import Encoding
from comity.privacy.secagg.masks import digest

LEAST_HONEST = 2
"""How many honest replies a sum must have: a sum of one reply is that reply."""


def least_threshold(sites: int, colluders: int) -> int:
    """The smallest t with 2t > n + c and t − c ≥ 2 (see the docstring of the package)."""
    return max((sites + colluders) // 2 + 1, colluders + LEAST_HONEST)


@dataclass(frozen=True)
class Terms:
    """What all sites of a round agree on.

    A site signs its keys together with a digest of its terms. Sites with different terms refuse
    each other.

    Arguments:
        run: the run's name
        call: the call of a party function whose replies are added up
        message: digest, in hexadecimal digits, of what the server sent to each site for this call
        roster: the names of all sites that may take part, in ascending order
        threshold: t, how many sites must reveal their shares before the sum is known
        colluders: c, how many sites may collude with the server
        encoding: how replies are written as integers
    """

    run: str
    call: CallId
    message: str
    roster: tuple[str, ...]
    threshold: int
    colluders: int
    encoding: Encoding

    def __post_init__(self) -> None:
        sites = len(self.roster)
        if list(self.roster) != sorted(set(self.roster)):
            raise UsageError("A roster must have distinct names in ascending order.")
        if self.colluders < 0:
            raise UsageError(f"colluders must be a number from 0 on, not {self.colluders}.")
        least = least_threshold(sites, self.colluders)
        if least > sites:
            raise UsageError(
                f"Secure aggregation of {sites} sites cannot withstand {self.colluders} colluders:"
                f" at least {LEAST_HONEST} honest sites must be in every sum."
            )
        if not least <= self.threshold <= sites:
            raise UsageError(
                f"The threshold of {sites} sites with {self.colluders} colluders must be from"
                f" {least} to {sites}, not {self.threshold}."
            )
        self.encoding.check(sites, self.threshold, self.colluders)

    def digest(self) -> bytes:
        """A digest of all terms."""
        return digest(
            "comity secagg terms",
            self.run,
            *self.call,
            self.message,
            self.threshold,
            self.colluders,
            self.encoding.fields(),
            *self.roster,
        )


@dataclass(frozen=True)
class SiteLimits:
    """The terms that a site accepts at least. They belong to the site's policy, and no server can
    change them.

    Arguments:
        threshold: the least threshold
        least_roster: the fewest sites that send keys in a round
        colluders: how many sites may collude with the server, at least
    """

    threshold: int
    least_roster: int
    colluders: int = 1

    def check(self, terms: Terms) -> None:
        """Refuse terms that are less strict."""
        if len(terms.roster) < self.least_roster:
            raise UsageError(
                f"This site takes part in secure aggregation of at least {self.least_roster} sites,"
                f" not of {len(terms.roster)} (least_roster)."
            )
        if terms.threshold < self.threshold:
            raise UsageError(
                f"This site takes part in secure aggregation with a threshold of at least"
                f" {self.threshold}, not {terms.threshold} (threshold)."
            )
        if terms.colluders < self.colluders:
            raise UsageError(
                f"This site takes part in secure aggregation that withstands at least"
                f" {self.colluders} colluders, not {terms.colluders} (colluders)."
            )


def check_only_averages(algorithm: AnyAlgorithm, name: str) -> None:
    """Raise UsageError if a method needs single replies, as median, trimmed mean and Krum do."""
    try:
        check_can_be_summed(algorithm, name)
    except UsageError as why:
        raise UsageError(
            f"{name} cannot have secure aggregation: it does more with single replies than average"
            " them, and the server would learn their sum only."
        ) from why
