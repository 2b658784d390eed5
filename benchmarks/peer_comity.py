"""Comity as a contestant of `peers.py`.

Mode train is a job's rounds without a run around them. Mode whole is a user's run into a folder:
rounds, evaluation, metrics, ledger, timing, the lines on the screen, and checkpoints. A checkpoint
is due when the last is five seconds old, and time goes on while others have their turn: nearly
every round writes one here, which in a run of short rounds few do.
"""

from __future__ import annotations

import gc
import tempfile
from typing import Any

import torch
from bare import BATCH, LR
from contest import Contest, Over

import comity
from comity.cli import screen
from comity.runs import config
from comity.runs.build import SimulatedRun, prepare
from comity.runs.server_run import Quiet
from comity.wire.ledger import Ledger


class Paced:
    """What a user sees, and a pause after every round."""

    def __init__(self, contest: Contest) -> None:
        self._contest, self._screen = contest, screen.progress("fedavg")
        self.begin, self.add_replies, self.end = (
            self._screen.begin,
            self._screen.add_replies,
            self._screen.end,
        )

    def round(self, t: int, accuracy: float | None, ledger: Ledger) -> None:
        self._screen.round(t, accuracy, ledger)
        self._contest.pause()  # round 0 evaluates what parties start with: then all is ready


def train(contest: Contest, job: SimulatedRun) -> None:
    """Training and aggregation, as the engine does them."""
    torch.set_num_threads(1)
    gc.freeze()  # as a run does
    engine = job.engine()
    server, t = job.server(engine, Quiet()), 0
    try:
        server.begin(t)
        server.charge_introduction(job.info.parties)
        s = job.algorithm.start(job.algorithm.init_server(job.root.fold("init"), job.info), server)
        while True:
            contest.pause()
            t += 1
            server.begin(t)
            s = job.algorithm.round(s, server, t)
            server.ledger.take()
    finally:
        engine.close()


def main() -> None:
    contest = Contest()
    work = contest.work
    federation = comity.Federation.from_arrays(
        {f"p{i}": pairs for i, pairs in enumerate(work.data())}, validation=0.0, classes=10
    )
    rounds = max(
        contest.rounds, 20
    )  # the default: what engine `auto` takes should not depend on how long we measure
    settings: dict[str, Any] = {
        "model": work.model,
        "batch": BATCH,
        "lr": LR,
        "workers": 2,
        "rounds": rounds,
    }
    settings["participation"] = work.cohort / work.parties
    try:
        if contest.whole:
            with tempfile.TemporaryDirectory(prefix="comity-peers-") as folder:
                comity.run("fedavg", federation, out=folder, progress=Paced(contest), **settings)
        else:
            train(
                contest, prepare(config.experiment({"algorithm": "fedavg"} | settings), federation)
            )
    except Over:
        pass


if __name__ == "__main__":
    main()
