"""Parties' works side by side: each runs up to its next `fit`, then all of those are trained together.

A work is a pure function, so it can be run again: where it asks for a training that nobody has done yet it is stopped, and when
the training is done it runs from its beginning with the results so far at hand. If its training turns out not to be one
computation with others', the work runs again and trains by itself: nothing that its loss may write to is lost then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from comity.core.evaluation import judge_together
from comity.core.fit import FITTER, Fit, Request, alone
from comity.core.net import Call
from comity.core.record import Sealed, tree_map
from comity.core.task import Network
from comity.engines.site import Home, Site
from comity.engines.stacked.together import fit_together

Answer = tuple[Any, int]
BLOCK_BYTES = 6_000_000  # of weights trained together: they should stay in the cache from step to step
BLOCK_PARTIES = 64


class Sites(Protocol):
    """By party number."""

    def __getitem__(self, i: int) -> Site: ...


class Pause(Exception):
    """A work has come to a training that is not done yet."""

    def __init__(self, asked: Request) -> None:
        self.asked = asked


class Script:
    """The trainings of one work that are done, in the order in which it asks for them."""

    def __init__(self) -> None:
        self.done: list[Fit] = []
        self.by_itself = False
        """Whether all further trainings are done where they are asked for."""
        self._at = 0

    def begin(self) -> None:
        """The work runs from its beginning."""
        self._at = 0

    def __call__(self, asked: Request) -> Fit:
        if self._at < len(self.done):
            self._at += 1
            return self.done[self._at - 1]
        if self.by_itself:
            return alone(asked)
        raise Pause(asked)


def work(
    sites: Sites, call: Call, mail: Mapping[int, Any], boxes: Mapping[int, dict[int, Sealed]], stacked: bool
) -> Iterator[tuple[int, Answer]]:
    """Have each party work: its number and its answer, as they are done."""
    if stacked and call.depth < 0 and call.work == "evaluate" and not call.use:
        yield from _judged(sites, mail)
        return
    side_by_side = [i for i in mail if stacked and call.depth >= 0 and _stacks(sites[i].party.task.network)]
    for i in sorted(mail.keys() - set(side_by_side)) if side_by_side else mail:
        yield i, sites[i].work(call, mail[i], boxes.get(i, {}))
    for block in _blocks(sites, side_by_side):
        yield from _together(block, sites, call, mail, boxes)


def _judged(sites: Sites, mail: Mapping[int, Any]) -> Iterator[tuple[int, Answer]]:
    """Parties' judgements; of those who have one and the same model in one pass."""
    everyone = list(mail)
    for block in (everyone[at : at + BLOCK_PARTIES] for at in range(0, len(everyone), BLOCK_PARTIES)):
        groups: dict[tuple[int, ...], list[int]] = {}
        models = {i: sites[i].deployed(mail[i]) for i in block}
        for i, (task, theta) in models.items():
            groups.setdefault((id(task), *map(id, theta.values())), []).append(i)
        for ids in groups.values():
            for i, judgement in zip(ids, judge_together(*models[ids[0]], [sites[i].party.data for i in ids]), strict=True):
                yield i, (judgement, 0)


def _stacks(network: Network) -> bool:
    return network.dense and not network.draws


def _blocks(sites: Sites, ids: Sequence[int]) -> Iterator[list[int]]:
    """Parties of about one size, as many as the cache has room for."""
    ordered = sorted(ids, key=lambda i: -len(sites[i].party.data.train))
    while ordered:
        weight = sites[ordered[0]].party.task.bytes()
        most = max(1, min(BLOCK_PARTIES, BLOCK_BYTES // max(1, weight)))
        many = -(-len(ordered) // -(-len(ordered) // most))  # as few blocks as possible, of one size
        yield ordered[:many]
        ordered = ordered[many:]


def _together(
    ids: list[int], sites: Sites, call: Call, mail: Mapping[int, Any], boxes: Mapping[int, dict[int, Sealed]]
) -> Iterator[tuple[int, Answer]]:
    scripts = {i: Script() for i in ids}
    while scripts:
        asked: dict[int, Request] = {}
        for i, script in list(scripts.items()):
            site = sites[i]
            before = site.home
            script.begin()
            token = FITTER.set(script)
            try:
                answer = site.work(call, mail[i], boxes.get(i, {}))
            except Pause as pause:
                asked[i] = pause.asked
                continue
            finally:
                FITTER.reset(token)
            if site.home is not before:
                site.home = _in_own_memory(site.home)
            del scripts[i]
            yield i, answer
        for i, done in zip(asked, fit_together(list(asked.values())), strict=True):
            if done:
                scripts[i].done.append(done)
            else:
                scripts[i].by_itself = True


def _in_own_memory(home: Home) -> Home:
    """What a party keeps, in memory of its own: a row would keep the whole block alive."""
    if not home.mine and not home.moments:
        return home

    def own(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, Tensor) and leaf._base is not None else leaf

    kept: Home = tree_map(own, home)
    return kept
