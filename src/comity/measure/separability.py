"""Separability: how well a new probe predicts the party from the representation.

The discriminators of ADCOL and FedUFO are trained against the parties; this probe is trained
afterwards. If the representations of parties have the same distribution, it can only guess: its
accuracy is the largest party's share of the samples (balanced: 1/N), and its cross-entropy is the
entropy of the shares (log N for parties of equal size). For a pair of parties, the proxy A-distance
of Ben-David et al. (NIPS 2006) is 2 (1 − 2 err): 0 if they cannot be distinguished, 2 if they
always can. It may be slightly below 0 by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.base.key import Key
from comity.errors import ComityError
from comity.measure.probe import Probes, standardise

TEST = 0.3
VALIDATION = 0.2
CHECKS = 20  # evaluations of a probe during its training
PAIRS = 64  # pairs of parties whose probes are stacked
LEAST = 4  # the fewest samples of a party that give training, validation and test samples


@dataclass(frozen=True)
class Separability:
    """The performance of a probe that predicts the party, on test samples."""

    accuracy: float
    chance: float
    """The accuracy of always predicting the largest party."""
    balanced: float
    """The mean of the parties' recalls; by chance 1/N."""
    parties: int
    cross_entropy: float
    """In nats."""
    entropy: float
    """The entropy of the parties' shares: the cross-entropy of a probe that knows only these."""

    @property
    def log_n(self) -> float:
        """The cross-entropy of a uniform guess."""
        return math.log(self.parties)


@dataclass(frozen=True, eq=False)
class _Split:
    """The samples of all parties, split into training, validation and test samples."""

    x: Tensor
    owner: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor

    @staticmethod
    def of(sets: Sequence[Tensor], key: Key) -> _Split:
        if len(sets) < 2 or min(map(len, sets)) < LEAST:
            raise ComityError(f"Separability needs two parties with at least {LEAST} samples each.")
        train = []
        validation = []
        test = []
        begin = 0
        for i, s in enumerate(sets):
            order = begin + key.fold("split", i).permutation(len(s))
            tested = max(1, round(TEST * len(s)))
            stop = tested + max(1, round(VALIDATION * (len(s) - tested)))
            test.append(order[:tested])
            validation.append(order[tested:stop])
            train.append(order[stop:])
            begin += len(s)
        x = torch.cat([s.flatten(1) for s in sets]).float()
        owner = torch.arange(len(sets)).repeat_interleave(torch.tensor([len(s) for s in sets]))
        learned = torch.cat(train)
        z = standardise(x, x[learned])
        return _Split(z, owner, learned, torch.cat(validation), torch.cat(test))


def _by_party(values: Tensor, owner: Tensor) -> Tensor:
    """Return the means of values (last axis: samples) by party."""
    member = F.one_hot(owner).double()
    means: Tensor = values.double() @ member / member.sum(0)
    return means


def _new_probes(keys: Sequence[Key], widths: Sequence[int], counts: Tensor) -> Probes:
    """Return probes that initially predict the class frequencies.

    The learning rate is smaller for wider probes: a step of Adam moves all weights equally, and
    therefore changes the logits of a wide probe more.
    """
    probes = Probes(keys, (*widths, len(counts)), lr=0.03 / math.sqrt(max(widths)))
    probes.weights[-1].zero_()
    probes.biases[-1][:] = (counts / counts.sum()).log()
    return probes


def separability(
    sets: Sequence[Tensor],
    key: Key,
    *,
    hidden: Sequence[int] = (),
    steps: int = 500,
    batch: int = 256,
) -> Separability:
    """Train a probe on the parties' representations (one row per sample) and evaluate it.

    The probe is linear unless `hidden` layers are given. Of each party's samples, 0.3 are test
    samples. A fifth of the others is used for early stopping: an overfitted probe would be
    overconfident, and its cross-entropy would exceed the entropy of the shares even where the
    representations have the same distribution.
    """
    s = _Split.of(sets, key)
    counts = torch.bincount(s.owner[s.train])
    probes = _new_probes([key.fold("probe")], (s.x.shape[1], *hidden), counts)
    checks = []
    for _ in range(CHECKS):
        loss = float(probes.losses(s.x[s.validation], s.owner[s.validation]))
        checks.append((loss, probes.scores(s.x[s.test])[0]))
        probes.learn(s.x, s.owner, s.train[None], max(1, steps // CHECKS), batch)
    truth = s.owner[s.test]
    _, scores = min(checks, key=lambda check: check[0])
    right = scores.argmax(1) == truth
    shares = torch.bincount(truth).double() / len(truth)
    return Separability(
        accuracy=float(right.double().mean()),
        chance=float(shares.max()),
        balanced=float(_by_party(right, truth).mean()),
        parties=len(sets),
        cross_entropy=float(F.cross_entropy(scores, truth)),
        entropy=float(torch.special.entr(shares).sum()),
    )


def proxy_a(
    sets: Sequence[Tensor],
    key: Key,
    *,
    hidden: Sequence[int] = (),
    steps: int = 100,
    batch: int = 64,
) -> Tensor:
    """Return the proxy A-distances of all pairs of parties, as a symmetric matrix.

    The error is the mean of the two parties' errors, and in training the samples of the smaller
    party are repeated up to the size of the larger. So ½ is chance, whatever the sizes are.
    """
    s = _Split.of(sets, key)
    learn = torch.cat([s.train, s.validation])
    by_party = [learn[s.owner[learn] == i] for i in range(len(sets))]
    largest = max(map(len, by_party))
    cycled = torch.stack([rows[torch.arange(largest) % len(rows)] for rows in by_party])
    # Every sample occurs twice: as one of a pair's first party (label 0), and of its second (1).
    twice = torch.cat([s.x, s.x])
    side = torch.arange(2).repeat_interleave(len(s.x))
    distances = torch.zeros(len(sets), len(sets), dtype=torch.float64)
    for pairs in torch.combinations(torch.arange(len(sets))).split(PAIRS):
        i, j = pairs.unbind(1)
        probes = _new_probes(
            [key.fold("pair", *pair) for pair in pairs.tolist()],
            (s.x.shape[1], *hidden),
            torch.ones(2),
        )
        probes.learn(twice, side, torch.cat([cycled[i], len(s.x) + cycled[j]], 1), steps, batch)
        # pairs x parties: how often the second party is predicted
        second = _by_party(probes.scores(s.x[s.test]).argmax(2), s.owner[s.test])
        error = (second.gather(1, pairs[:, :1]) + 1 - second.gather(1, pairs[:, 1:])).squeeze(1) / 2
        distances[i, j] = distances[j, i] = 2 * (1 - 2 * error)
    return distances
