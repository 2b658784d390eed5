"""Whose representation is it? A fresh probe's attempt to tell parties apart by their
representations.

ADCOL's and FedUFO's discriminators are trained against the parties; this one comes afterwards and
owes nobody anything. If representations are matched, it can do no better than guess: its accuracy
is the largest party's share (balanced: 1/N) and its cross-entropy the entropy of the shares
(parties of equal size: log N). For a pair, the proxy A-distance of Ben-David et al. (NIPS 2006) is
2 (1 − 2 err): 0 if they cannot be told apart, 2 if always. It may fall a little below 0 by chance.
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
from comity.measure.probe import Probes, standardised

TEST = 0.3
VALIDATION = 0.2
LOOKS = 20  # times a probe is judged on its way
PAIRS = 64  # pairs probed at once
LEAST = 4  # samples of a party that leave some to learn from, to stop by and to be judged on


@dataclass(frozen=True)
class Separability:
    """What a probe knows of whose a representation is, on samples it has not seen."""

    accuracy: float
    chance: float
    """The accuracy of naming the largest party always."""
    balanced: float
    """The mean over parties of their own accuracy; by chance 1/N."""
    parties: int
    cross_entropy: float
    """In nats."""
    entropy: float
    """Of the parties' shares: the cross-entropy of knowing these and nothing else."""

    @property
    def log_n(self) -> float:
        """The cross-entropy of a uniform guess."""
        return math.log(self.parties)


@dataclass(frozen=True, eq=False)
class _Split:
    """All parties' samples in one place, and which of them are to learn from, to stop by and to be
    judged on.
    """

    x: Tensor
    owner: Tensor
    train: Tensor
    held: Tensor
    test: Tensor

    @staticmethod
    def of(sets: Sequence[Tensor], key: Key) -> _Split:
        if len(sets) < 2 or min(map(len, sets)) < LEAST:
            raise ComityError(
                f"Telling parties apart needs two of them with at least {LEAST} samples each."
            )
        train = []
        held = []
        test = []
        begin = 0
        for i, s in enumerate(sets):
            order = begin + key.fold("split", i).permutation(len(s))
            tested = max(1, round(TEST * len(s)))
            stop = tested + max(1, round(VALIDATION * (len(s) - tested)))
            test.append(order[:tested])
            held.append(order[tested:stop])
            train.append(order[stop:])
            begin += len(s)
        x = torch.cat([s.flatten(1) for s in sets]).float()
        owner = torch.arange(len(sets)).repeat_interleave(torch.tensor([len(s) for s in sets]))
        learned = torch.cat(train)
        return _Split(standardised(x, x[learned]), owner, learned, torch.cat(held), torch.cat(test))


def _by_party(values: Tensor, owner: Tensor) -> Tensor:
    """Means of values (last axis: samples) by party."""
    member = F.one_hot(owner).double()
    means: Tensor = values.double() @ member / member.sum(0)
    return means


def _blank(keys: Sequence[Key], widths: Sequence[int], counts: Tensor) -> Probes:
    """Probes that know nothing yet but how many samples each class has, and learn the slower the
    wider they are.

    A step of Adam moves all weights alike and so the answers by more in a wide probe: the pace
    makes up for that.
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
    """Probe parties' representations (rows are samples): linear, or with hidden layers.

    Of each party's samples 0.3 are for the test. Of the others a fifth says when to stop, for a
    probe that learns its training samples by heart would be surer than it may and miss the entropy
    that matched representations should show.
    """
    s = _Split.of(sets, key)
    probes = _blank([key.fold("probe")], (s.x.shape[1], *hidden), torch.bincount(s.owner[s.train]))
    seen = []
    for _ in range(LOOKS):
        seen.append(
            (float(probes.losses(s.x[s.held], s.owner[s.held])), probes.scores(s.x[s.test])[0])
        )
        probes.learn(s.x, s.owner, s.train[None], max(1, steps // LOOKS), batch)
    truth = s.owner[s.test]
    _, scores = min(seen, key=lambda look: look[0])
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
    """Proxy A-distances of all pairs of parties, a symmetric matrix; the pairs' probes are stacked.

    The error is the mean of the two parties' own, and in training the smaller party is repeated to
    the larger one's size: so ½ is chance, whatever their sizes.
    """
    s = _Split.of(sets, key)
    learn = torch.cat([s.train, s.held])
    own = [learn[s.owner[learn] == i] for i in range(len(sets))]
    many = max(map(len, own))
    cycled = torch.stack([rows[torch.arange(many) % len(rows)] for rows in own])
    # Every sample stands there twice, as its pair's first (label 0) and as its second (label 1).
    twice = torch.cat([s.x, s.x])
    side = torch.arange(2).repeat_interleave(len(s.x))
    distances = torch.zeros(len(sets), len(sets), dtype=torch.float64)
    for pairs in torch.combinations(torch.arange(len(sets))).split(PAIRS):
        i, j = pairs.unbind(1)
        probes = _blank(
            [key.fold("pair", *pair) for pair in pairs.tolist()],
            (s.x.shape[1], *hidden),
            torch.ones(2),
        )
        probes.learn(twice, side, torch.cat([cycled[i], len(s.x) + cycled[j]], 1), steps, batch)
        second = _by_party(
            probes.scores(s.x[s.test]).argmax(2), s.owner[s.test]
        )  # pairs x parties: how often "the second"
        error = (second.gather(1, pairs[:, :1]) + 1 - second.gather(1, pairs[:, 1:])).squeeze(1) / 2
        distances[i, j] = distances[j, i] = 2 * (1 - 2 * error)
    return distances
