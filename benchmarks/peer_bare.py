"""The bare loop as a contestant of `peers.py`: two processes, some of the parties in a round, and
all of them evaluate.
"""

from __future__ import annotations

import random
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F
from bare import Bare
from contest import Contest, Over
from torch import Tensor
from works import Work


class Pair(Bare):
    """Both processes draw the same cohort, so that a round needs no more than a `go`."""

    def __init__(self, work: Work, whole: bool) -> None:
        data = work.data()
        self.work, self.whole, self.tests, self.draw = (
            work,
            whole,
            [test for _, test in data],
            random.Random(0),
        )
        self.seen = torch.zeros(len(data), 2).share_memory_()  # each party's accuracy and loss
        work.network()  # a model that the bare loop lacks is refused
        super().__init__(work.model, [train for train, _ in data], processes=2)
        self.count = work.cohort * work.samples

    def _serve(self, pipe: Connection, k: int, processes: int) -> None:
        torch.set_num_threads(1)
        everyone = range(len(self.data))
        while (order := pipe.recv_bytes()) != b"stop":
            if order == b"go":
                cohort = (
                    everyone
                    if self.work.cohort == len(everyone)
                    else self.draw.sample(everyone, self.work.cohort)
                )
                self.train(cohort[k::processes], self.sums[k])
            else:
                self.evaluate(everyone[k::processes])
            pipe.send_bytes(b"done")

    @torch.no_grad()
    def evaluate(self, ids: range) -> None:
        for param, theta in zip(self.model.parameters(), self.views(self.theta), strict=True):
            param.copy_(theta)
        for i in ids:
            x, y = self.tests[i]
            logits: Tensor = self.model(x)
            self.seen[i, 0], self.seen[i, 1] = (
                (logits.argmax(1) == y).float().mean(),
                F.cross_entropy(logits, y),
            )

    def round(self) -> None:
        super().round()
        if self.whole:
            for pipe in self.pipes:
                pipe.send_bytes(b"look")
            for pipe in self.pipes:
                pipe.recv_bytes()
            self.seen.mean(0)


def main() -> None:
    torch.set_num_threads(1)
    contest = Contest()
    loop = Pair(contest.work, contest.whole)
    try:
        while True:
            contest.pause()
            loop.round()
    except Over:
        loop.close()


if __name__ == "__main__":
    main()
