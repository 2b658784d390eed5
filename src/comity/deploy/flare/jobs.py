"""Jobs of FLARE: submit, follow and abort them. A job consists of three small configuration files
and contains no code.
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

SYNC = 60  # seconds in which a site must start its process to take part
THREADS = 1000  # the largest number of concurrent calls; threads are started only when needed


class Jobs:
    """A researcher's session at a server: `with Jobs.at(kit) as jobs`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    @contextmanager
    def at(cls, kit: Path, seconds: float = 10.0) -> Iterator[Jobs]:
        """Log in with the certificate in a researcher's startup kit; log out at the end."""
        needs_flare()
        from nvflare.fuel.flare_api.api_spec import AuthenticationError, NoConnection
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        # FLARE's own messages about connections are replaced by the error below.
        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        session = None
        try:
            with redirect_stdout(io.StringIO()):  # FLARE prints that it connects
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
        """Submit a job with this content (see `server.JobRequest`); returns the job's id."""
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
        """FLARE's status of a job, for instance SUBMITTED, RUNNING or FINISHED:COMPLETED."""
        with _as_comity_error():
            return str(self._session.get_job_status(job))

    def wait(
        self,
        job: str,
        on_status: Callable[[str], None] = lambda _: None,
        seconds: float | None = None,
    ) -> str:
        """Wait until a job has ended, at most `seconds`; returns its last status.

        `on_status` is called with every new status.
        """
        end = None if seconds is None else time.monotonic() + seconds
        last = ""
        while True:
            status = self.status(job)
            if status != last:
                on_status(status)
            last = status
            if status.startswith("FINISHED") or (end is not None and time.monotonic() > end):
                return status
            time.sleep(1)

    def abort(self, job: str) -> None:
        """Abort a job."""
        with _as_comity_error():
            self._session.abort_job(job)

    def sites(self) -> list[str]:
        """The names of the sites that are connected to the server."""
        with _as_comity_error():
            return sorted(client.name for client in self._session.get_connected_client_list())


@contextmanager
def _as_comity_error() -> Iterator[None]:
    """Turn FLARE's exceptions, which have no common base class, into `ComityError`."""
    try:
        yield
    except Exception as why:
        raise ComityError(f"The server did not answer, or refused: {why}") from why


def researcher(kit: Path) -> str:
    """The name of the researcher to whom a startup kit belongs."""
    try:
        settings = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))
        return str(settings["admin"]["username"])
    except (OSError, ValueError, KeyError):
        raise UsageError(
            f"{kit} is not a researcher's kit: comity deploy init makes one."
        ) from None


def write_job(order: dict[str, Any], folder: Path) -> None:
    """Write the files of a job: its content, and the classes that run at server and sites."""
    # The content is in base64, because FLARE replaces {names} by variables and builds an object
    # from every value with a "path".
    encoded_order = base64.b64encode(json.dumps(order).encode()).decode()
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
        "components": [{"id": "server", "path": SERVER_APP, "args": {"order": encoded_order}}],
    }
    site = {
        "format_version": 2,
        "executors": [
            {
                "tasks": ["*"],
                "executor": {"path": EXECUTOR, "args": {"client_obj_id": "site"} | threads},
            }
        ],
        "components": [{"id": "site", "path": SITE_APP, "args": {"order": encoded_order}}],
    }
    for file, content in (
        (folder / "meta.json", meta),
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", site),
    ):
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
