"""At sites: two hospitals and a server, each a process of its own, learn over mutual TLS.

    python examples/at_sites.py [folder]        (needs pip install 'comity[sites]')

The commands are those that an operator, two hospitals and a researcher would type on their own
machines. `make demo-sites` is the long version, in which a hospital is killed and returns.
"""

import socket
import subprocess
import sys
import time
from pathlib import Path

PICTURE = "auc-by-round"
SITES = ("cleveland", "hungarian")
COMITY = [sys.executable, "-m", "comity.cli"]


def main(out: str | Path = "runs/at-sites", rounds: int = 20) -> None:
    """Create the federation, run FedAvg at the sites, and write the page."""
    folder = Path(out).resolve()
    folder.mkdir(parents=True)  # a new one: certificates are made for it

    def comity(command: str) -> str:
        print(f"comity {command}", flush=True)
        words = [*COMITY, *command.split()]
        return subprocess.check_output(words, cwd=folder, text=True)

    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        port = unused.getsockname()[1]
    comity("data split --data heart --out hospitals")
    comity("data schema hospitals --label diagnosis --positive ill --out schema.json")
    invitation = comity(f"deploy init hub --server localhost:{port} --schema schema.json")
    for site in SITES:
        comity(f"deploy join hub/invite.json --data hospitals/{site}.csv")
        comity(f"deploy approve {site}.request.zip --federation hub")
        comity(f"deploy accept {site}.signed.zip --fingerprint {invitation.splitlines()[-1]}")
    services = [["serve", "hub"], *(["start", site] for site in SITES)]
    with (folder / "services.log").open("w") as log:
        running = [
            subprocess.Popen([*COMITY, "deploy", *words], cwd=folder, stdout=log, stderr=log)
            for words in services
        ]
        try:
            time.sleep(20)  # the sites connect; the run waits for them, too
            comity(f"run fedavg --federation hub --metric auc --rounds {rounds} --out run")
            print(comity("report run --quick --figures svg"))
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:2])
