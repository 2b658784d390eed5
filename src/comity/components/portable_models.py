"""Plain models as parameters of a network, so that they are exported as all models are: tensors
that torch runs, without pickle and without scikit-learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from comity import models
from comity.base.record import Params
from comity.components.plain_models import UNSEEN, Predictor
from comity.models.trees import BOOSTED_TREES, boosted_trees
from comity.spec import parse
from comity.training.task import Network

NEVER = -1e4
"""The logit of a class that the party has not seen in training, beside those of others: its
probability is 0.
"""


def portable(predictor: Predictor, width: int) -> tuple[str, Params]:
    """Return the name of a network, and the parameters with which it predicts as a plain model
    does from `width` inputs.

    Classes that the party has not seen in training get probability 0 from it, not up to a
    millionth.
    """
    classes = predictor.classes
    if predictor.fitted is None:
        bias = torch.full((classes,), UNSEEN)
        bias[predictor.only] = 0.0
        return "linear", {"fc.weight": torch.zeros(classes, width), "fc.bias": bias}
    if hasattr(predictor.fitted, "named_steps"):
        return "linear", _linear(predictor.fitted, classes)
    return _trees(predictor.fitted, classes)


def build_portable(model: str, shape: tuple[int, ...], classes: int) -> Network:
    """Build the network of an exported model: one that can be trained, or boosted trees."""
    if parse(model).name == BOOSTED_TREES:
        return boosted_trees(model, shape, max(1, classes))
    return models.build(model, shape, max(1, classes))


def _linear(pipeline: Any, classes: int) -> Params:
    """Return the weights of a regression on inputs that are not standardised."""
    scaler, model = (step for _, step in pipeline.steps)
    coefficients = np.atleast_2d(model.coef_) / scaler.scale_
    intercepts = np.atleast_1d(model.intercept_) - coefficients @ scaler.mean_
    weight, bias = torch.from_numpy(coefficients), torch.from_numpy(intercepts)
    if classes:
        placed, added = _places(model.classes_.tolist(), len(weight), classes)
        weight, bias = placed.T @ weight, placed.T @ bias + added
    return {"fc.weight": weight.float(), "fc.bias": bias.float()}


def _trees(model: Any, classes: int) -> tuple[str, Params]:
    """Return the trees of a boosted model as tensors (trees x nodes)."""
    trees = [tree.nodes for iteration in model._predictors for tree in iteration]
    depth = max(int(nodes["depth"].max()) for nodes in trees)
    most = max(map(len, trees))
    baseline = torch.from_numpy(np.asarray(model._baseline_prediction)).double().flatten()
    placed, added = torch.ones(1, 1, dtype=torch.double), torch.zeros(1, dtype=torch.double)
    if classes:
        placed, added = _places(model.classes_.tolist(), len(baseline), classes)
    theta = {
        "trees.feature": _stack(trees, "feature_idx", most).long(),
        "trees.threshold": _stack(trees, "num_threshold", most).double(),
        "trees.left": _stack(trees, "left", most).long(),
        "trees.right": _stack(trees, "right", most).long(),
        "trees.value": _stack(trees, "value", most).double(),
        "trees.baseline": baseline,
        "trees.classes": placed,
        "trees.added": added,
    }
    return f"{BOOSTED_TREES}(depth={depth})", theta


def _stack(trees: list[Any], field: str, most: int) -> Tensor:
    """Return a field of all nodes (trees x nodes). Leaves lead to themselves."""
    rows = np.zeros((len(trees), most))
    for row, nodes in zip(rows, trees, strict=True):
        values = nodes[field].astype(float)
        is_leaf = nodes["is_leaf"].astype(bool)
        if field in ("left", "right"):
            values = np.where(is_leaf, np.arange(len(nodes)), values)
        elif field != "value":
            values = np.where(is_leaf, 0.0, values)
        row[: len(nodes)] = values
    return torch.from_numpy(rows)


def _places(fit_classes: list[int], scores: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return the matrix from the scores of a fitted model to logits of all classes, and what is
    added to these.
    """
    placed = torch.zeros(scores, classes, dtype=torch.double)
    added = torch.full((classes,), NEVER, dtype=torch.double)
    added[fit_classes] = 0.0
    if scores == 1:  # two classes: the log-odds of the second
        placed[0, fit_classes[1]] = 1.0
    else:
        placed[torch.arange(scores), fit_classes] = 1.0
    return placed, added
