"""Peer to peer: sites learn without a server that sees anything.

    python examples/peer_to_peer.py [folder]

Fed-SPS sends models from site to site, and relay-p2p means of representations. FedAvg, which needs
a server, is beside them. What goes from site to site is sealed, and counted as *peer*.
"""

import sys
from pathlib import Path

import comity

PICTURE = "bytes"


def main(out: str | Path = "runs/peer-to-peer", rounds: int = 15) -> comity.Comparison:
    """Compare the three with training alone, and write the page."""
    comparison = comity.compare(
        ["fedavg", "fed-sps(peers=2)", "relay-p2p"],
        data="digits",
        partition="dirichlet(alpha=1,min=20)|keep(samples=40)",
        parties=8,
        rounds=rounds,
        out=out,
    )
    for row in comparison.rows:
        sent = {kind: round(count) for kind, count in row.bytes.items() if kind != "eval"}
        print(f"{row.algorithm}: {row.mean:.1%}, bytes {sent}")
    print(comity.report(comparison, quick=True, figures="svg"))
    return comparison


if __name__ == "__main__":
    main(*sys.argv[1:2])
