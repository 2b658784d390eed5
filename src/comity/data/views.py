"""HTML views of federations and datasets, for notebooks."""

from __future__ import annotations

import torch

from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.html import page, sentences, shorten, table, view

MOST_CLASSES = 20


@view.register
def view_federation(fed: Federation) -> str:
    """Return the view of a federation: the parties' class counts, shaded by the largest class."""
    counts = fed.counts()
    names, more = shorten(fed.names, 20)
    by_class = 0 < fed.classes <= MOST_CLASSES
    class_names = list(fed.class_names) or [str(k) for k in range(fed.classes)]
    heads = ["party", "train", "validation", "test", *(class_names if by_class else [])]
    rows, shades = [], []
    for name in names:
        data = fed.parties[name]
        party_counts = counts[fed.names.index(name)].tolist()
        most = max(1, *party_counts)
        sizes = [str(len(part)) for part in (data.train, data.validation, data.test)]
        rows.append([name, *sizes, *(map(str, party_counts) if by_class else [])])
        shades.append([0.0] * 4 + [0.6 * count / most for count in party_counts])
    label = f"{fed.classes} classes" if fed.classes else "a number to predict"
    details = [f"… and {more} parties between them."] if more else []
    details += ["The columns by class count training samples."] if by_class else []
    return page(
        f"{fed.name}, {fed.split.partition}: {len(fed.names)} parties, samples of shape"
        f" {fed.shape}, {label}",
        table(heads, rows, shade=lambda r, k: shades[r][k]),
        sentences([*details, *fed.warnings]),
    )


@view.register
def view_dataset(data: Dataset) -> str:
    """Return the view of a dataset: its classes and groups, and how to partition it."""
    class_names = list(data.class_names) or [str(k) for k in range(data.classes)]
    counts = (
        []
        if data.amounts or data.classes > MOST_CLASSES
        else torch.bincount(data.y, minlength=data.classes).tolist()
    )
    groups = [f"Natural parties by {by}: {len(group.names)}." for by, group in data.groups.items()]
    label = f"{data.classes} classes" if data.classes else "a number to predict"
    next_step = (
        "Not yet split between parties:"
        f" dataset.partition('{data.default_partition}', parties=10, seed=0)."
    )
    return page(
        f"{data.name}: {len(data):,} samples of shape {data.shape}, {label}",
        table(["class", *class_names], [["samples", *map(str, counts)]]) if counts else "",
        sentences([data.description, *groups, *data.warnings, next_step]),
    )
