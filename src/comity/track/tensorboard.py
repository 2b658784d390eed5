"""TensorBoard: event files in the run's folder, for `tensorboard --logdir`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.track import needs

FOLDER = "tensorboard"


class TensorBoard:
    """Writes RUN_DIR/tensorboard; a run that is resumed is written anew, so that no round is there
    twice.
    """

    every = 1.0  # seconds from flush to flush, at least

    def __init__(self) -> None:
        needs("TensorBoard", "tensorboard")

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a new file; a TensorBoard that has read the old one forgets it, because of
        `purge_step`.
        """
        from torch.utils.tensorboard import SummaryWriter

        place = folder / FOLDER
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(place), purge_step=0)
        self._flushed = time.monotonic()
        written = (folder / "config.toml").read_text(encoding="utf-8")
        self._writer.add_text(
            "config.toml", "".join(f"    {line}\n" for line in written.splitlines()), 0
        )

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A scalar each."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, t)
        if time.monotonic() - self._flushed >= self.every:
            self._writer.flush()
            self._flushed = time.monotonic()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file."""
        self._writer.close()
