"""Restrictions on FLARE, written into the `local` folder of a startup kit.

- A job must be signed by its submitter. Every site checks the signature against the root.
- No job may contain code. A job may only name this package's app and FLARE's adapter around it.
- Nobody can open a shell, restart or stop a site, change its log settings or read its errors
  remotely.
- A site sends no logs, and a server receives none.
- Jobs are stored in the server's own folder, not in the system's temporary one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comity.safe_files import write_atomically

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
SERVER_APP = "comity.deploy.flare.apps.ServerApp"
SITE_APP = "comity.deploy.flare.apps.SiteApp"
AT_SERVER = [CONTROLLER, SERVER_APP]
AT_SITE = [EXECUTOR, SITE_APP]
ROLES = ("project_admin", "org_admin", "lead", "member")
RIGHTS = (
    "submit_job",
    "clone_job",
    "manage_job",
    "download_job",
    "view",
    "operate",
    "shell_commands",
    "byoc",
    "server-predeployed-flwr",
)
HEARTBEAT_TIMEOUT = 30  # seconds; a site sends a heartbeat every ten seconds


def harden_server(kit: Path, folder: Path) -> None:
    """Allow the lead to submit jobs, to list them and to abort its own ones; forbid all else."""
    lead = {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}
    _write(kit, "authorization.json", _permissions({"lead": lead, "member": {"view": "any"}}))
    _write(kit, "log_config.json", _logging())
    jobs = (folder / "jobs").resolve()
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    snapshots = {"path": storage, "args": {"root_dir": str(jobs / "snapshots"), "uri_root": "/"}}
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": AT_SERVER,
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 1000,
                "heart_beat_timeout": HEARTBEAT_TIMEOUT,
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
                uri_root=str(jobs),
                job_store_id="job_store",
            ),
            _component("job_store", storage),
            _component("process_launcher", launcher),
        ],
    }
    _write(kit, "resources.json", resources)
    _require_signed_jobs(kit / "startup" / "fed_server.json")


def harden_site(kit: Path) -> None:
    """Allow jobs of the lead that use only Comity's classes; forbid all else."""
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
    _require_signed_jobs(kit / "startup" / "fed_client.json")


def _require_signed_jobs(file: Path) -> None:
    """Require signed jobs explicitly, in place of FLARE's default."""
    content = json.loads(file.read_text(encoding="utf-8"))
    content["require_signed_jobs"] = True
    write_atomically(file, json.dumps(content, indent=2) + "\n")


def _permissions(granted: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Every right of every role, so that no default of FLARE applies."""
    return {
        "format_version": "1.0",
        "permissions": {
            role: dict.fromkeys(RIGHTS, "none") | granted.get(role, {}) for role in ROLES
        },
    }


def _logging() -> dict[str, Any]:
    """Warnings go to the screen, and everything else except single calls to log.txt."""
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
                "class": "logging.StreamHandler",
                "level": "WARNING",
                "formatter": "plain",
                "stream": "ext://sys.stderr",
            },
            "logFileHandler": {"level": "INFO", "formatter": "plain", "filename": "log.txt"}
            | rotating,
        },
        "loggers": {
            "root": {"level": "INFO", "handlers": ["consoleHandler", "logFileHandler"]},
            "nvflare.collab": {"level": "WARNING"},
        },
    }


def _component(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


def _write(kit: Path, name: str, content: dict[str, Any]) -> None:
    write_atomically(kit / "local" / name, json.dumps(content, indent=2) + "\n")
