"""Runs with secure aggregation between sites in one process: what the server ends with, and sites
that drop out in the middle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from in_process_sites import Handed

from comity.base.record import leaves
from comity.deploy.messages import REQUESTS, SecureCall, SecureStep, unpack
from comity.runs.checkpoint import Checkpoints
from comity.runs.folder import CHECKPOINTS

MOST = 1 << 30


def server_tensors(folder: Path) -> list[torch.Tensor]:
    """All tensors of the server's state at the end of a run."""
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    assert checkpoints.load()
    state = checkpoints.server_state()
    return [leaf for leaf in leaves(state) if isinstance(leaf, torch.Tensor)]


def request_of(request: bytes) -> Any:
    return unpack(request, REQUESTS, MOST)[0]


def lose(transport: Handed, site: str, step: str, how: str, round: int = 1) -> None:
    """Lose a site in one step of a round: it is not asked any more ("offline"), or what it answers
    does not arrive ("lost").
    """

    def lost(name: str, request: bytes) -> str:
        head = request_of(request)
        if name != site:
            return ""
        if isinstance(head, SecureCall) and head.call[2] == round and step == "keys":
            return how
        is_step = isinstance(head, SecureStep) and head.call[2] == round
        return how if is_step and head.step == step else ""

    transport.lost = lost
