"""The options of a method whose parties send representations to a server that trains on them (ADCOL, B.12)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from comity.core import Info, Key, Net, Params, Samples, Task, Training, mixin, option, plain
from comity.privacy.accounting import sampled_gaussian_epsilon
from comity.privacy.mechanisms import noised, private_step, release_epsilon


@mixin
class PrivateRows:
    """Noise at the party against a curious server, or at a trusted server against the parties; what both cost in all."""

    noise: Literal["none", "paper", "lap_l1", "gauss_l2"] = option("none", "on what a party sends: the paper's, or sound kinds")
    epsilon: float = option(5.0, "ε of one noisy release of a representation", above=0)
    delta: float = option(0.01, "δ that ε is counted at; the paper's 0.01 is too large to mean much", above=0, maximum=1)
    disc_noise: float = option(0.0, "noise multiplier of DP-SGD on D at a trusted server; 0: none", minimum=0)
    disc_clip: float = option(1.0, "norm that each sample's gradient on D is clipped to", above=0)

    def released(self, z: Tensor, key: Key) -> Tensor:
        """Rows as they leave the party."""
        return noised(z, self.noise, self.epsilon, self.delta, key)

    def fitted(self, net: Net, task: Task, theta: Params, data: Samples, key: Key, how: Training) -> Params:
        """What a server learns from rows: by DP-SGD if asked."""
        if self.disc_noise:
            step = private_step(task, key, how.lr, self.disc_clip, self.disc_noise)
            return net.fold(step, theta, data, key, how)
        return net.fit(plain, theta, data, key, None, task=task, training=how).theta

    def spent(self, t: int, width: int, rows: int, how: Training) -> dict[str, float]:
        """ε after t rounds: sequential composition at the party, Rényi accounting at the server; and as the paper counts."""
        found = {}
        if self.noise != "none":
            found = {"epsilon": t * release_epsilon(self.noise, self.epsilon, width), "epsilon-paper": self.epsilon}
        if self.disc_noise:
            steps = t * how.steps_for(rows)
            found["epsilon-disc"] = sampled_gaussian_epsilon(min(1.0, how.batch / rows), self.disc_noise, steps, self.delta)
        return found

    def privacy_cautions(self, info: Info, rows: int, epochs: int) -> list[str]:
        """What the guarantees really are after the last round."""
        how = replace(info.training, epochs=epochs, steps=None)
        spent = self.spent(info.rounds, info.width, rows, how)
        said = []
        if "epsilon" in spent:
            said.append(
                f"noise={self.noise} with epsilon={self.epsilon:g} a release comes to epsilon={spent['epsilon']:g} over "
                f"{info.rounds} rounds, as each of them releases the same samples again."
            )
        if "epsilon-disc" in spent:
            total = f"epsilon={spent['epsilon-disc']:.3g} at delta={self.delta:g}"
            said.append(f"DP-SGD on D comes to {total} over {info.rounds} rounds.")
        if spent and self.delta >= 1 / max(1, sum(info.sizes)) and (self.disc_noise or self.noise == "gauss_l2"):
            said.append(f"delta={self.delta:g} is not small against one in {sum(info.sizes)} samples.")
        return said
