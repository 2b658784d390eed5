"""The options of a method whose parties send representations to a server that trains on them
(ADCOL, B.12).
"""

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
from comity.privacy.mechanisms import noised
from comity.training.requests import Private

SMALL = 1e-9
"""A δ at which any noise that anybody would want is some ε above 0."""
ROW = (
    "what it protects is a row, that is what a given model makes of a sample. The sample has"
    " trained that model, so that all of a party's rows tell of it: of the record nothing is"
    " guaranteed"
)


TRAINED_OPENLY = (
    "is for what the method sends. Models are trained without noise, and figures by which they are"
    " judged leave as they are."
)


@mixin
class PrivateRows:
    """Noise at the party against a curious server, or at a trusted server against the parties; and
    what either guarantees.
    """

    noise: Literal["none", "paper", "lap_l1", "gauss_l2"] = option(
        "none", "on what a party sends: the paper's, or sound kinds"
    )
    epsilon: float = option(5.0, "ε of one noisy release of a representation", above=0)
    delta: float = option(
        0.01, "δ for which gauss_l2's noise is made; the paper's 0.01 is large", above=0, maximum=1
    )
    disc_epochs: int = option(
        1, "passes over the representations per round (Algorithm 1)", minimum=0
    )
    disc_noise: float = option(
        0.0, "noise multiplier of DP-SGD on D at a trusted server; 0: none", minimum=0
    )
    disc_clip: float = option(1.0, "norm that each sample's gradient on D is clipped to", above=0)

    @abstractmethod
    def rows(self, n: int) -> int:
        """How many rows a party of n samples sends."""

    def behind(self, sigma: float) -> Self:
        """The same method with Gaussian noise of that standard deviation on its rows (`+ldp`)."""
        return replace(self, noise="gauss_l2", epsilon=gaussian_epsilon(sigma, SMALL), delta=SMALL)

    def released(self, z: Tensor, key: Key) -> Tensor:
        """Rows as they leave the party."""
        return noised(z, self.noise, self.epsilon, self.delta, key)

    def row_releases(self, field: str, width: int) -> Releases:
        """Through which noise rows of that width leave: two rows differ by 1 at most, the paper's
        by their width.
        """
        if self.noise == "none":
            return {}
        if self.noise == "gauss_l2":
            return {
                field: [
                    Release(
                        "row", "gaussian", 1.0, gaussian_sigma(self.epsilon, self.delta), "replaced"
                    )
                ]
            }
        differ = float(width) if self.noise == "paper" else 1.0
        return {field: [Release("row", "laplace", differ, 1 / self.epsilon, "replaced")]}

    def fitted(
        self,
        server: Server,
        task: LearningTask,
        theta: Params,
        data: Samples,
        key: Key,
        how: Training,
    ) -> Params:
        """What a server learns from rows: by DP-SGD if asked."""
        private = Private(data, self.disc_clip, self.disc_noise, []) if self.disc_noise else None
        return server.fit(
            plain, theta, data, key, None, task=task, training=how, private=private
        ).theta

    def made_known(self, server: Server, cohort: Sequence[int], bare: set[str]) -> None:
        """Account for what parties will be sent of others' rows, and for what else of theirs goes
        out as it is.
        """
        if self.disc_noise:
            noise = PrivateRowsAccounting(self).server_release(server.info, cohort)
            server.release("Game.D", noise, cohort)
            for name in bare:
                server.release(name, None, cohort)

    @property
    def why_rows_not_private(self) -> str:
        """Why parties that send rows cannot train with DP-SGD; "" if noise bounds the rows."""
        if self.noise in ("lap_l1", "gauss_l2"):
            return ""
        return (
            "its parties send what their models make of single records (noise=gauss_l2 or lap_l1"
            " hides them)"
        )


P = TypeVar("P", bound=PrivateRows)


class PrivateRowsAccounting(Accounting[P]):
    """The accounting of a method with these options."""

    def server_release(self, info: Info, cohort: Sequence[int]) -> Release | None:
        """What a row has to do with what a server learned from those of a cohort."""
        if not self.method.disc_noise:
            return None
        rows = sum(self.method.rows(info.sizes[i]) for i in cohort)
        steps = replace(info.training, epochs=self.method.disc_epochs, steps=None).steps_for(rows)
        noise, rate = (
            self.method.disc_noise * self.method.disc_clip,
            min(1.0, info.training.batch / rows),
        )
        return Release("row", "gaussian", self.method.disc_clip, noise, rate=rate, steps=steps)

    def privacy_warnings(self, info: Info) -> list[str]:
        """What the noise does not guarantee."""
        said = []
        if self.method.noise != "none":
            said.append(f"noise={self.method.noise}: {ROW}.")
        if self.method.noise == "paper":
            said.append(
                f"noise=paper lets rows of {info.width} values differ by {info.width}, not 1: ε is"
                " as many times the paper's."
            )
        if self.method.disc_noise:
            said.append(
                f"disc_noise={self.method.disc_noise:g}: the server must be trusted, and {ROW}."
            )
        return said


class NoisyMean:
    """The noise of DBE's Table 3 on a mean that a party uploads."""

    noise_s: float
    """s, its standard deviation."""
    noise_q: float
    """q, the share of the mean that is withheld."""

    def noised(self, z: Tensor, key: Key) -> Tensor:
        """(1 − q) z̄ + N(0, s²), element by element."""
        return (1 - self.noise_q) * z + gaussian(key, z.shape, self.noise_s).to(z.device)


N = TypeVar("N", bound=NoisyMean)


class NoisyMeanAccounting(Accounting[N]):
    """The accounting of a method with this noise."""

    def privacy_warnings(self, info: Info) -> list[str]:
        """What the noise does not guarantee."""
        told = (
            "noise_s and noise_q guarantee nothing: how far one record moves a mean is not bounded,"
            " so that no epsilon follows."
        )
        return [told] if self.method.noise_s or self.method.noise_q else []
