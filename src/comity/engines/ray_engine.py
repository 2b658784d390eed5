"""The Ray engine (`--engine ray`, the extra `comity[ray]`): parties are distributed over the actors
of a cluster.

Data for several actors go into Ray's object store once, and from there to each machine once.
Replies arrive as they are ready; the server reduces them in party order, so that results equal
those of every other engine. A lost actor that had no states is replaced and gets the remaining
requests. If states were lost, the whole run returns to its last checkpoint.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from comity.engines.ray_cluster import (
    START_SECONDS,
    Cluster,
    Recipe,
    check_installed,
    first_line,
    get_all,
    idle_actors,
    silent_seconds,
    worker_lost,
)
from comity.engines.workers import WorkerReply, WorkerRequest, WorkersEngine, always_open
from comity.errors import ComityError
from comity.wire.bundles import pack_for, unpack

UNREAD_REPLIES = 4  # of an actor, which waits until one of them is read
MAX_REPLACED = 3  # actors that are replaced in one run before it fails


class RayEngine(WorkersEngine):
    """Actors on a cluster. Messages go to the actor that has the party."""

    def __init__(
        self, recipe: Recipe, loads: Mapping[int, int], workers: int, gpus: float = 0
    ) -> None:
        check_installed()
        super().__init__(loads, max(1, min(workers, len(loads))))
        self._recipe = recipe
        self._silent_seconds = silent_seconds()
        self._notifications: list[Any] = []
        """Requests that need no reply. Their errors are raised at the next exchange."""
        self._replaced = 0
        cluster, idle_actors.cluster = idle_actors.cluster, None
        if cluster and (len(cluster.actors), cluster.gpus) != (self._workers, gpus):
            cluster.close()
            cluster = None
        self._cluster: Cluster | None = cluster or Cluster(self._workers, gpus)
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
        """Have all actors build their parties. An actor that was lost while it was idle is
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
        get_all(first.share_secret.remote(others, True))

    def _prepare(self, actors: Iterable[Any]) -> None:
        import ray

        split = ray.put(self._recipe.split)
        recipe = self._recipe
        references = [
            actor.begin.remote(recipe.builder, recipe.settings, split, dict(recipe.code))
            for actor in actors
        ]
        if error := next(filter(None, get_all(references)), ""):
            raise ComityError(f"A worker on the Ray cluster cannot take part: {error}")

    def _exchange(
        self,
        requests: Mapping[int, WorkerRequest],
        is_open: Callable[[int], bool] = always_open,
    ) -> Iterator[tuple[int, WorkerReply]]:
        import ray

        self._check_notifications()
        # The messages whose results are still missing, so that a lost actor's can be sent again.
        remaining = {
            w: request | {"messages": dict(request.get("messages", {}))}
            for w, request in requests.items()
        }
        streams = self._send(remaining)
        while streams:
            open_streams = [stream for stream, w in streams.items() if is_open(w)]
            ready, _ = ray.wait(open_streams, num_returns=1, timeout=self._silent_seconds)
            if not ready:
                raise worker_lost(TimeoutError(f"no reply within {self._silent_seconds:g} seconds"))
            (stream,) = ready
            w = streams[stream]
            try:
                reply = self._receive(next(stream))
            except ray.exceptions.RayError as why:
                del streams[stream]
                streams |= self._send_again(w, remaining[w], why)
                continue
            if reply["last"]:
                del streams[stream]
            for i in reply.get("answers", ()):
                remaining[w]["messages"].pop(i)
            yield w, reply

    def _send(self, requests: Mapping[int, WorkerRequest]) -> dict[Any, int]:
        """Send requests. Returns the stream of each actor's replies, with its worker number."""
        import ray

        headers, bundles = pack_for(requests)
        stored = [ray.put(bundle) for bundle in bundles]
        return {
            self._actors[w]
            .handle.options(_generator_backpressure_num_objects=UNREAD_REPLIES)
            .remote(header, *(stored[g] for g in bundle_numbers)): w
            for w, (header, bundle_numbers) in headers.items()
        }

    def _receive(self, reference: Any) -> WorkerReply:
        import ray

        reply: WorkerReply = unpack(*ray.get(reference))
        if "error" in reply:
            raise ComityError(reply["error"])
        return reply

    def _send_again(self, w: int, request: WorkerRequest, why: Exception) -> dict[Any, int]:
        """Send a lost actor's remaining request to a new one. Raises WorkerLost if states were
        lost, which other parties may be ahead of.
        """
        assert self._cluster
        others = [actor for v, actor in enumerate(self._actors) if v != w]
        stateful = w in self._worker_of.values() or (request.get("inboxes") and not others)
        if stateful or self._replaced >= MAX_REPLACED:
            raise worker_lost(why) from why
        self._replaced += 1
        warnings.warn(
            f"A worker on the Ray cluster was lost ({first_line(why)}). It had no states and is"
            " replaced.",
            stacklevel=2,
        )
        new = self._cluster.replace(w)
        self._prepare([new])
        get_all(
            (others[0] if others else new).share_secret.remote([new] if others else [], not others)
        )
        return self._send({w: request})

    def _notify(self, requests: Mapping[int, WorkerRequest]) -> None:
        self._check_notifications()
        self._notifications = list(self._send(requests))

    def _check_notifications(self) -> None:
        import ray

        streams, self._notifications = self._notifications, []
        for stream in streams:
            try:
                for reference in stream:
                    self._receive(reference)
            except ray.exceptions.RayError as why:
                raise worker_lost(why) from why

    def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        if idle_actors.depth and not idle_actors.cluster:
            for actor in cluster.actors:
                actor.end.remote()
            idle_actors.cluster = cluster
        else:
            cluster.close()
