"""The parties' data: how much of which class, what samples look like, and how different parties are."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

from comity.core.key import Key
from comity.data import Federation
from comity.errors import describe
from comity.measure.frechet import pairwise
from comity.measure.representations import Projection
from comity.measure.separability import LEAST, separability
from comity.report.blocks import Chart, Data, Pictures, Section, VegaSpec
from comity.report.charts import PARTIES, first_of, heat, legend, quantity, tall, tip, word
from comity.report.gather import Group, Run
from comity.spec import parse

PICTURED = 12
"""Parties whose samples are shown."""
COLUMNS = 12
"""Samples of each that are shown."""
COMPARED = 25
"""Parties whose inputs are compared in pairs."""
EACH = 200
"""Samples of each that are compared."""
WIDTH = 64
"""Values to which wider inputs are projected before they are compared."""
PARTS = ("train", "validation", "test")


def data(group: Group, reopen: bool = True, samples: bool = True) -> Section:
    """The page's fourth section; `reopen` allows to open the data, `samples` to show some."""
    section = Section("data", "The data")
    run = next((run for run in group.runs if run.split), None)
    if run is None:
        section.say("No run's split.json can be read, so the parties' data cannot be shown.", "missing")
        return section
    federation = _opened(section, run) if reopen else None
    if federation is not None:
        for note in federation.notes:
            section.say(note)
        section.blocks.append(_bubbles(federation))
    section.blocks.append(_sizes(run))
    if federation is not None and not _words(run):
        key = Key.root(0).fold("report")
        if samples:
            _look(section, federation, key)
        _differences(section, federation, key)
    return section


def _opened(section: Section, run: Run) -> Federation | None:
    try:
        return run.job.federation
    except Exception as why:  # data that are elsewhere must not cost the page
        section.say(f"The data cannot be opened here, so only their amounts are shown: {describe(why)}", "missing")
        return None


def _words(run: Run) -> bool:
    """Whether samples are texts: numbers of words have no mean and no distance."""
    return run.experiment is not None and parse(run.experiment.model).name == "fasttext"


def _bubbles(federation: Federation) -> Chart:
    counts = federation.counts()
    names = federation.class_names or tuple(map(str, range(federation.classes)))
    rows = [
        {"party": party, "class": names[c], "samples": int(counts[i, c])}
        for i, party in enumerate(federation.names[:PARTIES])
        for c in range(federation.classes)
        if counts[i, c]
    ]
    table = Data.of("classes", rows, ("party", "class", "samples"))
    spec: VegaSpec = {
        "height": tall(min(len(federation.names), PARTIES), 22),
        "mark": {"type": "circle", "opacity": 0.85, "color": "@c0"},
        "encoding": {
            "x": {
                **word("class", "class"),
                "scale": {"domain": list(names)},
                "axis": {"labelAngle": 0 if max(map(len, names)) < 4 else -40},
            },
            "y": word("party", None),
            "size": quantity("samples", "training samples", scale={"rangeMax": 380}),
            "tooltip": [tip("party", "party"), tip("class", "class"), tip("samples", "samples", ",d")],
        },
    }
    held = [int((row > 0).sum()) for row in counts]
    alt = (
        f"Training samples by party and class: {len(federation.names)} parties hold between {min(held)} and {max(held)} of "
        f"{federation.classes} classes.{first_of(len(held))}"
    )
    return Chart("classes", "Who holds which classes", alt, table, spec, half=True)


def _sizes(run: Run) -> Chart:
    rows = [
        {"party": party, "part": part, "samples": len(getattr(share, part)), "place": PARTS.index(part)}
        for party, share in list(run.split.items())[:PARTIES]
        for part in PARTS
    ]
    table = Data.of("sizes", rows, ("party", "part", "samples", "place"))
    colour: VegaSpec = {
        "field": "part",
        "type": "nominal",
        "title": None,
        "sort": None,
        "legend": legend("top", 3),
        "scale": {"domain": list(PARTS), "range": ["@c0", "@c5", "@c4"]},
    }
    spec: VegaSpec = {
        "height": tall(min(len(run.split), PARTIES), 22),
        "mark": {"type": "bar"},
        "encoding": {
            "y": word("party", None),
            "x": quantity("samples", "samples"),
            "color": colour,
            "order": {"field": "place"},
            "tooltip": [tip("party", "party"), tip("part", "part"), tip("samples", "samples", ",d")],
        },
    }
    train = [len(share.train) for share in run.split.values()]
    alt = f"Samples by party: between {min(train):,} and {max(train):,} for training.{first_of(len(train))}"
    return Chart("sizes", "How much each party has", alt, table, spec, half=True)


def _look(section: Section, federation: Federation, key: Key) -> None:
    """Some samples of each party, or what its features are like."""
    channels = federation.shape[0] if len(federation.shape) == 3 else 0
    if channels in (1, 3):
        names = federation.names[:PICTURED]
        some = {name: _some(federation, name, COLUMNS, key) for name in names}
        strips = {name: (film_strip(images), len(images) / COLUMNS) for name, images in some.items()}
        alt = f"Some training samples of each party.{first_of(len(federation.names), PICTURED)}"
        section.blocks.append(Pictures("What samples look like", alt, strips))
    elif len(federation.shape) == 1 and next(iter(federation.parties.values())).train.x.is_floating_point():
        section.blocks.append(_features(federation))


def _some(federation: Federation, name: str, count: int, key: Key) -> Tensor:
    x = federation.parties[name].train.x
    return x[key.fold("samples", name).permutation(len(x))[:count]]


def film_strip(images: Tensor) -> str:
    """Images (count, channels, height, width) side by side as a PNG's data address, from the darkest to the brightest value."""
    count, channels, height, width = images.shape
    low = images.amin()
    high = images.amax()
    pixels = ((images - low) / (high - low).clamp(min=1e-9) * 255).round().to(torch.uint8)
    framed = torch.full((count, channels, height, width + 1), 128, dtype=torch.uint8)
    framed[..., :-1] = pixels
    strip = framed.permute(2, 0, 3, 1).reshape(height, count * (width + 1), channels)
    return "data:image/png;base64," + base64.b64encode(png(strip)).decode()


def png(image: Tensor) -> bytes:
    """A PNG file of bytes (height, width, 1 or 3 channels)."""
    height, width, channels = image.shape
    lines = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), image.reshape(height, -1)], 1)  # filter 0 before each line
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines.numpy().tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def _features(federation: Federation) -> Chart:
    """Features in which parties differ most: a party's mean, in standard deviations of all."""
    names = federation.names[:PARTIES]
    everything = torch.cat([p.train.x for p in federation.parties.values()]).double()
    centre = everything.mean(0)
    spread = everything.std(0).clamp(min=1e-9)
    means = torch.stack([(federation.parties[n].train.x.double().mean(0) - centre) / spread for n in names])
    chosen = means.var(0).argsort(descending=True)[:20].sort().values.tolist()
    rows = [{"party": n, "feature": f"x{f}", "shift": float(means[i, f])} for i, n in enumerate(names) for f in chosen]
    most = float(means[:, chosen].abs().max()) or 1.0
    value: VegaSpec = {
        "field": "shift",
        "type": "quantitative",
        "title": "shift",
        "format": "+.1f",
        "scale": {"domain": [-most, 0, most], "range": ["@less", "@middle", "@more"], "interpolate": "rgb"},
    }
    tips = [tip("party", "party"), tip("feature", "feature"), tip("shift", "mean, in std of all", "+.2f")]
    across = word("feature", "feature", [f"x{f}" for f in chosen])
    spec = heat(across, word("party", None, names), value, tips)
    alt = (
        f"The {len(chosen)} features in which parties differ most; the largest shift of a party's mean is {most:.2f} standard "
        "deviations of all."
    )
    return Chart(
        "features", "Features in which parties differ most", alt, Data.of("features", rows, ("party", "feature", "shift")), spec
    )


def _differences(section: Section, federation: Federation, key: Key) -> None:
    """How far apart the parties' inputs are, before anything is learned."""
    first = next(iter(federation.parties.values())).train.x
    names = [n for n, p in federation.parties.items() if len(p.train) >= LEAST][:COMPARED]
    if not first.is_floating_point() or len(names) < 2:
        return
    project = Projection(WIDTH, key.fold("projection"))
    sets = [project("input", _some(federation, name, EACH, key)) for name in names]
    distances = pairwise(sets)
    told = separability(sets, key.fold("separability"))
    rows = [
        {"party": a, "other": b, "distance": float(distances[i, j])}
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i != j
    ]
    value: VegaSpec = {
        "field": "distance",
        "type": "quantitative",
        "title": "distance",
        "format": ".3~s",
        "scale": {"range": ["@low", "@high"]},
    }
    tips = [tip("party", "party"), tip("other", "and"), tip("distance", "Fréchet distance", ".3f")]
    spec = heat(word("other", None, names), word("party", None, names), value, tips)
    far = max(rows, key=lambda row: float(str(row["distance"])))
    alt = f"Fréchet distances between the parties' inputs. Farthest apart are {far['party']} and {far['other']}."
    cut = first_of(len(federation.names), COMPARED)
    table = Data.of("distances", rows, ("party", "other", "distance"))
    section.blocks.append(Chart("distances", "How different the parties' inputs are", alt + cut, table, spec, half=True))
    section.say(
        f"A linear probe that sees only an input names its party {told.accuracy:.0%} of the time (the largest party's share: "
        f"{told.chance:.0%}). Distances are Fréchet distances of inputs, at most {EACH} samples a party"
        + (f", in {WIDTH} random directions.{cut}" if first[0].numel() > WIDTH else f".{cut}")
    )
