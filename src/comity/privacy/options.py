"""The options of a method whose parties send representations to a server that trains on them (ADCOL, B.12)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from comity.core import Info, Key, Net, Params, Release, Releases, Samples, Task, Training, mixin, option, plain
from comity.core.fit import Private
from comity.privacy.accounting import gaussian_sigma
from comity.privacy.mechanisms import noised

ROW = (
    "what it protects is a row, that is what a given model makes of a sample. The sample has trained that model, so that all of "
    "a party's rows tell of it: of the record nothing is guaranteed"
)


@mixin
class PrivateRows:
    """Noise at the party against a curious server, or at a trusted server against the parties; and what either guarantees."""

    noise: Literal["none", "paper", "lap_l1", "gauss_l2"] = option("none", "on what a party sends: the paper's, or sound kinds")
    epsilon: float = option(5.0, "ε of one noisy release of a representation", above=0)
    delta: float = option(0.01, "δ for which gauss_l2's noise is made; the paper's 0.01 is large", above=0, maximum=1)
    disc_noise: float = option(0.0, "noise multiplier of DP-SGD on D at a trusted server; 0: none", minimum=0)
    disc_clip: float = option(1.0, "norm that each sample's gradient on D is clipped to", above=0)

    def released(self, z: Tensor, key: Key) -> Tensor:
        """Rows as they leave the party."""
        return noised(z, self.noise, self.epsilon, self.delta, key)

    def row_releases(self, field: str, width: int) -> Releases:
        """Through which noise rows of that width leave: two rows differ by 1 at most, the paper's by their width."""
        if self.noise == "none":
            return {}
        if self.noise == "gauss_l2":
            return {field: [Release("row", "gaussian", 1.0, gaussian_sigma(self.epsilon, self.delta), "replaced")]}
        differ = float(width) if self.noise == "paper" else 1.0
        return {field: [Release("row", "laplace", differ, 1 / self.epsilon, "replaced")]}

    def fitted(self, net: Net, task: Task, theta: Params, data: Samples, key: Key, how: Training) -> Params:
        """What a server learns from rows: by DP-SGD if asked."""
        private = Private(data, self.disc_clip, self.disc_noise, []) if self.disc_noise else None
        return net.fit(plain, theta, data, key, None, task=task, training=how, private=private).theta

    def disc_release(self, rows: int, how: Training) -> Release | None:
        """What a row has to do with what a server learned from so many."""
        if not self.disc_noise:
            return None
        noise, rate = self.disc_noise * self.disc_clip, min(1.0, how.batch / rows)
        return Release("row", "gaussian", self.disc_clip, noise, rate=rate, steps=how.steps_for(rows))

    def privacy_cautions(self, info: Info) -> list[str]:
        """What the noise does not guarantee."""
        said = []
        if self.noise != "none":
            said.append(f"noise={self.noise}: {ROW}.")
        if self.noise == "paper":
            said.append(
                f"noise=paper lets rows of {info.width} values differ by {info.width}, not 1: ε is as many times the paper's."
            )
        if self.disc_noise:
            said.append(f"disc_noise={self.disc_noise:g}: the server must be trusted, and {ROW}.")
        return said
