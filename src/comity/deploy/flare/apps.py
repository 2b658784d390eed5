"""What runs in the processes of a job: at the server whoever conducts the run, at a site the desk
that answers.

The only way in is `SiteApp.ask`, bytes to bytes, and only the server may call it. FLARE would send
the traceback of whatever is left uncaught there: nothing is, and one fixed sentence leaves instead.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from nvflare.apis.fl_constant import FLContextKey
from nvflare.collab import collab
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from comity.deploy.transport import Aborted, Transport
from comity.errors import ComityError, quote

FOLDER = (
    "COMITY_SITES_FOLDER"  # the folder of this server or site, set by whoever started the process
)
# another module with open_desk, and serve: tests and measurements set it where they start processes
DESK = "COMITY_SITES_DESK"
FAILED = "This site failed to answer."
UNASKED = "Only the server may ask."
HERE = 5.0  # seconds for a site to say that it is there
EVERY, MISSED = (
    20.0,
    3,
)  # seconds between such questions while an answer is awaited, and how many in a row it may miss

log = logging.getLogger(__name__)


class SiteExecutor(Protocol):
    """A site's half of a run."""

    def answer(self, request: bytes) -> bytes:
        """PartyVerdict a request of the server's."""
        ...


class Line(Protocol):
    """The way to one site."""

    def ask(self, request: bytes, seconds: float) -> Any:
        """What `SiteApp.ask` returns there; raises if nothing comes within so many seconds."""
        ...

    def here(self, seconds: float) -> Any:
        """Raises if the site is not there."""
        ...


class FlareTransport:
    """Carries requests as calls of `SiteApp.ask`, one thread for each site asked."""

    def __init__(self, sites: Mapping[str, Line], aborted: Callable[[], bool]) -> None:
        self._sites = dict(sorted(sites.items()))
        self._aborted = aborted
        self._silent: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The sites that this job runs at, in the order of their names."""
        return list(self._sites)

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Ask all at once; answers as they come, None for a site that failed or was silent for
        `seconds`.

        An answer that comes later is dropped. While an answer is awaited, the site is asked now and
        then whether it is there: one that is gone need not cost the whole deadline. A site that was
        silent the last time is asked that before it is asked anything else. The deadline is kept
        here, since FLARE's own is one for each part of a call. Raises only when the whole job is
        aborted.
        """
        arrived: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        waiting = set(requests)
        end = time.monotonic() + seconds
        over = threading.Event()
        for name, request in requests.items():
            asking = threading.Thread(
                target=lambda *a: arrived.put(self._one(*a)),
                args=(name, request, seconds),
                daemon=True,
            )
            asking.start()
            threading.Thread(target=self._watch, args=(name, over, arrived), daemon=True).start()
        try:
            yield from self._arriving(arrived, waiting, end)
        finally:
            over.set()
        self._silent |= waiting
        yield from ((name, None) for name in sorted(waiting))

    def _arriving(
        self, arrived: queue.SimpleQueue[tuple[str, bytes | None]], waiting: set[str], end: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Answers as they come, each site's first, until the deadline; who has answered is taken
        out of `waiting`.
        """
        while waiting:
            try:
                name, answer = arrived.get(timeout=min(1.0, max(0.0, end - time.monotonic())))
            except queue.Empty:
                name, answer = "", None
            if answer is None and self._aborted():
                raise Aborted("The job was aborted.")
            if name in waiting:
                waiting.discard(name)
                yield name, answer
            elif not name and time.monotonic() >= end:
                return

    def _watch(
        self, name: str, over: threading.Event, arrived: queue.SimpleQueue[tuple[str, bytes | None]]
    ) -> None:
        """Ask a site whether it is there, again and again until all is over; if it says nothing, it
        is not waited for.
        """
        missed = 0
        while missed < MISSED and not over.wait(EVERY):
            try:
                self._sites[name].here(HERE)
                missed = 0
            except BaseException:
                missed += 1
        if missed == MISSED and not over.is_set():
            self._silent.add(name)
            arrived.put((name, None))

    def _one(self, name: str, request: bytes, seconds: float) -> tuple[str, bytes | None]:
        try:
            site = self._sites[name]
            if name in self._silent:
                site.here(min(seconds, HERE))
                self._silent.discard(name)
            answer = site.ask(request, seconds)
        except BaseException as why:  # whatever it is, this site did not answer
            log.warning("%s did not answer: %s", name, why)
            self._silent.add(name)
            return name, None
        if isinstance(answer, bytes):
            return name, answer
        log.warning("%s did not answer: %s", name, quote(answer, 200))
        return name, None


class ServerApp:
    """The server's half of a job. `order` is what the researcher submitted, as `jobs` writes it."""

    def __init__(self, order: str) -> None:
        self._order = json.loads(base64.b64decode(order))
        end_with_parent()

    @collab.main
    def run(self) -> None:
        """Conduct the run that was ordered."""
        context = collab.context
        serve: Callable[[Transport, dict[str, Any], Path], None] = _ours(
            "comity.deploy.server"
        ).serve
        serve(
            FlareTransport({site.name: Calls(site) for site in collab.clients}, context.is_aborted),
            self._order,
            _folder(),
        )


class Calls:
    """The way to one site by FLARE's calls."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def ask(self, request: bytes, seconds: float) -> Any:
        """Call `SiteApp.ask`."""
        return self._site(timeout=seconds).ask(request)

    def here(self, seconds: float) -> Any:
        """Call `SiteApp.here`."""
        return self._site(timeout=seconds).here()


class SiteApp:
    """A site's half of a job: one desk for the whole of it, made when the first request comes."""

    def __init__(self) -> None:
        self._desk: SiteExecutor | None = None
        self._one = (
            threading.Lock()
        )  # the server may ask again while an answer that came too late is still being made
        end_with_parent()

    @collab.publish
    def ask(self, request: bytes) -> bytes | str:
        """PartyVerdict the server, and nobody else; a text instead of bytes is not an answer."""
        try:
            if collab.caller != "server":
                return UNASKED
            with self._one:
                return self._open().answer(request)
        except BaseException:
            log.exception("A request could not be answered.")  # in this site's own log
            return FAILED

    @collab.publish
    def here(self) -> bool:
        """Whether this site is there: it is, and says so even while it works on an answer."""
        return True

    def _open(self) -> SiteExecutor:
        if self._desk is None:
            self._desk = _ours("comity.deploy.handler").open_desk(_folder(), _submitter())
        return self._desk


def _submitter() -> str:
    """Whose certificate signed this job, which is not left to the server to say."""
    context = collab.fl_ctx
    root = (
        Path(context.get_prop(FLContextKey.WORKSPACE_OBJECT).get_startup_kit_dir()) / "rootCA.pem"
    )
    signed, signers = verify_folder_signature_and_get_signers(
        context.get_prop(FLContextKey.APP_ROOT), str(root)
    )
    if not signed or len(signers) != 1:
        raise ComityError("The job is not signed by one person whom the root knows.")
    return str(signers[0][0])


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def _ours(module: str) -> Any:
    return import_module(os.environ.get(DESK) or module)


def end_with_parent(seconds: float = 1.0) -> None:
    """End this process soon after the one that started it is gone, which FLARE's job processes
    would outlive.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
