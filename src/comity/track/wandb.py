"""Weights & Biases: a log in the run's folder, for `wandb sync`.

WANDB_MODE=online logs to the service instead, which nobody has tried.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.names import display_name
from comity.safe_files import write_atomically
from comity.track import require

LINK = "wandb.json"
"""The file in a run's folder that names the run at Weights & Biases."""
FOLDER = "wandb"
PROJECT = "comity"
MODE = "WANDB_MODE"


class WeightsAndBiases:
    """Writes to RUN_DIR/wandb, without a network. `wandb sync` uploads it.

    RUN_DIR/wandb.json has the id of the run, so that a resumed run is the same run. Its log is
    written again from the first round, so that no round occurs twice. Online, rounds that the
    service has already are skipped.
    """

    def __init__(self) -> None:
        require("Weights & Biases", "wandb")

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open a new log with the settings as the run's config."""
        # Without this, errors would be reported to the developers of wandb.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        mode: Any = os.environ.get(MODE, "offline")  # wandb checks it
        if mode == "offline":
            for earlier in (folder / FOLDER).glob("offline-run-*"):
                shutil.rmtree(earlier)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_run_id(folder),
            name=f"{display_name(settings['algorithm'])} on {settings['data']},"
            f" seed {settings['seed']}",
            config=dict(settings),
            dir=folder,
            mode=mode,
            resume=None if mode == "offline" else "allow",
            reinit="create_new",  # studies log several runs, one after the other
            settings=wandb.Settings(
                console="off",
                silent=True,
                symlink=False,
                # Only settings and figures are logged: nothing of the machine, code or user.
                host="",
                save_code=False,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        self._folder = folder / FOLDER
        self._remove_links()
        self._next_round = self._run.step

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """Log the figures, with the round as their step."""
        if t >= self._next_round:
            self._run.log(dict(figures), step=t)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Close the log."""
        self._run.finish(exit_code=1 if summary is None else 0)
        self._remove_links()

    def _remove_links(self) -> None:
        """Remove links to logs outside of the run's folder: no folder with links is read."""
        for path in self._folder.rglob("*"):
            if path.is_symlink():
                path.unlink()


def _run_id(folder: Path) -> str:
    """Return the id of the run in a folder; a new run gets a new one."""
    try:
        run_id: str = json.loads((folder / LINK).read_text(encoding="utf-8"))["run"]
    except FileNotFoundError:
        run_id = uuid.uuid4().hex
        write_atomically(folder / LINK, json.dumps({"run": run_id}) + "\n")
    return run_id
