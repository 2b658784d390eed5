"""How a site starts the process of a job, and what it reports when that process is killed."""

from __future__ import annotations

from typing import Any

from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle


class Handle(ProcessHandle):
    """A job process whose kill ends the job only at this site.

    FLARE reports a killed process as an error of the job, and the server then ends the job at every
    site. This class reports the return code as unknown, which FLARE does not treat as an error.
    """

    def poll(self) -> Any:
        """FLARE's return code of the process."""
        code = self.adapter.poll()
        return JobReturnCode.UNKNOWN if code is not None and code < 0 else super().poll()


class Launcher(ClientProcessJobLauncher):
    """Starts a site's job processes, one at a time.

    After a kill of the server, the processes of its job wait at the sites until the server is back.
    By then the same run may have been submitted again, and two processes must never use the stored
    state of one party.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: Handle | None = None

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Handle:
        """Start a job process as FLARE does, after the one before it has ended."""
        if self._last is not None and self._last.poll() == JobReturnCode.UNKNOWN:
            self._last.terminate()
            self._last.wait()
        self._last = Handle(process_adapter=super().launch_job(job_meta, fl_ctx).adapter)
        return self._last
