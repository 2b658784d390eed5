"""How a site starts the process of a job, and what the server hears when it is killed."""

from __future__ import annotations

from typing import Any

from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle


class Handle(ProcessHandle):
    """FLARE reports a job process that was killed as an error of the job, and the server ends the
    job at every site.

    Here only this site is lost to the job: how its process ended is said to be unknown, which FLARE
    does not take for an error.
    """

    def poll(self) -> Any:
        """How the process ended, in FLARE's numbers."""
        code = self.adapter.poll()
        return JobReturnCode.UNKNOWN if code is not None and code < 0 else super().poll()


class Launcher(ClientProcessJobLauncher):
    """Starts a site's job processes, one at a time.

    When a server was killed, the processes of its job wait at the sites until it is back and has
    heard of them. By then it may run the same order again: what a party keeps must not be in the
    hands of two.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Handle | None = None

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Handle:
        """Start one, as FLARE does, after the end of the one before."""
        if self._last is not None and self._last.poll() == JobReturnCode.UNKNOWN:
            self._last.terminate()
            self._last.wait()
        self._last = Handle(process_adapter=super().launch_job(job_meta, fl_ctx).adapter)
        return self._last
