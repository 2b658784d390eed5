"""What FLARE may do, written into a kit's `local` folder: far less than its defaults allow.

- A job is signed by whoever submits it, and checked against the root at every site.
- No job may bring code, whoever submits it; a job may only name this package's app there and FLARE's
  adapter around it.
- Nobody gets a shell, restarts or stops a site, changes its log or reads its errors from afar.
- A site sends no logs; a server has nobody who would receive them.
- Jobs are kept below the server's own folder, not in the system's temporary one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SERVER_APP = "comity.deploy.flare.apps.ServerApp"
SITE_APP = "comity.deploy.flare.apps.SiteApp"
AT_SERVER = [CONTROLLER, SERVER_APP]
AT_SITE = [EXECUTOR, SITE_APP]
ROLES = ("project_admin", "org_admin", "lead", "member")
RIGHTS = (
    "submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc",
    "server-predeployed-flwr",
)  # fmt: skip
SILENCE = (
    30  # seconds without a heartbeat (one every ten), after which the server takes a site for gone
)


def harden_server(kit: Path, folder: Path) -> None:
    """The lead may submit jobs, look at the list and end its own; nobody may do anything else."""
    lead = {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}
    _write(kit, "authorization.json", _permissions({"lead": lead, "member": {"view": "any"}}))
    _write(kit, "log_config.json", _logging())
    kept = (folder / "jobs").resolve()
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    snapshots = {"path": storage, "args": {"root_dir": str(kept / "snapshots"), "uri_root": "/"}}
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": AT_SERVER,
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 1000,
                "heart_beat_timeout": SILENCE,
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {
            "path": (
                "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor"
            ),
            "args": {"uri_root": "/", "storage": snapshots},
        },
        "components": [
            _component(
                "job_scheduler",
                "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                max_jobs=1,
            ),
            _component(
                "job_manager",
                "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                uri_root=str(kept),
                job_store_id="job_store",
            ),
            _component("job_store", storage),
            _component("process_launcher", launcher),
        ],
    }
    _write(kit, "resources.json", resources)
    _only_signed(kit / "startup" / "fed_server.json")


def harden_site(kit: Path) -> None:
    """The lead's jobs may run here, if they are of our classes only; nobody may do anything else."""
    _write(kit, "authorization.json", _permissions({"lead": {"submit_job": "any"}}))
    _write(kit, "log_config.json", _logging())
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": AT_SITE,
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30},
        "components": [
            _component(
                "resource_manager",
                "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
                num_of_gpus=0,
                mem_per_gpu_in_GiB=0,
                expiration_period=300,
            ),
            _component(
                "resource_consumer",
                "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
            ),
            _component("process_launcher", "comity.deploy.flare.launcher.Launcher"),
        ],
    }
    _write(kit, "resources.json", resources)
    _only_signed(kit / "startup" / "fed_client.json")


def _only_signed(file: Path) -> None:
    """FLARE wants jobs signed unless told otherwise; here it is told."""
    held = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(
        json.dumps(held | {"require_signed_jobs": True}, indent=2) + "\n", encoding="utf-8"
    )


def _permissions(given: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Every right of every role spelled out, so that no default of FLARE's fills a gap."""
    return {
        "format_version": "1.0",
        "permissions": {
            role: dict.fromkeys(RIGHTS, "none") | given.get(role, {}) for role in ROLES
        },
    }


def _logging() -> dict[str, Any]:
    """Warnings on the screen, and what happens in log.txt, but for a line at every call."""
    shape = "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s"
    rotating = {
        "class": "logging.handlers.RotatingFileHandler",
        "mode": "a",
        "maxBytes": 20 << 20,
        "backupCount": 3,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "fmt": shape}},
        "handlers": {
            "consoleHandler": {
                "class": "logging.StreamHandler", "level": "WARNING", "formatter": "plain", "stream": "ext://sys.stderr",
            },
            "logFileHandler": {"level": "INFO", "formatter": "plain", "filename": "log.txt"} | rotating,
        },
        "loggers": {
            "root": {"level": "INFO", "handlers": ["consoleHandler", "logFileHandler"]},
            "nvflare.collab": {"level": "WARNING"},
        },
    }  # fmt: skip


def _component(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


def _write(kit: Path, name: str, held: dict[str, Any]) -> None:
    (kit / "local" / name).write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
