"""Parties spread over the actors of a Ray cluster (the extra `comity[ray]`): `--engine ray`.

What is the same for several actors goes into Ray's object store once, and from there to each
machine once. Replies come as they are ready; the net reduces them in party order, so that numbers
are those of every other engine. A lost actor that held no state is replaced, and asked again for
what is missing; if states were lost, the run goes back to its checkpoint as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from comity.engines.ray_cluster import (
    START_SECONDS,
    Cluster,
    Recipe,
    check_installed,
    got,
    kept,
    lost,
    said,
)
from comity.engines.workers import Ask, WorkerMessage, WorkersEngine
from comity.errors import ComityError
from comity.wire.bundles import packed_for, unpacked

AGAIN = 3  # actors that are replaced in one run before it is given up


class RayEngine(WorkersEngine):
    """Actors on a cluster; letters go to the actor where the party lives."""

    def __init__(
        self, recipe: Recipe, loads: Mapping[int, int], workers: int, gpus: float = 0
    ) -> None:
        check_installed()
        super().__init__(loads, max(1, min(workers, len(loads))))
        self._recipe = recipe
        self._told: list[Any] = []
        """What actors are told that need not answer: an error of theirs is heard at the next
        exchange.
        """
        self._replaced = 0
        waiting, kept.cluster = kept.cluster, None
        if waiting and (len(waiting.actors), waiting.gpus) != (self._workers, gpus):
            waiting.close()
            waiting = None
        self._cluster: Cluster | None = waiting or Cluster(self._workers, gpus)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def _actors(self) -> list[Any]:
        assert self._cluster, "the engine is closed"
        return self._cluster.actors

    def _begin(self) -> None:
        """Have all actors make their parties; one that died while it waited for this run is
        replaced.
        """
        import ray

        assert self._cluster
        for w, actor in enumerate(self._actors):
            try:
                ray.get(actor.introduce.remote(), timeout=START_SECONDS)
            except ray.exceptions.RayError:
                self._cluster.replace(w)
        self._prepare(self._actors)
        first, *others = self._actors
        got(first.share_secret.remote(others, True))

    def _prepare(self, actors: Iterable[Any]) -> None:
        import ray

        split = ray.put(self._recipe.split)
        asked = [
            actor.begin.remote(self._recipe.settings, split, dict(self._recipe.code))
            for actor in actors
        ]
        if wrong := next(filter(None, got(asked)), ""):
            raise ComityError(f"A worker on the Ray cluster cannot take part: {wrong}")

    def _exchange(self, asks: Mapping[int, Ask]) -> Iterator[tuple[int, WorkerMessage]]:
        import ray

        self._check_told()
        rest = {
            w: ask | {"messages": dict(ask.get("letters", {}))} for w, ask in asks.items()
        }  # what is not answered yet
        streams = self._asked(rest)
        while streams:
            (stream, *_), _ = ray.wait(list(streams), num_returns=1)
            w = streams[stream]
            try:
                message = self._heard(next(stream))
            except ray.exceptions.RayError as why:
                del streams[stream]
                streams |= self._asked_again(w, rest[w], why)
                continue
            if message["last"]:
                del streams[stream]
            for i in message.get("answers", ()):
                rest[w]["messages"].pop(i)
            yield w, message

    def _asked(self, asks: Mapping[int, Ask]) -> dict[Any, int]:
        """What each actor says to its ask, as a stream."""
        import ray

        posts, bundles = packed_for(asks)
        stored = [ray.put(bundle) for bundle in bundles]
        return {
            self._actors[w].answer.remote(header, *(stored[g] for g in own)): w
            for w, (header, own) in posts.items()
        }

    def _heard(self, message: Any) -> WorkerMessage:
        import ray

        heard: WorkerMessage = unpacked(*ray.get(message))
        if "error" in heard:
            raise ComityError(heard["error"])
        return heard

    def _asked_again(self, w: int, ask: Ask, why: Exception) -> dict[Any, int]:
        """Have another actor answer what one that died has left; not if states died with it, which
        others may be ahead of.
        """
        assert self._cluster
        others = [actor for v, actor in enumerate(self._actors) if v != w]
        stateful = w in self._homes.values() or (ask.get("inboxes") and not others)
        if stateful or self._replaced >= AGAIN:
            raise lost(why) from why
        self._replaced += 1
        warnings.warn(
            f"A worker on the Ray cluster was lost ({said(why)}): it held no states, and is"
            " replaced.",
            stacklevel=2,
        )
        new = self._cluster.replace(w)
        self._prepare([new])
        got((others[0] if others else new).share_secret.remote([new] if others else [], not others))
        return self._asked({w: ask})

    def _tell(self, asks: Mapping[int, Ask]) -> None:
        self._check_told()
        self._told = list(self._asked(asks))

    def _check_told(self) -> None:
        import ray

        told, self._told = self._told, []
        for stream in told:
            try:
                for said in stream:
                    self._heard(said)
            except ray.exceptions.RayError as why:
                raise lost(why) from why

    def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        if kept.depth and not kept.cluster:
            for actor in cluster.actors:
                actor.end.remote()
            kept.cluster = cluster
        else:
            cluster.close()
