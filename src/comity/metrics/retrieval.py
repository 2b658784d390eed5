"""Metrics of re-identification: mAP and CMC, which FedUFO reports.

A gallery image of the query's identity from the query's own camera is ignored, as in Zheng et al.,
Scalable Person Re-identification: A Benchmark, ICCV 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 512  # queries ranked at once: the order of a large gallery must fit in memory


@dataclass(frozen=True)
class Embeddings:
    """Features of images, with the identity and the camera of each image."""

    features: Tensor
    ids: Tensor
    cameras: Tensor


@dataclass(frozen=True)
class Retrieval:
    """The metrics of a ranking of the gallery."""

    map: float | None
    """Mean average precision over the queries with a match in the gallery; None without any."""
    cmc: dict[int, float]
    """By rank k: the fraction of those queries with a match among the first k images."""
    queries: int
    """The number of queries with a match in the gallery."""


def _matches_by_rank(query: Embeddings, gallery: Embeddings) -> Tensor:
    """Return, for each query (row), which gallery images match, in descending cosine similarity.

    Ignored images come last, as no matches.
    """
    similarity = (
        F.normalize(query.features.flatten(1), dim=1)
        @ F.normalize(gallery.features.flatten(1), dim=1).T
    )
    same = query.ids[:, None] == gallery.ids
    ignored = same & (query.cameras[:, None] == gallery.cameras)
    order = (
        similarity.masked_fill(ignored, -torch.inf)
        .sort(dim=1, descending=True, stable=True)
        .indices
    )
    return (same & ~ignored).gather(1, order)


def retrieval(query: Embeddings, gallery: Embeddings, ranks: Sequence[int] = (1, 5)) -> Retrieval:
    """Rank the gallery for each query, and return mAP and the CMC at `ranks`.

    The average precision of a query is the mean of the precision at the rank of each match.
    """
    precisions = []
    firsts = []
    place = torch.arange(1, len(gallery.ids) + 1)
    for rows in torch.arange(len(query.ids)).split(ROWS):
        part = Embeddings(query.features[rows], query.ids[rows], query.cameras[rows])
        match = _matches_by_rank(part, gallery)
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
