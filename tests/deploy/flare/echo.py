"""A server's and a site's half of a job that only say what comes back, and fail when they are told
to.

The order names a list of steps; every step asks all sites with one request and writes down who
answered what after how long, a line of json in steps.jsonl. A request is `word argument`: echo,
double, sleep, raise, exit, or size.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.deploy.transport import Transport


def serve(transport: Transport, order: dict[str, Any], folder: Path) -> None:
    """Ask what the order says, and write down what comes back."""
    with (folder / "steps.jsonl").open("a", encoding="utf-8") as file:
        for step in order["steps"]:
            wanted = (folder / step["after"]) if "after" in step else None
            while wanted and not wanted.exists():
                time.sleep(0.05)
            for _ in range(step.get("times", 1)):
                word = step["ask"].encode() + b"." * step.get("bytes", 0)
                begun = time.monotonic()
                answers = {}
                print(json.dumps({"begun": step["ask"]}), file=file, flush=True)
                for name, answer in transport.ask(
                    dict.fromkeys(step.get("sites", transport.names), word), step.get("seconds", 10)
                ):
                    said = (
                        None
                        if answer is None
                        else len(answer)
                        if step.get("bytes")
                        else answer.decode()
                    )
                    answers[name] = [said, round(time.monotonic() - begun, 4)]
                took = time.monotonic() - begun
                print(
                    json.dumps(
                        {
                            "ask": step["ask"],
                            "answers": answers,
                            "took": took,
                            "names": transport.names,
                        }
                    ),
                    file=file,
                    flush=True,
                )


class Echo:
    """A site's desk: it remembers how often it was asked."""

    def __init__(self, folder: Path, submitter: str) -> None:
        self._folder = folder
        self._submitter = submitter
        self._asked = 0

    def answer(self, request: bytes) -> bytes:
        """Do what the request's first word says."""
        self._asked += 1
        word, _, argument = request.decode().partition(" ")
        if word == "who":
            return f"{self._submitter} {self._asked} {os.getpid()} {self._folder.name}".encode()
        if word == "sleep":
            time.sleep(float(argument))
        if word == "raise":
            raise ValueError("a patient's name")
        if word == "exit":
            raise SystemExit(3)
        if word == "only" and argument != self._folder.name:
            time.sleep(4)
        return request


def open_handler(folder: Path, submitter: str, order: Mapping[str, Any]) -> Echo:
    """A site's desk."""
    return Echo(folder, submitter)
