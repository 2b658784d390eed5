"""Ray itself: the connection to a cluster, and what an actor there does.

An actor gets the experiment's settings and the split as text and loads the data where it runs; no
sample is ever sent.

Without RAY_ADDRESS a small Ray of our own is started on this machine, reachable from this machine
only, with a token that only our processes have, and ended with the run. With it, actors are started
on the cluster that runs there, under its rules.

Parcels are locked by a secret that the first actor draws and hands to the others; it does not pass
through this process.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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
from comity.wire.bundles import Bytes, packed, unpacked
from comity.wire.sealing import KEY, RUN, Lock, SharedSecret

ADDRESS = "RAY_ADDRESS"
CPU = torch.device("cpu")
START_SECONDS = 120.0  # until all actors are there
LOOPBACK, STAY = "127.0.0.1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOCAL = {
    STAY: "0",  # what the name does not say: nobody on another machine is listened to
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(
        32
    ),  # whoever talks to it must have it; Ray would leave one in a file
    "RAY_USAGE_STATS_ENABLED": "0",
    # its own messages are not printed: errors say what there is to know
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
}
"""The environment of a Ray of our own."""
LONGEST = 40  # of the name of a folder in which Ray's sockets can still have names


def check_installed() -> None:
    """Refuse if the package is not there."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("The ray engine needs more packages: pip install comity[ray].")


def installed() -> list[str]:
    """The versions that must be the same everywhere."""
    from comity import __version__

    return [__version__, torch.__version__.partition("+")[0]]


@dataclass(frozen=True)
class Recipe:
    """All that an actor needs to make a run's parties, as text."""

    settings: str
    """The experiment as TOML."""
    split: str
    code: Mapping[str, str]
    """Digests of the users' files that the settings name."""


class Actor:
    """A worker on the cluster: for several runs, one after the other; data stay while they are the
    same.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self._secret = b""
        self._data: tuple[tuple[str, str], Any] | None = None
        self._worker: Worker | None = None
        self._sites: SiteStore | None = None
        self._far = False
        """Whether parties are on a GPU: what leaves is on the CPU."""

    def introduce(self) -> tuple[list[str], str, int]:
        """What is installed where the actor is, and where that is: node and process."""
        import ray

        return installed(), ray.get_runtime_context().get_node_id(), os.getpid()

    def begin(self, settings: str, split: str, code: Mapping[str, str]) -> str:
        """Make the parties of a run; what is wrong, if something is."""
        try:
            self._sites = self._made(settings, split, code)
        except Exception as why:
            return describe(why)
        return ""

    def _made(self, settings: str, split: str, code: Mapping[str, str]) -> SiteStore:
        from comity.data import load
        from comity.data.split import Split
        from comity.plugins import digest
        from comity.runs import config
        from comity.runs.build import prepare

        experiment = config.experiment(tomllib.loads(settings))
        if other := next((file for file, own in code.items() if digest(file) != own), None):
            raise UsageError(f"{other} is not the same file there as here.")
        self._far = experiment.device != "cpu"
        if self._far and not torch.cuda.is_available():
            raise UsageError(
                "Ray has given it a GPU, or a share of one, but torch finds none there."
            )
        which = (experiment.data, split)
        if self._data is None or self._data[0] != which:
            self._data = None
            self._data = which, load(experiment.data).split(Split.from_json(split))
        job = prepare(experiment, self._data[1])
        return SiteStore(job.algorithm, job.parties, job.root)

    def share_secret(self, others: Sequence[Any], anew: bool) -> None:
        """Hand on the secret that parcels are locked by, which is drawn here if it is to be new."""
        import ray

        if anew:
            self.take_secret(os.urandom(KEY + RUN))
        ray.get([other.take_secret.remote(self._secret) for other in others])

    def take_secret(self, secret: bytes) -> None:
        """Parties begin anew, with parcels that are locked by it."""
        assert self._sites
        self._secret = secret
        self._worker = Worker(
            self._sites, Sequential(), Lock(SharedSecret(secret[:KEY]), secret[KEY:])
        )

    def answer(self, header: bytes, *bundles: Bytes) -> Iterator[tuple[bytes, Bytes]]:
        """What the worker says to an ask, as it comes."""
        try:
            assert self._worker
            for message in self._worker.answer(unpacked(header, *bundles)):
                yield packed(on_device(message, CPU) if self._far else message)
                del message
        except Exception as why:
            yield packed({"error": describe(why), "last": True})

    def end(self) -> None:
        """The run is over; the data stay for the next one."""
        self._worker = self._sites = None


class Cluster:
    """A connection to Ray, and the actors that were started through it."""

    def __init__(self, workers: int, gpus: float = 0) -> None:
        self.gpus = gpus
        """What each actor takes."""
        self._local = not os.environ.get(ADDRESS)
        with _environment(LOCAL if self._local else {}):  # some of it is read when Ray is imported
            import ray

        self.actors: list[Any] = []
        self.places: list[tuple[str, int]] = []
        """On which node and in which process each actor is."""
        self._folder = ""
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect(workers)
        try:
            if self._ours and self._local:
                self._check_loopback()
            self._check_room(workers)
            self._kind = ray.remote(num_cpus=1, num_gpus=gpus)(Actor)
            self.actors = [self._new() for _ in range(workers)]
            self.places = self._found(self.actors)
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
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            if not self._local:
                ray._raylet.Config.initialize("")
                ray.init(**quiet)
                return
            long = len(tempfile.gettempdir()) > LONGEST
            self._folder = tempfile.mkdtemp(prefix="comity-ray-", dir="/tmp" if long else None)
            with _environment(LOCAL):
                ray._raylet.Config.initialize(
                    ""
                )  # what Ray has read when it was imported, which may have been before
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
                f"There is no Ray {where} to run on: {str(why).splitlines()[0]}"
            ) from why
        finally:
            for number, handler in before.items():
                signal.signal(
                    number, handler
                )  # Ray has its own for SIGTERM; ours ends the run as Ctrl-C does

    def _check_loopback(self) -> None:
        """Refuse a Ray of our own that others could reach."""
        import ray

        if (where := ray.util.get_node_ip_address()) != LOOPBACK:
            raise ComityError(
                f"A Ray of our own would be at {where}, where other machines may reach it: give"
                f" {ADDRESS} instead."
            )

    def _check_room(self, workers: int) -> None:
        import ray

        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < workers:
            raise UsageError(
                f"The Ray cluster has {cpus} CPUs, fewer than {workers} workers: give --workers"
                f" {max(1, cpus)}."
            )
        if not self.gpus:
            return
        there = int(ray.cluster_resources().get("GPU", 0))
        room = there * int(1 / self.gpus + 1e-9) if self.gpus < 1 else there // int(self.gpus)
        if room < workers:
            raise UsageError(
                f"The Ray cluster has {there} GPUs, which is room for {room} workers with"
                f" {self.gpus:g} each, not for {workers}: give fewer --workers or less --gpus, or"
                " go without a GPU."
            )

    def _new(self) -> Any:
        return self._kind.options(scheduling_strategy="SPREAD").remote()

    def _found(self, actors: Sequence[Any]) -> list[tuple[str, int]]:
        """Wait for actors, and refuse those with other versions; where they are."""
        import ray

        here = installed()
        try:
            there = ray.get([actor.introduce.remote() for actor in actors], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError as why:
            raise ComityError(
                f"The Ray cluster has had no room for the workers within {START_SECONDS:.0f}"
                " seconds."
            ) from why
        except ray.exceptions.RayError as why:
            raise ComityError(f"A worker could not begin on the Ray cluster: {said(why)}") from why
        if other := next((versions for versions, *_ in there if versions != here), None):
            raise UsageError(
                f"The Ray cluster has comity {other[0]} and torch {other[1]}, but here are"
                f" {here[0]} and {here[1]}: install the same everywhere."
            )
        return [(node, process) for _, node, process in there]

    def replace(self, w: int) -> Any:
        """Another actor in place of one that is dead, or as good as dead."""
        import ray

        ray.kill(self.actors[w])
        self.actors[w] = self._new()
        (self.places[w],) = self._found([self.actors[w]])
        return self.actors[w]

    def close(self) -> None:
        """End all that was started here."""
        import ray

        for actor in self.actors if ray.is_initialized() else []:
            ray.kill(actor)
        self.actors = []
        if self._ours:
            ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Kept:
    """The actors that wait for another run."""

    def __init__(self) -> None:
        self.depth = 0
        self.cluster: Cluster | None = None


kept = _Kept()


@contextmanager
def actors_kept() -> Iterator[None]:
    """Runs in here that follow each other have the same actors, which need not start, nor load the
    same data, again.
    """
    kept.depth += 1
    try:
        yield
    finally:
        kept.depth -= 1
        if not kept.depth and kept.cluster:
            kept.cluster.close()
            kept.cluster = None


def got(asked: Any) -> Any:
    """What actors answer, all of which must be alive."""
    import ray

    try:
        return ray.get(asked)
    except ray.exceptions.RayError as why:
        raise lost(why) from why


def lost(why: BaseException) -> WorkerLost:
    return WorkerLost(
        f"A worker on the Ray cluster was lost ({said(why)}); the run can be resumed."
    )


def said(why: BaseException) -> str:
    """What Ray says of an error, in short."""
    lines = [line.strip() for line in str(why).splitlines() if line.strip()]
    return (lines[0] if lines else type(why).__name__).rstrip(".:")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for a while, for processes that are started meanwhile."""
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
