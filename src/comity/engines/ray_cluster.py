"""Ray: the connection to a cluster, and the actors there.

An actor receives the experiment's settings and the split as text and loads the data where it runs.
No sample is ever sent.

Without RAY_ADDRESS, a small local Ray is started and ended with the run. It listens on this machine
only and requires a token that only this run's processes have. With RAY_ADDRESS, actors are started
on that cluster, under its rules.

Sealed messages are encrypted with a secret that the first actor draws and sends to the others. It
does not pass through this process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from comity.base.record import on_device
from comity.engines.allocator import keep_freed_memory
from comity.engines.loop import Sequential
from comity.engines.site_store import SiteStore
from comity.engines.workers import Worker
from comity.errors import ComityError, UsageError, WorkerLost, describe
from comity.wire.bundles import Bytes, pack, unpack
from comity.wire.sealing import KEY, RUN, Lock, SharedSecret

ADDRESS = "RAY_ADDRESS"
CPU = torch.device("cpu")
START_SECONDS = 120.0  # the time limit for the start of all actors
SILENT_SECONDS_VARIABLE = "COMITY_WORKER_SECONDS"
LOOPBACK = "127.0.0.1"
LOCAL = {
    # Despite its name, 0 also makes Ray ignore connections from other machines.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    # Every connection needs the token. Ray would write one to a file otherwise.
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's log messages are not printed; errors are raised here.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
}
"""The environment of a local Ray."""
LONGEST_FOLDER_NAME = 40  # in a folder with a longer name, the names of Ray's sockets are too long


def check_installed() -> None:
    """Refuse if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("The ray engine needs more packages: pip install 'comity[ray]'.")


def installed_versions() -> list[str]:
    """The versions that must be the same on all machines."""
    from comity import __version__

    return [__version__, torch.__version__.partition("+")[0]]


def silent_seconds() -> float | None:
    """The seconds without a reply of any worker after which they count as lost, from
    COMITY_WORKER_SECONDS. None if there is no limit.
    """
    text = os.environ.get(SILENT_SECONDS_VARIABLE, "")
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = 0.0
    if seconds is not None and not 0 < seconds < float("inf"):
        raise UsageError(
            f"{SILENT_SECONDS_VARIABLE} must be a number of seconds above 0, not {text!r}."
        )
    return seconds


@dataclass(frozen=True)
class BuiltSites:
    """What a builder returns: the sites of a run's parties, and the data that they use."""

    sites: SiteStore
    on_gpu: bool
    data: object
    """Passed to the next build, which can reuse it."""


Builder = Callable[[str, str, Mapping[str, str], object], BuiltSites]
"""builder(settings, split, code, data): build the sites of a run where the data are; see `Recipe`.

`data` is that of the last build in this process, or None.
"""


@dataclass(frozen=True)
class Recipe:
    """Everything that an actor needs to build a run's parties, as text."""

    builder: str
    """The dotted name of a `Builder`, as in `package.module.function`."""
    settings: str
    """The experiment as TOML."""
    split: str
    code: Mapping[str, str]
    """Digests of the users' files that the settings name."""


class Actor:
    """A worker on the cluster, for several runs in sequence. It keeps the data while they are the
    same.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._secret = b""
        self._data: object = None
        self._worker: Worker | None = None
        self._sites: SiteStore | None = None
        self._on_gpu = False
        """Whether parties are on a GPU. Replies are moved to the CPU."""

    def introduce(self) -> tuple[list[str], str, int]:
        """The installed versions, the node and the process of this actor."""
        import ray

        return installed_versions(), ray.get_runtime_context().get_node_id(), os.getpid()

    def begin(self, builder: str, settings: str, split: str, code: Mapping[str, str]) -> str:
        """Build the parties of a run. Returns an error message, which is empty if it succeeded."""
        try:
            module, _, function = builder.rpartition(".")
            build: Builder = getattr(importlib.import_module(module), function)
            new_sites = build(settings, split, code, self._take_data())
        except Exception as why:
            return describe(why)
        self._sites, self._on_gpu, self._data = new_sites.sites, new_sites.on_gpu, new_sites.data
        return ""

    def _take_data(self) -> object:
        """The data of the last run. Drops the reference, so that a builder can free them."""
        data, self._data = self._data, None
        return data

    def share_secret(self, others: Sequence[Any], new: bool) -> None:
        """Send the secret for sealed messages to other actors. With `new`, draw it first."""
        import ray

        if new:
            self.take_secret(os.urandom(KEY + RUN))
        ray.get([other.take_secret.remote(self._secret) for other in others])

    def take_secret(self, secret: bytes) -> None:
        """Start with initial party states, and with sealed messages encrypted with this secret."""
        assert self._sites
        self._secret = secret
        self._worker = Worker(
            self._sites, Sequential(), Lock(SharedSecret(secret[:KEY]), secret[KEY:])
        )

    def handle(self, header: bytes, *bundles: Bytes) -> Iterator[tuple[bytes, Bytes]]:
        """The worker's replies to a request, as they are ready."""
        try:
            assert self._worker
            for reply in self._worker.handle(unpack(header, *bundles)):
                yield pack(on_device(reply, CPU) if self._on_gpu else reply)
                del reply
        except Exception as why:
            yield pack({"error": describe(why), "last": True})

    def end(self) -> None:
        """End the run. The data stay for the next one."""
        self._worker = self._sites = None


class Cluster:
    """A connection to Ray, and the actors that were started through it."""

    def __init__(self, workers: int, gpus: float = 0) -> None:
        self.gpus = gpus
        """The GPUs, or the fraction of one, that each actor takes."""
        self._local = not os.environ.get(ADDRESS)
        with _environment(LOCAL if self._local else {}):  # Ray reads some of it when it is imported
            import ray

        self.actors: list[Any] = []
        self.places: list[tuple[str, int]] = []
        """The node and the process of each actor."""
        self._folder = ""
        self._owns_connection = not ray.is_initialized()
        if self._owns_connection:
            self._connect(workers)
        try:
            if self._owns_connection and self._local:
                self._check_loopback()
            self._check_resources(workers)
            self._actor_class = ray.remote(num_cpus=1, num_gpus=gpus)(Actor)
            self.actors = [self._start_actor() for _ in range(workers)]
            self.places = self._wait_for(self.actors)
        except BaseException:
            self.close()
            raise

    def _connect(self, workers: int) -> None:
        import ray

        quiet: dict[str, Any] = {
            "log_to_driver": False,
            "configure_logging": False,
            "logging_level": "critical",
        }
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if not self._local:
                ray._raylet.Config.initialize("")
                ray.init(**quiet)
                return
            long_name = len(tempfile.gettempdir()) > LONGEST_FOLDER_NAME
            self._folder = tempfile.mkdtemp(prefix="comity-ray-", dir="/tmp" if long_name else None)
            with _environment(LOCAL):
                # Ray reads its configuration when it is imported, which may have been earlier.
                ray._raylet.Config.initialize("")
                ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
                ray.init(
                    address="local",
                    num_cpus=workers,
                    num_gpus=torch.cuda.device_count() if self.gpus else 0,
                    include_dashboard=False,
                    _node_ip_address=LOOPBACK,
                    _temp_dir=self._folder,
                    **quiet,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as why:
            self.close()
            where = "on this machine" if self._local else f"at {os.environ[ADDRESS]} ({ADDRESS})"
            raise ComityError(
                f"Could not connect to Ray {where}: {str(why).splitlines()[0]}"
            ) from why
        finally:
            for number, handler in handlers.items():
                # Ray installs a handler for SIGTERM. Comity's ends the run as Ctrl-C does.
                signal.signal(number, handler)

    def _check_loopback(self) -> None:
        """Refuse a local Ray that other machines could reach."""
        import ray

        if (where := ray.util.get_node_ip_address()) != LOOPBACK:
            raise ComityError(
                f"A local Ray would listen at {where}, where other machines may reach it: set"
                f" {ADDRESS} instead."
            )

    def _check_resources(self, workers: int) -> None:
        import ray

        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < workers:
            raise UsageError(
                f"The Ray cluster has {cpus} CPUs, fewer than {workers} workers: give --workers"
                f" {max(1, cpus)}."
            )
        if not self.gpus:
            return
        gpus = int(ray.cluster_resources().get("GPU", 0))
        capacity = gpus * int(1 / self.gpus + 1e-9) if self.gpus < 1 else gpus // int(self.gpus)
        if capacity < workers:
            raise UsageError(
                f"The Ray cluster has {gpus} GPUs, which is room for {capacity} workers with"
                f" {self.gpus:g} each, not for {workers}: give fewer --workers or less --gpus, or"
                " go without a GPU."
            )

    def _start_actor(self) -> Any:
        return self._actor_class.options(scheduling_strategy="SPREAD").remote()

    def _wait_for(self, actors: Sequence[Any]) -> list[tuple[str, int]]:
        """Wait until actors have started, and refuse those with other versions. Returns their nodes
        and processes.
        """
        import ray

        versions_here = installed_versions()
        try:
            introductions = ray.get(
                [actor.introduce.remote() for actor in actors], timeout=START_SECONDS
            )
        except ray.exceptions.GetTimeoutError as why:
            raise ComityError(
                f"The Ray cluster could not start the workers within {START_SECONDS:.0f} seconds."
            ) from why
        except ray.exceptions.RayError as why:
            raise WorkerLost(
                f"A worker could not start on the Ray cluster ({first_line(why)}); the run can be"
                " resumed."
            ) from why
        if other := next(
            (versions for versions, *_ in introductions if versions != versions_here), None
        ):
            raise UsageError(
                f"The Ray cluster has comity {other[0]} and torch {other[1]}, but here are"
                f" {versions_here[0]} and {versions_here[1]}: install the same everywhere."
            )
        return [(node, process) for _, node, process in introductions]

    def replace(self, w: int) -> Any:
        """Start another actor in place of a lost one."""
        import ray

        ray.kill(self.actors[w])
        self.actors[w] = self._start_actor()
        (self.places[w],) = self._wait_for([self.actors[w]])
        return self.actors[w]

    def close(self) -> None:
        """End all actors, and the connection if it was opened here."""
        import ray

        for actor in self.actors if ray.is_initialized() else []:
            ray.kill(actor)
        self.actors = []
        if self._owns_connection:
            ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class _IdleActors:
    """Actors that wait for another run."""

    def __init__(self) -> None:
        self.depth = 0
        self.cluster: Cluster | None = None


idle_actors = _IdleActors()


@contextmanager
def keep_actors() -> Iterator[None]:
    """Consecutive runs within this context reuse the same actors, which need not start or load the
    same data again.
    """
    idle_actors.depth += 1
    try:
        yield
    finally:
        idle_actors.depth -= 1
        if not idle_actors.depth and idle_actors.cluster:
            idle_actors.cluster.close()
            idle_actors.cluster = None


def get_all(references: Any) -> Any:
    """The results of actor calls. Raises WorkerLost if an actor was lost."""
    import ray

    try:
        return ray.get(references)
    except ray.exceptions.RayError as why:
        raise worker_lost(why) from why


def worker_lost(why: BaseException) -> WorkerLost:
    """The error to raise when an actor was lost."""
    return WorkerLost(
        f"A worker on the Ray cluster was lost ({first_line(why)}); the run can be resumed."
    )


def first_line(why: BaseException) -> str:
    """The first line of an error message of Ray."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    return (lines[0] if lines else type(why).__name__).rstrip(".:")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables within the context, for processes that are started in it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
