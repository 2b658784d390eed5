"""What runs in the processes of a job: at the server the run, at a site its request handler.

The only entry to a site is `SiteApp.ask`, from bytes to bytes, and only the server may call it.
FLARE would send the traceback of an uncaught exception there. All exceptions are therefore caught,
and one fixed sentence leaves instead.
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

from cryptography import x509
from nvflare.apis.fl_constant import FLContextKey
from nvflare.collab import collab
from nvflare.lighter.tool_consts import NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature_and_get_signers

from comity.deploy.revocation import Revocations
from comity.deploy.transport import Aborted, Transport
from comity.errors import ComityError, quote

FOLDER = "COMITY_SITES_FOLDER"
"""The environment variable with the folder of this server or site; `processes` sets it."""
HANDLER = "COMITY_SITES_HANDLER"
"""The environment variable with a module that has `open_handler` and `serve` in place of Comity's
own ones. Tests and benchmarks set it.
"""
FAILED = "This site failed to answer."
UNASKED = "Only the server may ask."
PING_SECONDS = 5.0  # in which a site must answer a ping
PING_INTERVAL = 20.0  # seconds between pings while a reply is awaited
MAX_MISSED = 3  # pings in a row that a site may miss

log = logging.getLogger(__name__)


class SiteExecutor(Protocol):
    """A site's side of a run."""

    def answer(self, request: bytes) -> bytes:
        """Handle a request of the server, and return the reply."""
        ...


class Connection(Protocol):
    """The connection to one site."""

    def ask(self, request: bytes, seconds: float) -> Any:
        """Call `SiteApp.ask` at the site; raises if there is no reply within `seconds`."""
        ...

    def here(self, seconds: float) -> Any:
        """Call `SiteApp.here` at the site; raises if there is no reply within `seconds`."""
        ...


class FlareTransport:
    """Carries requests as calls of `SiteApp.ask`, with one thread for each site.

    Arguments:
        sites: the connections, by the name of the site
        is_aborted: whether the job was aborted
    """

    def __init__(self, sites: Mapping[str, Connection], is_aborted: Callable[[], bool]) -> None:
        self._sites = dict(sorted(sites.items()))
        self._is_aborted = is_aborted
        self._silent: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of the sites of this job, in alphabetical order."""
        return list(self._sites)

    def ask(
        self, requests: Mapping[str, bytes], seconds: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Send all requests at once, and yield the replies in the order of their arrival.

        A site that failed, or did not reply within `seconds`, yields None; a later reply is
        dropped. While a reply is awaited, the site is pinged now and then, so that a lost site does
        not cost the whole deadline. A site that did not reply the last time is pinged before its
        request is sent. The deadline is kept here, because FLARE applies its own timeout to each
        part of a call. Raises `Aborted` if the job is aborted, and nothing else.
        """
        replies: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        waiting = set(requests)
        end = time.monotonic() + seconds
        finished = threading.Event()
        for name, request in requests.items():
            threading.Thread(
                target=lambda *args: replies.put(self._ask_site(*args)),
                args=(name, request, seconds),
                daemon=True,
            ).start()
            threading.Thread(
                target=self._watch, args=(name, finished, replies), daemon=True
            ).start()
        try:
            yield from self._collect(replies, waiting, end)
        finally:
            finished.set()
        self._silent |= waiting
        yield from ((name, None) for name in sorted(waiting))

    def _collect(
        self, replies: queue.SimpleQueue[tuple[str, bytes | None]], waiting: set[str], end: float
    ) -> Iterator[tuple[str, bytes | None]]:
        """Yield the first reply of each site until the deadline, and remove it from `waiting`."""
        while waiting:
            try:
                name, reply = replies.get(timeout=min(1.0, max(0.0, end - time.monotonic())))
            except queue.Empty:
                name, reply = "", None
            if reply is None and self._is_aborted():
                raise Aborted("The job was aborted.")
            if name in waiting:
                waiting.discard(name)
                yield name, reply
            elif not name and time.monotonic() >= end:
                return

    def _watch(
        self,
        name: str,
        finished: threading.Event,
        replies: queue.SimpleQueue[tuple[str, bytes | None]],
    ) -> None:
        """Ping a site until all replies are there; after too many missed pings, give it up."""
        missed = 0
        while missed < MAX_MISSED and not finished.wait(PING_INTERVAL):
            try:
                self._sites[name].here(PING_SECONDS)
                missed = 0
            except BaseException:
                missed += 1
        if missed == MAX_MISSED and not finished.is_set():
            self._silent.add(name)
            replies.put((name, None))

    def _ask_site(self, name: str, request: bytes, seconds: float) -> tuple[str, bytes | None]:
        try:
            site = self._sites[name]
            if name in self._silent:
                site.here(min(seconds, PING_SECONDS))
                self._silent.discard(name)
            reply = site.ask(request, seconds)
        except BaseException as why:  # FLARE raises exceptions of many kinds
            log.warning("%s did not answer: %s", name, why)
            self._silent.add(name)
            return name, None
        if isinstance(reply, bytes):
            return name, reply
        log.warning("%s did not answer: %s", name, quote(reply, 200))
        return name, None


class ServerApp:
    """The server's side of a job. `order` is what the researcher submitted, as `jobs` writes it."""

    def __init__(self, order: str) -> None:
        self._order = json.loads(base64.b64decode(order))
        end_with_parent()

    @collab.main
    def run(self) -> None:
        """Conduct the run that was submitted."""
        serve: Callable[[Transport, dict[str, Any], Path], None]
        serve = _import("comity.deploy.server").serve
        connections = {site.name: FlareConnection(site) for site in collab.clients}
        transport = FlareTransport(connections, collab.context.is_aborted)
        serve(transport, self._order, _folder())


class FlareConnection:
    """The connection to one site by FLARE's calls."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def ask(self, request: bytes, seconds: float) -> Any:
        """Call `SiteApp.ask`."""
        return self._site(timeout=seconds).ask(request)

    def here(self, seconds: float) -> Any:
        """Call `SiteApp.here`."""
        return self._site(timeout=seconds).here()


class SiteApp:
    """A site's side of a job, with one request handler that is opened at the first request.

    `order` is what the researcher submitted and signed, as `jobs` writes it.
    """

    def __init__(self, order: str) -> None:
        self._order = json.loads(base64.b64decode(order))
        self._handler: SiteExecutor | None = None
        # The server may ask again while the site still works on a reply that will be too late.
        self._lock = threading.Lock()
        end_with_parent()

    @collab.publish
    def ask(self, request: bytes) -> bytes | str:
        """Handle a request of the server, and of nobody else.

        Returns the reply as bytes, or a text if there is none.
        """
        try:
            if collab.caller != "server":
                return UNASKED
            with self._lock:
                return self._open().answer(request)
        except BaseException:
            log.exception("A request could not be answered.")  # in the site's own log
            return FAILED

    @collab.publish
    def here(self) -> bool:
        """Answer a ping, also while another thread works on a reply."""
        return True

    def _open(self) -> SiteExecutor:
        if self._handler is None:
            handler = _import("comity.deploy.handler")
            self._handler = handler.open_handler(_folder(), _submitter(), self._order)
        return self._handler


def _submitter() -> str:
    """The name in the certificate that signed this job; the server is not trusted to say it."""
    context = collab.fl_ctx
    root = (
        Path(context.get_prop(FLContextKey.WORKSPACE_OBJECT).get_startup_kit_dir()) / "rootCA.pem"
    )
    app = context.get_prop(FLContextKey.APP_ROOT)
    signed, signers = verify_folder_signature_and_get_signers(app, str(root))
    if not signed or len(signers) != 1:
        raise ComityError("The job is not signed by one person whom the root knows.")
    submitter = str(signers[0][0])
    if has_revoked_signer(Path(app), root, _folder()):
        raise ComityError(f"The certificate of {submitter} was revoked by the operator.")
    return submitter


def has_revoked_signer(app: Path, root: Path, folder: Path) -> bool:
    """Whether a certificate that signed the files of a job was revoked, by the list in `folder`."""
    revocations = Revocations(folder, x509.load_pem_x509_certificate(root.read_bytes()))
    return any(
        revocations.has(certificate)
        for file in app.rglob(NVFLARE_SUBMITTER_CRT_FILE)
        for certificate in x509.load_pem_x509_certificates(file.read_bytes())
    )


def _folder() -> Path:
    return Path(os.environ[FOLDER])


def _import(module: str) -> Any:
    return import_module(os.environ.get(HANDLER) or module)


def end_with_parent(seconds: float = 1.0) -> None:
    """End this process soon after its parent process has ended. FLARE's job processes would
    otherwise stay.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
