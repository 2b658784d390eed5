"""Re-identification: is a query's identity found among the nearest of a gallery? mAP and CMC,
FedUFO's re-ID measures.

A gallery image of the query's identity from the query's own camera is neither right nor wrong and
is left out, as in Zheng et al., Scalable Person Re-identification: A Benchmark, ICCV 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 512  # queries ranked at once: a large gallery's order must fit in memory


@dataclass(frozen=True)
class Embeddings:
    """Images as a matcher knows them: features, whose they are, and which camera took them."""

    features: Tensor
    ids: Tensor
    cameras: Tensor


@dataclass(frozen=True)
class Retrieval:
    """How well identities are found."""

    map: float | None
    """Mean average precision over the queries that have a match; None if none has."""
    cmc: dict[int, float]
    """Rank k: the share of those queries that have a match among the first k."""
    queries: int
    """How many queries have a match in the gallery."""


def _ranked(query: Embeddings, gallery: Embeddings) -> Tensor:
    """For each query (row) whether the gallery's images match, from the nearest by cosine to those
    left out.
    """
    near = (
        F.normalize(query.features.flatten(1), dim=1)
        @ F.normalize(gallery.features.flatten(1), dim=1).T
    )
    same = query.ids[:, None] == gallery.ids
    out = same & (query.cameras[:, None] == gallery.cameras)
    order = near.masked_fill(out, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    return (same & ~out).gather(1, order)


def retrieval(query: Embeddings, gallery: Embeddings, ranks: Sequence[int] = (1, 5)) -> Retrieval:
    """Rank the gallery for each query; AP is the mean, over its matches, of the precision down to
    each of them.
    """
    precisions = []
    firsts = []
    place = torch.arange(1, len(gallery.ids) + 1)
    for rows in torch.arange(len(query.ids)).split(ROWS):
        match = _ranked(
            Embeddings(query.features[rows], query.ids[rows], query.cameras[rows]), gallery
        )
        match = match[match.any(1)]
        precision = match.cumsum(1).double() / place
        precisions.append((precision * match).sum(1) / match.sum(1))
        firsts.append(match.int().argmax(1))
    average = torch.cat(precisions)
    first = torch.cat(firsts)
    if not len(average):
        return Retrieval(None, {}, 0)
    return Retrieval(
        float(average.mean()), {k: float((first < k).double().mean()) for k in ranks}, len(average)
    )
