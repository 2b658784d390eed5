"""The page of `comity --help`, which needs no slow import."""

from __future__ import annotations

DESCRIPTION = "Collaborative learning between parties whose data differ and may not be pooled."
COMMANDS = {
    "Run and compare": {
        "run": "Run a method, or the experiment of a TOML file.",
        "compare": "Compare methods, and training alone, on the same split.",
        "report": "Write a report of a run, or of many, as one HTML page.",
        "advise": "Which method to use on these data, or to stay alone.",
        "resume": "Resume an interrupted run, or extend a finished one.",
        "tune": "Try a grid of settings; choose on validation data.",
        "watch": "Show running or finished runs, and update until Ctrl-C.",
        "plan": "Estimate the bytes, memory, time and privacy loss of a run.",
        "demo": "Ask three federations whether collaborating helps: 2-3 minutes.",
    },
    "Look up": {
        "list": "List methods, datasets, models, partitions or experiments.",
        "show": "Show the card of a method: idea, equations, options, bytes.",
        "data": "Inspect federations, and import your own data.",
    },
    "Use finished runs": {
        "export": "Export a party's model, with a script that predicts.",
        "measure": "Measure the representations of a finished run.",
        "disclose": "Write what left a party in a finished run, as HTML and PDF.",
        "audit": "Attack recorded messages: what can be learned from them?",
    },
    "Methods and papers": {
        "check": "Check your own method: purity, engines, resume, bytes.",
        "reproduce": "Reproduce a table of a paper.",
    },
    "Real sites": {
        "deploy": "Run between real sites, each with its own policy.",
    },
}
"""All commands by section, in the order in which they are used."""
OPTIONS = {
    "--version": "Print the version.",
    "--show-completion SHELL": "Print a script for bash, zsh or fish.",
    "--help": "Show this page, or the options of a command.",
}


def help_text() -> str:
    """Return the page of `comity --help`."""
    lines = ["Usage: comity COMMAND [OPTIONS]", "", DESCRIPTION]
    for title, entries in (*COMMANDS.items(), ("Options", OPTIONS)):
        width = max(map(len, entries)) if entries is OPTIONS else 9
        lines += ["", f"{title}:"]
        lines += [f"  {name:<{width}}  {summary}" for name, summary in entries.items()]
    return "\n".join(lines)
