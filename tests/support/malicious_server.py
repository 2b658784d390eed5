"""A server that follows no protocol: it sends one site whatever a test wants to try."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from in_process_sites import HUB, OPEN, Handed, Sites

from comity.base.record import Params
from comity.core import LearningTask
from comity.deploy.data import site_settings
from comity.deploy.handler import RequestHandler
from comity.deploy.key_exchange import Identity
from comity.deploy.messages import (
    REPLIES,
    Begin,
    End,
    Evaluate,
    EvaluateAlone,
    Failed,
    Introduce,
    Introduced,
    RunCall,
    pack,
    unpack,
)
from comity.deploy.release_ledger import DELTA, ReleaseLedger
from comity.deploy.session import AuthenticatedTransport
from comity.deploy.transport import Transport
from comity.models import build
from comity.privacy.composition import epsilon
from comity.runs import config
from comity.runs.config import Experiment
from comity.wire.codec import decode, encode

MOST = 1 << 30
NOISE = 4.0
METHOD = f"fedavg+dp(noise={NOISE})"
SETTINGS: dict[str, Any] = {
    "model": "linear", "rounds": 3, "steps": 1, "batch": 16, "lr": 1.0, "test": "official",
}  # fmt: skip
BUDGET = OPEN | {'epsilon = "inf"': "epsilon = 5.0"}
SIZES = {"north": (64, 12), "east": (48, 12)}


class Refused(Exception):
    """The site refused the request; the message is its reason."""


class LawlessServer:
    """Talks to one site over a transport, with the settings of a run of its own choice.

    Arguments:
        transport: carries the requests
        identity: the certificate and key that the requests are authenticated with
        name: the site that is attacked
        run: the name of the run
        experiment: the settings of the run
    """

    seconds = 60.0
    """How long a reply may take."""

    def __init__(
        self, transport: Transport, identity: Identity, name: str, run: str, experiment: Experiment
    ) -> None:
        self.transport, self.name, self.run = transport, name, run
        self.experiment = experiment
        self.session = AuthenticatedTransport(transport, identity, run)

    def introduce(self, **changes: Any) -> Introduced:
        """Ask the site for its description, with some settings changed."""
        content = self.experiment.model_dump(mode="json", exclude_none=True) | changes
        settings = json.dumps(content)
        self.described = self.send(Introduce(self.run, settings, version("comity"), ""))[0]
        assert isinstance(self.described, Introduced)
        return self.described

    def begin_with(self, others: Mapping[str, Introduced]) -> None:
        """Begin the run that was introduced, with other sites by their descriptions."""
        described = {self.name: self.described, **others}
        parties = {name: described[name].said for name in sorted(described)}
        keys = {name: site.signed_key for name, site in others.items() if site.signed_key}
        self.send(Begin(self.run, parties, keys))

    def call(
        self,
        function: str,
        content: Any,
        *,
        round: int = 1,
        depth: int = 0,
        occurrence: int = 0,
        after: Any = None,
    ) -> Any:
        """Call a party function and return its reply."""
        place = (function, depth, round, occurrence)
        return self.send(RunCall(self.run, place, after, False, {}), content)[1]

    def evaluate(self, content: Any, round: int = 1, final: bool = False, after: Any = None) -> Any:
        """Ask for an evaluation of the model that `content` makes."""
        return self.send(Evaluate(self.run, after, round, final, ""), content)[1]

    def evaluate_alone(self, round: int = 0) -> Any:
        """Ask for an evaluation of a model trained at the site alone."""
        return self.send(EvaluateAlone(self.run, round))[1]

    def end(self, rounds: int = 1) -> None:
        """Tell the site that the run is finished."""
        self.send(End(self.run, rounds, True))

    def send(self, head: Any, content: Any = None) -> tuple[Any, Any]:
        """Send a request, and return head and content of the reply. Raises `Refused`."""
        body = b"" if content is None else encode(content)
        return self._carry(self.session, pack(head, body))

    def send_raw(self, request: bytes) -> tuple[Any, Any]:
        """Send bytes without authentication. Raises `Refused`."""
        return self._carry(self.transport, request)

    def _carry(self, transport: Transport, request: bytes) -> tuple[Any, Any]:
        [(_, packed)] = transport.ask({self.name: request}, self.seconds)
        assert packed is not None
        answer, reply = unpack(packed, REPLIES, MOST)
        if isinstance(answer, Failed):
            raise Refused(answer.why)
        return answer, decode(reply, sealed_messages=True) if reply else None


class MaliciousServer(LawlessServer):
    """Talks to the request handler of one site within one process.

    Arguments:
        sites: the federation
        name: the site that is attacked
        run: the name of the run
        method: the method of the run
        settings: the other settings
    """

    def __init__(self, sites: Sites, name: str, run: str, method: str, **settings: Any) -> None:
        content = {"algorithm": method, "data": "sites", "partition": "natural", **settings}
        self.sites = sites
        self.handler: RequestHandler = sites.handler(name)
        super().__init__(
            Handed({name: self.handler}),
            sites.root.identity(HUB),
            name,
            run,
            site_settings(config.experiment(content)),
        )

    def begin(self) -> None:
        """Introduce the run and begin it, with the other sites as they describe themselves."""
        self.introduce()
        others = {}
        for name in self.sites.names:
            if name != self.name:
                other = MaliciousServer(self.sites, name, self.run, "fedavg")
                other.experiment = self.experiment
                others[name] = other.introduce()
        self.begin_with(others)


def weights(value: float | None = None) -> Params:
    """The weights of the model of these tests: random ones, or all of one value."""
    network = build("linear", (1, 8, 8), 10)
    shapes = LearningTask(network, 10, network.cut).shapes
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=generator) if value is None else torch.full(shape, value)
        for name, (shape, *_) in shapes.items()
    }


def change(reply: Any, message: Params) -> torch.Tensor:
    """What the site added to the weights that it was sent."""
    return torch.cat([(reply.theta[name] - value).flatten() for name, value in message.items()])


def spent(sites: Sites, name: str) -> float:
    """The privacy loss by the site's own ledger."""
    return epsilon(ReleaseLedger(sites.site(name)).history(), DELTA)


def attack(sites: Sites, run: str = "attack", **changes: Any) -> MaliciousServer:
    server = MaliciousServer(sites, "north", run, METHOD, **SETTINGS | changes)
    server.begin()
    return server
