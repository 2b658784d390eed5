"""The smallest class means that a method may have its parties send."""

from __future__ import annotations

from comity.core.algorithm import AnyAlgorithm
from comity.core.signature import party_functions, reply_contents
from comity.core.wrapper import chain


def smallest_class_means(algorithm: AnyAlgorithm) -> dict[str, int]:
    """The least number of records behind each field that holds means over the records of a class.

    It is the same for all data. A method that sets no minimum may send the mean of one record.
    """
    sizes: dict[str, int] = {}
    for depth, function in party_functions(algorithm):
        accounting = chain(algorithm)[depth].accounting
        for name, content in reply_contents(algorithm, depth, function).items():
            if content and content.kind == "means" and content.behind == "by class":
                size = accounting.group_size(name, [1])
                sizes[name] = 1 if size is None else size
    return sizes


def describe_smallest_mean(algorithm: AnyAlgorithm, least: int) -> str:
    """A phrase about how few people a class mean may be of.

    Arguments:
        algorithm: the method, whose option `min_count` is named if it has one
        least: the least number of records behind a class mean
    """
    minimum = next(
        (layer.min_count for layer in chain(algorithm) if hasattr(layer, "min_count")), None
    )
    option = "" if minimum is None else f" (min_count={minimum})"
    if least == 1:
        return f"a class mean may be of a single record{option}"
    return f"a class mean may be of {least} records{option}, and so of {least} people or fewer"
