"""Gradient-boosted trees as a network that is not trained: for models that scikit-learn has fitted,
so that they are saved as tensors and run with torch alone.

Node n of tree t sends a sample to node `left[t, n]` if its input `feature[t, n]` is at most
`threshold[t, n]`, and otherwise to node `right[t, n]`. A leaf sends it to itself. A tree gives the
`value` of the leaf that a sample ends in. Trees of one iteration are neighbours, one for each
score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comity.base.record import Params
from comity.models.stack import Builder, Layer, Make, Shape, Stack, flat
from comity.spec import parse

BOOSTED_TREES = "boosted-trees"
"""The name of the network, which no setting `model` accepts: it is not trained here."""


def boosted_trees(model: str, shape: Shape, classes: int) -> Stack:
    """Return the network `model`, such as `boosted-trees(depth=6)`, of trees of at most that
    depth.
    """
    depth = parse(model).options["depth"]
    if not isinstance(depth, int) or depth < 0:
        raise ValueError(f"{model} has no depth")
    trees = Builder(BOOSTED_TREES, shape).stage("input", flat)
    return trees.stage("trees", _trees(depth, classes)).build()


def _trees(depth: int, classes: int) -> Make:
    def make(name: str, shape: Shape) -> Layer:
        return Layer(lambda p, x, train: _scores(p, x, name, depth), (classes,), dense=False)

    return make


def _scores(p: Params, x: Tensor, name: str, depth: int) -> Tensor:
    """Return the scores of all classes, or the values of a label in numbers."""
    feature, threshold, left, right, value = (
        p[f"{name}.{part}"] for part in ("feature", "threshold", "left", "right", "value")
    )
    trees, nodes = feature.shape
    x = x.to(threshold.dtype)
    root = torch.arange(trees) * nodes  # nodes are numbered through all trees
    at = root.expand(x.shape[0], trees)
    for _ in range(depth):
        goes_left = x.gather(1, feature.flatten()[at]) <= threshold.flatten()[at]
        at = root + torch.where(goes_left, left.flatten()[at], right.flatten()[at])
    sums = value.flatten()[at].unflatten(1, (-1, len(p[f"{name}.baseline"]))).sum(1)
    of_fit: Tensor = sums + p[f"{name}.baseline"]
    scores: Tensor = of_fit @ p[f"{name}.classes"] + p[f"{name}.added"]
    return scores.float()
