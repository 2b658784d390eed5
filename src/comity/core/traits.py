"""The traits of a method: what engines, wrappers, sites and reports need to know about it.

A method declares them as a class attribute, and a method made from another one changes some:

    traits = Traits(shares="means", self_contained=True)
    traits = replace(FedAvg.traits, shares="body", one_model=False)
"""

from __future__ import annotations

from dataclasses import dataclass

from comity.core.diagnostics import Diagnostic

SHARES = {
    "nothing": "shares nothing",
    "body": "shares the extractor and keeps the head at the party",
    "head": "shares the head and keeps the extractor at the party",
    "model": "shares the whole model",
    "generic": "shares a generic model and keeps a head of its own at the party",
    "representations": "shares representations and keeps all weights at the party",
    "means": "shares means of representations and keeps all weights at the party",
    "gradients": "shares gradients and keeps all weights at the party",
    "data": "pools the data",
}
"""What a method shares, with the words that error messages use for it."""

LEAVES = {
    "weights": "weights of a model",
    "representations": "representations of single samples",
    "means": "means over a party's samples, or over those of a class",
    "covariances": "covariances of the representations of a class",
    "gradients": "gradients",
    "class counts": "how many samples there are of each class",
    "samples": "samples themselves, or near-copies of them",
}
"""The kinds of content that methods have parties send, to the server or to each other."""

_LEAVES_BY_SHARES = {"nothing": (), "data": ("samples",)} | {
    name: (name,) for name in ("representations", "means", "gradients")
}


@dataclass(frozen=True)
class Traits:
    """What a method is like. Each default is the value for most methods."""

    shares: str = "model"
    """What crosses the wire, one of SHARES. Wrappers read it to refuse hosts."""
    also_leaves: tuple[str, ...] = ()
    """Kinds of content (of LEAVES) that parties send beside what `shares` says."""
    self_contained: bool = False
    """Whether `deployed_model` needs no message, so that an evaluation sends nothing down."""
    one_model: bool = False
    """Whether all parties deploy the same model, so that a global accuracy has a meaning."""
    hears_peers: bool = False
    """Whether a party may choose whom it learns from (`peers`)."""
    feature_skew_only: bool = False
    """Whether the method assumes equal label distributions. A run on label skew gets a warning."""
    finishes: bool = False
    """Whether `finish` does anything. If so, models are evaluated before it, too."""
    tried_rounds: tuple[int, ...] = ()
    """Numbers of the rounds that `start` tries before round 1. A plan adds their cost."""
    start_weights: str | None = None
    """The field of messages with the weights that parties train from; "" if there is none.

    With `init = "own"` a party's own first weights replace it until the first round that counts.
    None: the method does not support `init = "own"`.
    """
    common_start: str = (
        "does not say which field of its messages holds the weights that parties start from"
        " (start_weights)"
    )
    """Why all parties must start from the same weights, where `start_weights` is None."""
    averages: bool = False
    """Whether a wrapper replaces the mean of replies (`averaging`). Two of them exclude each
    other.
    """
    raw_inputs: bool | None = None
    """Whether party functions use inputs otherwise than through the learning task: change, compare
    or draw from them. If they do not, the representations of a frozen encoder, computed once, may
    stand in for them. None: no for Comity's own methods, yes for a user's.
    """
    encoder_term: str = ""
    """The term of the method that changes the encoder and nothing else, as in "the contrastive
    loss"; a run with a frozen encoder warns that it has no effect. "" if there is none.
    """
    needs_validation: str = ""
    """Why the method cannot run without validation samples, and what to do; "" if it can."""
    no_offset: str = ""
    """Why parties cannot add a private offset to the representation (`+dbe`, `+prbm`), as in "ccvr
    trains one head"; "" if they can.
    """
    not_private: str | None = None
    """Why parties cannot train with DP-SGD (`+dp`); "" if they can. None: derived from what they
    send.
    """
    protects_records: bool = False
    """Whether the influence of a record on everything that leaves a party is bounded."""
    bytes_formula: str = ""
    """The closed form that the method's accounting computes, as `comity show` prints it."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """How a report shows the figures that the method logs."""
    experimental: str = ""
    """Why results of the method should not be relied on yet; "" if the paper could be followed."""

    @property
    def leaves(self) -> frozenset[str]:
        """The kinds (of LEAVES) of all that parties send, sealed or not. A site allows each kind,
        or does not take part.
        """
        return frozenset((*_LEAVES_BY_SHARES.get(self.shares, ("weights",)), *self.also_leaves))

    @property
    def why_not_private(self) -> str:
        """Why parties cannot train with DP-SGD; "" if they can."""
        if self.not_private is not None:
            return self.not_private
        others = sorted(self.leaves - {"weights"})
        return f"its parties send {LEAVES[others[0]]}" if others else ""
