"""What secure aggregation costs: bytes and processor time of one round, beside a plain weighted
mean, and the error of the mean.

    python benchmarks/secure_aggregation.py

All sites and the server run in one process, one after the other, and one site is lost after the
others have masked their replies. Times are processor seconds of a site and of the server; medians
over the repeats. With --noise each site also adds discrete Gaussian noise. Messages are counted as
they are encoded for the wire, and plain replies as the codec encodes float32 tensors.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.hashes import SHA256

from comity.base.call import CallId
from comity.base.record import Model, Params
from comity.core.aggregate import average
from comity.privacy.secagg import (
    Encoding,
    Layout,
    ServerRound,
    SiteLimits,
    SiteRound,
    Terms,
    least_threshold,
    to_bytes,
)
from comity.wire.codec import decode, encode

T = TypeVar("T")
PADDING = PSS(MGF1(SHA256()), PSS.DIGEST_LENGTH)


class RsaSite:
    """A site that signs as startup kits of NVIDIA FLARE do: with RSA of 2048 bits."""

    def __init__(
        self, name: str, key: rsa.RSAPrivateKey, pinned: Mapping[str, rsa.RSAPublicKey]
    ) -> None:
        self.name = name
        self._key = key
        self._pinned = pinned

    def sign(self, text: bytes) -> bytes:
        return self._key.sign(text, PADDING, SHA256())

    def verify(self, name: str, text: bytes, signature: bytes) -> bool:
        try:
            self._pinned[name].verify(signature, text, PADDING, SHA256())
        except (KeyError, InvalidSignature):
            return False
        return True


class NoLog:
    """Remembers nothing, so that a measurement can be repeated."""

    def claim(self, terms: Terms) -> None:
        """Accept every call."""


class Costs:
    """Processor seconds and bytes of each participant."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.bytes: dict[str, int] = {}

    def timed(self, who: str, action: Callable[..., T], *arguments: object) -> T:
        """What the action returns, with its time charged to somebody."""
        begin = time.process_time()
        result = action(*arguments)
        self.seconds[who] = self.seconds.get(who, 0.0) + time.process_time() - begin
        return result

    def count(self, who: str, *messages: object) -> None:
        """Charge the bytes of messages to a site that sent or received them."""
        size = sum(len(to_bytes(message)) for message in messages)
        self.bytes[who] = self.bytes.get(who, 0) + size


def secure_round(
    terms: Terms, signatories: Mapping[str, RsaSite], replies: Mapping[str, Params], lost: str
) -> tuple[Params, Costs]:
    """One round, in which a site is lost at the third step."""
    costs = Costs()
    limits = SiteLimits(terms.threshold, terms.threshold, terms.colluders)
    server = costs.timed("server", ServerRound, terms)
    sites = {
        name: costs.timed(name, SiteRound, terms, limits, signatories[name], NoLog())
        for name in terms.roster
    }
    remaining = [name for name in terms.roster if name != lost]
    keys = {name: costs.timed(name, site.keys) for name, site in sites.items()}
    roster = costs.timed("server", server.collect_keys, keys.values())
    shares = {name: costs.timed(name, site.shares, roster) for name, site in sites.items()}
    inboxes = costs.timed("server", server.collect_shares, shares.values())
    for name in remaining:
        masked = costs.timed(name, sites[name].masked, inboxes[name], replies[name])
        costs.timed("server", server.add_masked, masked)
        costs.count(name, keys[name], roster, shares[name], inboxes[name], masked)
    survivors = costs.timed("server", server.close)
    signed = {name: costs.timed(name, sites[name].signature, survivors) for name in remaining}
    signatures = costs.timed("server", server.collect_signatures, signed.values())
    revealed = {name: costs.timed(name, sites[name].reveal, signatures) for name in remaining}
    result = costs.timed("server", server.unmask, revealed.values())
    for name in remaining:
        costs.count(name, survivors, signed[name], signatures, revealed[name])
    return result.mean, costs


def plain_round(replies: Mapping[int, Params]) -> tuple[Params, Costs]:
    """The mean of replies that the server reads one by one, encoded and decoded."""
    costs = Costs()
    models = {}
    for i, reply in replies.items():
        blob = costs.timed(f"site {i}", encode, Model(reply))
        costs.bytes[f"site {i}"] = len(blob)
        models[i] = costs.timed("server", decode, blob).theta
    mean = costs.timed("server", average, models, dict.fromkeys(models, 1.0))
    return mean, costs


def processor() -> str:
    """The name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def largest_error(mean: Params, exact: Params) -> float:
    """The largest absolute difference of a coordinate."""
    return max((mean[name] - value).abs().max().item() for name, value in exact.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--values", type=int, default=2_500_000)
    parser.add_argument("--colluders", type=int, default=1)
    parser.add_argument("--clip", type=float, default=8.0)
    parser.add_argument("--noise", type=float, default=0.0, help="in units of the sensitivity")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = tuple(f"site{i:03}" for i in range(options.sites))
    signing_keys = {name: rsa.generate_private_key(65537, 2048) for name in names}
    pinned = {name: key.public_key() for name, key in signing_keys.items()}
    signatories = {name: RsaSite(name, key, pinned) for name, key in signing_keys.items()}
    generator = torch.Generator().manual_seed(0)
    replies = {name: {"theta": torch.randn(options.values, generator=generator)} for name in names}
    layout = Layout.of(replies[names[0]])
    threshold = least_threshold(options.sites, options.colluders)
    scale = Encoding.largest_scale(options.clip, options.sites)
    if options.noise:
        norm = options.clip = max(float(reply["theta"].norm()) for reply in replies.values())
        scale = 0.9 * 2.0**16 * (threshold - options.colluders) ** 0.5 / (options.noise * norm)
    lost = names[-1]
    in_sum = [name for name in names if name != lost]
    exact = {"theta": torch.stack([replies[name]["theta"].double() for name in in_sum]).mean(0)}
    secure_costs, plain_costs, errors = [], [], []
    for repeat in range(options.repeats):
        terms = Terms(
            "benchmark",
            CallId("local", 0, repeat, 0),
            "",
            names,
            threshold,
            options.colluders,
            Encoding(layout, options.clip, scale, noise=options.noise),
        )
        mean, costs = secure_round(terms, signatories, replies, lost)
        secure_costs.append(costs)
        errors.append(largest_error(mean, exact))
        mean, costs = plain_round({i: replies[name] for i, name in enumerate(in_sum)})
        plain_costs.append(costs)
    plain_error = largest_error(mean, exact)
    rows = [
        ("megabytes a site", _bytes(plain_costs) / 1e6, _bytes(secure_costs) / 1e6),
        ("seconds a site", _site_seconds(plain_costs), _site_seconds(secure_costs)),
        ("seconds at the server", _server_seconds(plain_costs), _server_seconds(secure_costs)),
    ]
    if not options.noise:
        rows.append(("largest error of the mean", plain_error, max(errors)))
    print(
        f"{options.sites} sites, {options.values} float32 values, threshold {threshold}, one site"
        f" lost after masking, on {processor()}, median of {options.repeats}"
    )
    print(f"{'':28}{'plain':>12}{'secure':>12}{'ratio':>9}")
    for label, plain, secure in rows:
        print(f"{label:28}{plain:12.4g}{secure:12.4g}{secure / plain:9.4g}")


def _bytes(all_costs: list[Costs]) -> float:
    return statistics.mean(all_costs[0].bytes.values())


def _site_seconds(all_costs: list[Costs]) -> float:
    return statistics.median(
        seconds
        for costs in all_costs
        for who, seconds in costs.seconds.items()
        if who in costs.bytes
    )


def _server_seconds(all_costs: list[Costs]) -> float:
    return statistics.median(costs.seconds["server"] for costs in all_costs)


if __name__ == "__main__":
    main()
