"""Privacy options of methods whose parties send representations (ADCOL, B.12) or means (DBE)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Self, TypeVar

from torch import Tensor

from comity.base.noise import gaussian
from comity.core import (
    Accounting,
    Info,
    Key,
    LearningTask,
    Params,
    Release,
    Releases,
    Samples,
    Server,
    Training,
    mixin,
    option,
    plain,
)
from comity.privacy.accounting import gaussian_epsilon, gaussian_sigma
from comity.privacy.mechanisms import add_noise
from comity.training.dp_sgd import Sampling
from comity.training.requests import Private
from comity.wire.codec import tree_digest

SMALL = 1e-9
"""A δ so small that any useful noise has an ε above 0."""
ROW = (
    "it protects a row, that is the representation of a sample by a given model. The sample was"
    " used to train that model, so that all rows of the party depend on it: nothing is guaranteed"
    " for the record"
)


TRAINED_OPENLY = (
    "covers what the method sends. Models are trained without noise, and evaluation metrics leave"
    " without noise."
)


@mixin
class PrivateRows:
    """Noise on rows at the party against a curious server, or at a trusted server against the
    parties, with the guarantees of either.
    """

    noise: Literal["none", "paper", "lap_l1", "gauss_l2"] = option(
        "none", "on what a party sends: the paper's, or sound kinds"
    )
    epsilon: float = option(5.0, "ε of one noisy release of a representation", above=0)
    delta: float = option(
        0.01, "δ for which gauss_l2's noise is made; the paper's 0.01 is large", above=0, maximum=1
    )
    disc_noise: float = option(
        0.0, "noise multiplier of DP-SGD on D at a trusted server; 0: none", minimum=0
    )
    disc_clip: float = option(1.0, "norm that each sample's gradient on D is clipped to", above=0)

    @abstractmethod
    def rows(self, n: int) -> int:
        """How many rows a party with n samples sends."""

    @abstractmethod
    def server_training(self, info: Info, cohort: Sequence[int]) -> Training:
        """How the server trains on the cohort's rows in a round."""

    def with_row_noise(self, sigma: float) -> Self:
        """The same method with Gaussian noise of that standard deviation on its rows (`+ldp`)."""
        return replace(self, noise="gauss_l2", epsilon=gaussian_epsilon(sigma, SMALL), delta=SMALL)

    def add_row_noise(self, z: Tensor, key: Key) -> Tensor:
        """Rows as the party sends them."""
        return add_noise(z, self.noise, self.epsilon, self.delta, key)

    def row_releases(self, field: str, width: int) -> Releases:
        """The release of rows of `width` values that are sent in `field`.

        Two rows differ by at most 1; with `noise=paper` by at most their width.
        """
        if self.noise == "none":
            return {}
        if self.noise == "gauss_l2":
            sigma = gaussian_sigma(self.epsilon, self.delta)
            return {field: [Release("row", "gaussian", 1.0, sigma, "replaced")]}
        sensitivity = float(width) if self.noise == "paper" else 1.0
        return {field: [Release("row", "laplace", sensitivity, 1 / self.epsilon, "replaced")]}

    def fit_on_server(
        self,
        server: Server,
        task: LearningTask,
        theta: Params,
        data: Samples,
        key: Key,
        how: Training,
    ) -> Params:
        """Train on the rows at the server, by DP-SGD if `disc_noise` is not 0; the weights."""
        private = Private(data, self.disc_clip, self.disc_noise, []) if self.disc_noise else None
        if private:
            key = key.bind(tree_digest([theta, data.x, data.y]))
        return server.fit(
            plain, theta, data, key, None, task=task, training=how, private=private
        ).theta

    def charge_server(self, server: Server, cohort: Sequence[int], unprotected: set[str]) -> None:
        """Charge to the privacy account what the server will send of the cohort's rows.

        `unprotected` names other fields that the server sends without noise.
        """
        if self.disc_noise:
            noise = PrivateRowsAccounting(self).server_release(server.info, cohort)
            server.release("Game.D", noise, cohort)
            for name in unprotected:
                server.release(name, None, cohort)

    @property
    def why_rows_not_private(self) -> str:
        """Why parties that send these rows cannot train privately; empty if they can."""
        if self.noise in ("lap_l1", "gauss_l2"):
            return ""
        return (
            "its parties send representations of single records (noise=gauss_l2 or noise=lap_l1"
            " hides them)"
        )


P = TypeVar("P", bound=PrivateRows)


class PrivateRowsAccounting(Accounting[P]):
    """The accounting of a method with these options."""

    def server_release(self, info: Info, cohort: Sequence[int]) -> Release | None:
        """What a trusted server that trains on the cohort's rows releases in a round."""
        if not self.method.disc_noise:
            return None
        rows = sum(self.method.rows(info.sizes[i]) for i in cohort)
        rate, steps = Sampling.of(self.method.server_training(info, cohort), rows)
        noise = self.method.disc_noise * self.method.disc_clip
        return Release("row", "gaussian", self.method.disc_clip, noise, rate=rate, steps=steps)

    def privacy_warnings(self, info: Info) -> list[str]:
        """What the noise does not guarantee."""
        warnings = []
        if self.method.noise != "none":
            warnings.append(f"noise={self.method.noise}: {ROW}.")
        if self.method.noise == "paper":
            warnings.append(
                f"noise=paper: rows of {info.width} values can differ by {info.width}, not by 1, so"
                f" that ε is {info.width} times the paper's."
            )
        if self.method.disc_noise:
            warnings.append(
                f"disc_noise={self.method.disc_noise:g}: the server must be trusted, and {ROW}."
            )
        return warnings


class NoisyMean:
    """The noise of DBE's Table 3 on a mean that a party uploads."""

    noise_s: float
    """s, the standard deviation of the noise."""
    noise_q: float
    """q, the share of the mean that is withheld."""

    def add_mean_noise(self, z: Tensor, key: Key) -> Tensor:
        """(1 − q) z̄ + N(0, s²), element by element."""
        return (1 - self.noise_q) * z + gaussian(key, z.shape, self.noise_s).to(z.device)


N = TypeVar("N", bound=NoisyMean)


class NoisyMeanAccounting(Accounting[N]):
    """The accounting of a method with this noise."""

    def privacy_warnings(self, info: Info) -> list[str]:
        """What the noise does not guarantee."""
        if not (self.method.noise_s or self.method.noise_q):
            return []
        return [
            "noise_s and noise_q guarantee nothing: the influence of one record on a mean is not"
            " bounded, so that no epsilon follows."
        ]
