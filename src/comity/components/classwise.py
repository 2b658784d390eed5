"""Averages by class: summaries of representations that contain no single one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from comity.core import Key, LearningTask, Params, Samples, in_chunks


def features_of(task: LearningTask, theta: Params, data: Samples) -> Tensor:
    """The representations of all samples, one row each, in evaluation mode."""
    return in_chunks(lambda x: task.features(theta, x).flatten(1), data.x)


def class_means(z: Tensor, y: Tensor, classes: int, least: int = 1) -> tuple[Tensor, Tensor]:
    """The mean and the number of the rows of each class. A class with fewer than `least` rows
    counts as absent.
    """
    counts = torch.bincount(y, minlength=classes).int()
    sums = torch.zeros(classes, z.shape[1], device=z.device).index_add_(0, y, z)
    counts = torch.where(counts >= least, counts, 0).int()
    means = sums / counts.clamp(min=1)[:, None]
    return means * (counts > 0)[:, None], counts


def tellable(size: int, rows: int, out_of: int, least: int) -> int:
    """The number of rows, near `size` (0: all), whose mean may be sent beside the mean of all
    `out_of` samples; 0 if none may.

    The mean of the samples in one mean but not in the other can be computed from both. So this
    difference must be empty, or contain at least `least` samples.
    """
    some = min(size or rows, rows)
    if 0 < out_of - some < least:
        some = rows if rows == out_of else out_of - least
    return some if some >= least else 0


def observations(
    z: Tensor, y: Tensor, all_counts: Tensor, sets: int, size: int, least: int, key: Key
) -> tuple[Tensor, Tensor]:
    """Sets of observations: `sets` times, for each class, the mean of about `size` randomly drawn
    rows. Also returns which classes have observations. `tellable` limits the sizes.
    """
    classes = len(all_counts)
    class_sizes = torch.bincount(y, minlength=classes).tolist()
    rows: tuple[Tensor, ...] = y.argsort(stable=True).split(class_sizes)
    sizes = [
        tellable(size, len(members), out_of, max(1, least))
        for members, out_of in zip(rows, all_counts.tolist(), strict=True)
    ]
    counts = torch.tensor(sizes, device=z.device)

    def draw_rows(c: int, m: int) -> Tensor:
        """The rows of class c in set m."""
        members, count = rows[c], sizes[c]
        if count == len(members):
            return members
        return members[key.fold(c, m).choose(count, len(members))] if count else members[:0]

    means = []
    for m in range(sets):
        picks = torch.cat([draw_rows(c, m) for c in range(classes)])
        sums = torch.zeros(classes, z.shape[1], dtype=z.dtype, device=z.device).index_add_(
            0, y[picks], z[picks]
        )
        means.append(sums / counts.clamp(min=1)[:, None])
    return torch.stack(means), counts > 0


def levels(n: int, guarded: float, secret: float, key: Key) -> Tensor:
    """Random privacy levels of n samples: 2 (never shared) for a share `secret`, 1 (only in means
    of all samples) for a share `guarded`, else 0.
    """
    level = torch.zeros(n, dtype=torch.int64)
    if not (guarded or secret):
        return level
    order = key.permutation(n)
    first, second = round(secret * n), round((secret + guarded) * n)
    level[order[:first]], level[order[first:second]] = 2, 1
    return level


def pool_means(
    means: Sequence[Tensor], weights: Sequence[Tensor], classes: int, width: int
) -> tuple[Tensor, Tensor]:
    """Pool the class means of several parties, weighted class by class. Also returns which classes
    any party has.
    """
    sums, total = torch.zeros(classes, width), torch.zeros(classes)
    for mean, weight in zip(means, weights, strict=True):
        sums, total = sums.to(mean.device) + mean * weight[:, None], total.to(mean.device) + weight
    return sums / torch.where(total > 0, total, 1)[:, None], total > 0


def contrast(h: Tensor, present: Tensor, y: Tensor, negatives: Tensor | None) -> Tensor:
    """−log ĥ(s, t^y) − Σ_{c≠y} log(1 − ĥ(s, t^c)) for each sample, without classes that are absent
    in t. `h` holds ĥ for all classes.

    With `negatives` the sum runs over these randomly drawn classes, which may include the sample's
    own.
    """
    # torch refuses NaN below; the cross entropy shows that a model has diverged
    h = h.nan_to_num(0.5).clamp(1e-7, 1 - 1e-7)
    # not `one_hot`, which reads values of y: `vmap` forbids that
    same_class = y[:, None] == torch.arange(h.shape[1], device=y.device)
    if negatives is None:
        return (F.binary_cross_entropy(h, same_class.to(h.dtype), reduction="none") * present).sum(
            1
        )
    wrong = (-(1 - h).log() * present).gather(1, negatives).sum(1)
    return (-h.log() * present).gather(1, y[:, None]).squeeze(1) + wrong


def one_class(s: Tensor, t: Tensor) -> Tensor:
    """ĥ(s, t^c) = ⟨p(s), p(t^c)⟩ for each sample and class, from probabilities s (B×K) and t (C×K
    or B×C×K).
    """
    return s @ t.mT if t.dim() == 2 else torch.einsum("bk,bck->bc", s, t)


def one_class_external(s: Tensor, t: Tensor, V: Tensor, temperature: float) -> Tensor:
    """ĥ = e^{a/T} / (e^{a/T} + (C−1)/C) with a = ⟨V s, V t^c⟩, from representations s (B×d) and t
    (C×d or B×C×d).
    """
    classes = t.shape[-2]
    return (one_class(s @ V.T, t @ V.T) / temperature - math.log((classes - 1) / classes)).sigmoid()


def draw_sets(
    sets: Sequence[tuple[Tensor, Tensor]], count: int, shape: tuple[int, int], key: Key
) -> tuple[Tensor, Tensor]:
    """Draw `count` sets of observations, with as few repetitions as possible. If there are none,
    returns zeros and a mask without any class.
    """
    if not sets:
        return torch.zeros(count, *shape), torch.zeros(count, shape[0], dtype=torch.bool)
    order = key.permutation(len(sets)).tolist()
    picks = [sets[order[m % len(order)]] for m in range(count)]
    return torch.stack([obs for obs, _ in picks]), torch.stack([present for _, present in picks])
