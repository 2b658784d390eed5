"""Commands about data: look at a federation, prepare a dataset's files, bring one's own."""

from __future__ import annotations

from comity.cli.options import Settings, data_app, with_experiment
from comity.config import experiment


@data_app.command("inspect")
@with_experiment
def inspect_data(settings: Settings) -> None:
    """Who has what: training samples by party and class."""
    from comity import screen
    from comity.job import federation_of

    federation = federation_of(experiment(settings))
    counts = federation.counts().tolist()
    shares = federation.split.parties
    shifts = any(share.shift for share in shares.values())
    rows = [
        [name, *([shares[name].shift or "none"] if shifts else []), *(str(len(s)) for s in (d.train, d.validation, d.test))]
        + [str(n) if n else "·" for n in line]
        for (name, d), line in zip(federation.parties.items(), counts, strict=True)
    ]
    columns = ["party", *(["shift"] if shifts else []), "train", "validation", "test", *map(str, range(federation.classes))]
    title = f"{federation.name}: samples of shape {'x'.join(map(str, federation.shape))}, {federation.split.partition}"
    screen.table(columns, rows, title, words=1 + shifts)
