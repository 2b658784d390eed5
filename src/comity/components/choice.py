"""Choices of parties that depend on their results: who takes part, and who helps whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from comity.core import Key


def with_the_worst(count: int, n: int, scores: Mapping[int, float], key: Key) -> list[int]:
    """Choose `count` of n parties. Half of them (rounded down) have the lowest scores, where an
    unknown score counts as the lowest. The rest is random.
    """
    shuffled = key.permutation(n).tolist()
    worst = sorted(shuffled, key=lambda k: scores.get(k, float("-inf")))[: count // 2]
    return sorted(worst + [k for k in shuffled if k not in worst][: count - len(worst)])


def peer_chances(
    scores: Mapping[int, float], candidates: Sequence[int], explore: float, temperature: float
) -> Tensor:
    """(1 − ξ) · softmax(s/τ) + ξ · uniform over the candidates, with standardised scores s. A peer
    that was never asked gets the mean score.
    """
    values = [scores[j] for j in candidates if j in scores]
    mean = sum(values) / len(values) if values else 0.0
    s = torch.tensor([scores.get(j, mean) for j in candidates], dtype=torch.float64)
    spread = s.std(correction=0)
    s = (s - s.mean()) / spread if spread > 0 else torch.zeros_like(s)
    return (1 - explore) * (s / temperature).softmax(0) + explore / len(candidates)


class Asks:
    """A method whose parties choose peers by their past help, and sometimes at random. Subclasses
    declare these options.
    """

    peers: int
    explore: float
    temperature: float

    def choose_peers(
        self, scores: Mapping[int, float], candidates: Sequence[int], key: Key
    ) -> list[int]:
        """Draw peers without replacement with `peer_chances`. Returns all candidates if there are
        no more than `peers`.
        """
        if not 0 < self.peers < len(candidates):
            return list(candidates)
        chances = peer_chances(scores, candidates, self.explore, self.temperature)
        return sorted(
            candidates[k]
            for k in chances.multinomial(self.peers, generator=key.generator()).tolist()
        )


def moving_average(
    scores: Mapping[int, float], gains: Mapping[int, float], decay: float = 0.9
) -> dict[int, float]:
    """Update scores as moving averages of the peers' gains."""
    averages = dict(scores)
    for j, gain in gains.items():
        averages[j] = decay * scores[j] + (1 - decay) * gain if j in scores else gain
    return averages
