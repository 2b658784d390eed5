"""The server's and the site's part of a test job: sites echo requests, or fail on request.

The order has a list of steps. Each step sends one request to all sites, and writes the replies and
their times as a line of JSON to steps.jsonl. A request is `word argument`; the words are who, echo,
sleep, raise, exit and only.
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
    """Send the requests of the order, and write the replies to a file."""
    with (folder / "steps.jsonl").open("a", encoding="utf-8") as file:
        for step in order["steps"]:
            awaited_file = (folder / step["after"]) if "after" in step else None
            while awaited_file and not awaited_file.exists():
                time.sleep(0.05)
            for _ in range(step.get("times", 1)):
                word = step["ask"].encode() + b"." * step.get("bytes", 0)
                start = time.monotonic()
                answers = {}
                print(json.dumps({"started": step["ask"]}), file=file, flush=True)
                for name, answer in transport.ask(
                    dict.fromkeys(step.get("sites", transport.names), word), step.get("seconds", 10)
                ):
                    content = (
                        None
                        if answer is None
                        else len(answer)
                        if step.get("bytes")
                        else answer.decode()
                    )
                    answers[name] = [content, round(time.monotonic() - start, 4)]
                took = time.monotonic() - start
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
    """A site's request handler, which counts its requests."""

    def __init__(self, folder: Path, submitter: str) -> None:
        self._folder = folder
        self._submitter = submitter
        self._request_count = 0

    def answer(self, request: bytes) -> bytes:
        """Act on the first word of the request."""
        self._request_count += 1
        word, _, argument = request.decode().partition(" ")
        if word == "who":
            return f"{self._submitter} {self._request_count} {os.getpid()} {self._folder.name}".encode()
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
    """Create a site's request handler."""
    return Echo(folder, submitter)
