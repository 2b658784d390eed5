"""Orders as jobs of FLARE's: submitted, followed, ended. A job is configuration only, three small
files; no code travels.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comity.deploy.flare import needs_flare
from comity.deploy.flare.hardening import CONTROLLER, EXECUTOR, SERVER_APP, SITE_APP
from comity.errors import ComityError, UsageError

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

SYNC = 60  # seconds within which a site that takes part must have started its process
THREADS = 1000  # calls under way at once; a thread is made only when it is needed


class Jobs:
    """A researcher's way to a server: `with Jobs.at(kit) as jobs`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    @contextmanager
    def at(cls, kit: Path, seconds: float = 10.0) -> Iterator[Jobs]:
        """Log in with the certificate in a researcher's kit; all is closed at the end."""
        needs_flare()
        from nvflare.fuel.flare_api.api_spec import AuthenticationError, NoConnection
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        logging.getLogger("nvflare").setLevel(
            logging.CRITICAL
        )  # what it says of connections is said below, in a sentence
        session = None
        try:
            with redirect_stdout(io.StringIO()):  # it tells the screen that it connects
                session = new_secure_session(researcher(kit), str(kit.resolve()), timeout=seconds)
            yield cls(session)
        except (NoConnection, AuthenticationError) as why:
            raise ComityError(
                f"The server did not let this kit in, or is not there: {why}"
            ) from None
        finally:
            if session is not None:
                session.close()

    def submit(self, order: dict[str, Any]) -> str:
        """Submit an order; returns the job's id."""
        from nvflare.fuel.flare_api.api_spec import (
            AuthorizationError,
            InvalidJobDefinition,
            JobNotFound,
        )

        with tempfile.TemporaryDirectory(prefix="comity-job-") as folder:
            write_job(order, Path(folder) / "comity")
            try:
                return str(self._session.submit_job(str(Path(folder) / "comity")))
            except (AuthorizationError, InvalidJobDefinition, JobNotFound) as why:
                raise UsageError(f"The server refused the job: {why}") from None

    def status(self, job: str) -> str:
        """FLARE's word for how a job stands: SUBMITTED, RUNNING, FINISHED:COMPLETED and the like."""
        with _in_our_words():
            return str(self._session.get_job_status(job))

    def wait(
        self, job: str, heard: Callable[[str], None] = lambda _: None, seconds: float | None = None
    ) -> str:
        """Wait until a job has ended, or for so many seconds; `heard` is called with every new
        status. Returns the last one.
        """
        end = None if seconds is None else time.monotonic() + seconds
        last = ""
        while True:
            status = self.status(job)
            if status != last:
                heard(status)
            last = status
            if status.startswith("FINISHED") or (end is not None and time.monotonic() > end):
                return status
            time.sleep(1)

    def abort(self, job: str) -> None:
        """End a job before its time."""
        with _in_our_words():
            self._session.abort_job(job)

    def sites(self) -> list[str]:
        """The sites that are connected to the server, by name."""
        with _in_our_words():
            return sorted(client.name for client in self._session.get_connected_client_list())


@contextmanager
def _in_our_words() -> Iterator[None]:
    """FLARE's many exceptions, which have no parent of their own in common, as one."""
    try:
        yield
    except Exception as why:
        raise ComityError(f"The server did not answer, or refused: {why}") from why


def researcher(kit: Path) -> str:
    """Whose kit it is."""
    try:
        return str(
            json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"][
                "username"
            ]
        )
    except (OSError, ValueError, KeyError):
        raise UsageError(
            f"{kit} is not a researcher's kit: comity deploy init makes one."
        ) from None


def write_job(order: dict[str, Any], folder: Path) -> None:
    """Write a job for an order: who takes part, and which class runs at the server and at the
    sites.
    """
    # In base64, since FLARE puts variables in for {names} and builds objects of whatever has a
    # "path".
    written = base64.b64encode(json.dumps(order).encode()).decode()
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {
        "name": "comity",
        "resource_spec": {},
        "min_clients": 1,
        "deploy_map": {"app": ["@ALL"]},
    }
    threads = {"max_call_threads": THREADS}
    server = {
        "format_version": 2,
        "workflows": [
            {
                "id": "controller",
                "path": CONTROLLER,
                "args": {"server_obj_id": "server", "sync_task_timeout": SYNC} | threads,
            }
        ],
        "components": [{"id": "server", "path": SERVER_APP, "args": {"order": written}}],
    }
    site = {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {"path": EXECUTOR, "args": {"client_obj_id": "site"} | threads},
            }
        ],
        "components": [{"id": "site", "path": SITE_APP, "args": {}}],
    }
    for file, held in (
        (folder / "meta.json", meta),
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", site),
    ):
        file.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
