"""What the fields of methods' messages are, in words for a reader who has never seen one, and what
records are behind each.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from comity.core.traits import LEAVES
from comity.core.release import KEPT

Behind = Literal["training", "by class", "validation", "nothing"]


class Meaning(NamedTuple):
    """What a field is."""

    words: str
    kind: str
    """Of `core.algorithm.LEAVES`; empty if it is of none of these."""
    behind: Behind = "training"
    """The records that it is made of: all for training, those of a class each, those for
    validation, or none.
    """


KINDS = {
    **LEAVES,
    "weights": "weights of a model (the numbers that training adjusts)",
    "representations": "representations of single records (what a model makes of each)",
    "gradients": "gradients (in which direction some records would change a model)",
}
"""The kinds of what methods have parties send, with what that means."""
WEIGHTS = "the weights of the model, which are the numbers that training adjusts"
COUNTS = "how many training records there are of each class (each possible answer)"
SEEN = "which classes (possible answers) occur among the training records"
ROWS = "what the model makes of single records (representations), a row for each record"
WRONG = "how wrong a model is on the training records, on average"
CHOSEN = "a constant of the method that is the same for all parties"

MEANINGS: dict[str, Meaning] = {
    "Model.theta": Meaning(WEIGHTS, "weights"),
    "Change.theta": Meaning(WEIGHTS, "weights"),
    "Change.dc": Meaning("how the direction of training at this party has changed, a number for each weight", "weights"),
    "Both.theta": Meaning(WEIGHTS, "weights"),
    "Both.D": Meaning("the weights of a second network, which learns to tell whose records it is shown", "weights"),
    "Both.accuracy": Meaning("the share of training records that the common model answers right", "weights"),
    "Both.others": Meaning("the numbers of other parties", "", "nothing"),
    "Prior.theta": Meaning("the weights of a model that was trained at this party alone, for the others of its group", "weights"),
    "Prior.counts": Meaning(COUNTS, "class counts", "by class"),
    "Reps.z": Meaning(ROWS, "representations"),
    "Reps.shared": Meaning(f"{WEIGHTS}, as far as they are averaged", "weights"),
    "Upload.means": Meaning("averages of what the model makes of the records of a class", "means", "by class"),
    "Upload.counts": Meaning(COUNTS, "class counts", "by class"),
    "Upload.obs": Meaning("averages of what the model makes of a few records of a class", "means", "by class"),
    "Upload.seen": Meaning(SEEN, "class counts", "by class"),
    "Upload.shared": Meaning(f"{WEIGHTS}, as far as they are averaged", "weights"),
    "Told.obs": Meaning("averages of what the model makes of a few records of a class", "means", "by class"),
    "Told.seen": Meaning(SEEN, "class counts", "by class"),
    "Answers.logits": Meaning("averages of the model's answers to the records of a class", "means", "by class"),
    "Answers.counts": Meaning(COUNTS, "class counts", "by class"),
    "Labels.counts": Meaning(COUNTS, "class counts", "by class"),
    "Judged.theta": Meaning(WEIGHTS, "weights"),
    "Judged.loss": Meaning(WRONG, "means"),
    "judge/message": Meaning(WRONG, "means"),
    "Trained.theta": Meaning(WEIGHTS, "weights"),
    "Trained.loss": Meaning(WRONG, "means"),
    "Core.theta": Meaning(WEIGHTS, "weights"),
    "Core.asks": Meaning("the numbers of parties whose models it asks for next, by how much they helped it", "weights"),
    "weigh/message": Meaning("by how much some parties' models do better than its own on records that it held out", "weights"),
    "Snapped.theta": Meaning(WEIGHTS, "weights"),
    "Snapped.snapshot": Meaning(f"{WEIGHTS}, as they were at a moment of the round", "weights"),
    "Adapted.theta": Meaning(WEIGHTS, "weights"),
    "Adapted.z": Meaning(ROWS, "representations"),
    "Adapted.attention": Meaning("how much each party's model helps to tell groups of records apart", "weights"),
    "Shown.theta": Meaning(WEIGHTS, "weights"),
    "Shown.z": Meaning(ROWS, "representations"),
    "Prototypes.means": Meaning("averages of what the model makes of the records of a class", "means", "by class"),
    "Prototypes.counts": Meaning(COUNTS, "class counts", "by class"),
    "Mean.z": Meaning("the average of what the model makes of all records", "means"),
    "Help.grads": Meaning(
        "in which direction a batch of training records would change a peer's weights (a gradient)", "gradients"
    ),
    "Help.x": Meaning("training records themselves, slightly changed", "samples"),
    "Help.y": Meaning("the right answers to these records", "samples"),
    "Help.loss": Meaning("how wrong a peer's model is on a batch of training records, on average", "gradients"),
    "Help.count": Meaning("how many records of a batch overlap with a peer's", "gradients"),
    "Help.overlap": Meaning("the share of a batch that overlaps with a peer's", "gradients"),
    "Data.x": Meaning("the training records themselves", "samples"),
    "Data.y": Meaning("the right answers to the training records", "samples"),
    "Score.correct": Meaning("how many validation records a model answers right", "", "validation"),
    "Score.count": Meaning("how many validation records there are", "", "validation"),
    "Score.loss": Meaning("how wrong a model is on validation records, on average", "", "validation"),
    "Score.figures": Meaning("further figures of how good a model is on validation records", "", "validation"),
    "Tried.value": Meaning(CHOSEN, "", "nothing"),
    "Tried.trial": Meaning("whether that constant is only being tried", "", "nothing"),
    "Tried.before": Meaning("nothing: what a party keeps while a constant is tried", "", "nothing"),
    "look/message": Meaning("the share of training records that the common model answers right", "weights"),
    "local/message": Meaning("of each peer which share of its batch overlaps with this party, as that peer found", "gradients"),
    "sums and squares of columns": Meaning("of each column of numbers: how many, their sum, and that of their squares", ""),
    KEPT: Meaning("nothing by itself: this training counts because what it changed may leave later", ""),
}  # fmt: skip
"""By the field's name, or by work and name for a message that is no record."""


def meaning(function: str, name: str) -> Meaning:
    """What a field is; of a method that is not Comity's own only its name is known."""
    own = Meaning("a value that this page has no words for: ask the method's author", "")
    return MEANINGS.get(f"{function}/{name}") or MEANINGS.get(name, own)
