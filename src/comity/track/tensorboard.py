"""TensorBoard: event files in the run's folder, for `tensorboard --logdir`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.track import require

FOLDER = "tensorboard"


class TensorBoard:
    """Writes event files to RUN_DIR/tensorboard.

    For a resumed run they are written again from the first round, so that no round occurs twice.
    """

    flush_seconds = 1.0
    """The least time between two flushes."""

    def __init__(self) -> None:
        require("TensorBoard", "tensorboard")

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a new event file and delete older ones.

        `purge_step` makes a running TensorBoard forget what it has read from the older ones.
        """
        from torch.utils.tensorboard import SummaryWriter

        events = folder / FOLDER
        for path in events.glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = SummaryWriter(str(events), purge_step=0)
        self._flushed = time.monotonic()
        config = (folder / "config.toml").read_text(encoding="utf-8")
        as_code = "".join(f"    {line}\n" for line in config.splitlines())
        self._writer.add_text("config.toml", as_code, 0)

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """Log each figure as a scalar."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, t)
        if time.monotonic() - self._flushed >= self.flush_seconds:
            self._writer.flush()
            self._flushed = time.monotonic()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._writer.close()
