"""Names of methods in a paper, which a user gives as in `--label mine=Ours`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comity.errors import UsageError, unknown

Labels = Mapping[str, str]
"""Names of methods in a paper, by their names here (with or without options)."""


def method_label(name: str, labels: Labels) -> str:
    """Return a method's name in a paper; labels name methods with or without their options."""
    return labels.get(name) or labels.get(name.partition("(")[0]) or name


def check_labels(labels: Labels, federations: Sequence[Sequence[str]]) -> None:
    """Raise UsageError if a label is for a method that is not there, or if two methods of one
    federation have the same label, since tables and figures could not tell them apart.

    Args:
        labels: The labels.
        federations: The names of the methods of each federation.
    """
    methods = [method for federation in federations for method in federation]
    names = {name for method in methods for name in (method, method.partition("(")[0])}
    for name in labels:
        if name not in names:
            raise unknown("method in this folder called", name, names)
    for federation in federations:
        by_label: dict[str, str] = {}
        for method in federation:
            label = method_label(method, labels)
            if label in by_label:
                raise UsageError(
                    f"{by_label[label]} and {method} are both labelled {label!r}: name each with"
                    f" its options, as in --label '{method}=LABEL'."
                )
            by_label[label] = method
