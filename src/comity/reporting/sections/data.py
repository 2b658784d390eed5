"""The parties' data: how much of which class, what samples look like, and how different parties
are.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from comity.base.key import Key
from comity.data import Federation
from comity.errors import describe
from comity.measure.frechet import pairwise
from comity.measure.representations import Projection
from comity.measure.separability import LEAST, separability
from comity.reporting.blocks import Chart, Data, Pictures, Section, VegaSpec
from comity.reporting.charts import (
    MAX_PARTIES,
    heatmap,
    legend,
    nominal,
    quantitative,
    rows_height,
    tooltip,
    truncation_note,
)
from comity.reporting.gather import Group
from comity.reporting.readable import PARTS, Run
from comity.spec import parse

PICTURED = 12
"""Parties whose samples are shown, or that stand side by side."""
COLUMNS = 12
"""Samples of each that are shown."""
COMPARED = 25
"""Parties whose inputs are compared in pairs."""
EACH = 200
"""Samples of each that are compared."""
MOST_FEATURES = 20
"""Features of a table that are shown."""
WIDTH = 64
"""Values to which wider inputs are projected before they are compared."""
UNCHANGED = "as it is"


def data(group: Group, reopen: bool = True, samples: bool = True) -> Section:
    """The page's fourth section; `reopen` allows to open the data, `samples` to show some."""
    section = Section("data", "The data")
    run = next((run for run in group.runs if run.amounts), None)
    if run is None:
        section.say(
            "No run's split.json can be read, so the parties' data cannot be shown.", "missing"
        )
        return section
    if group.between_sites and not group.site:
        section.say("Samples are at the sites, and only there; this is how many there are.")
    federation = _opened(section, run) if reopen else None
    if federation is not None:
        for note in federation.notes:
            section.say(note)
    changed = changes(run)
    if changed:
        each = ", ".join(f"{party} {how}" for party, how in list(changed.items())[:MAX_PARTIES])
        section.say(f"Parties see things differently: {each}.{truncation_note(len(changed))}")
    if federation is not None:
        section.blocks.append(
            _bubbles(federation, changed) if federation.classes else _amounts(federation)
        )
    section.blocks.append(_sizes(run, changed))
    if not group.same_parties:
        section.say(f"Seed {run.seed}: under another, a party has other samples.")
    if federation is not None and not _words(run):
        key = Key.root(0).fold("report")
        if samples:
            _look(section, federation, changed, key)
        _differences(section, federation, changed, key)
    return section


def changes(run: Run) -> dict[str, str]:
    """What was done to each party's samples by its split, in words; nothing if all have them as
    they are.
    """
    found = {}
    for party, share in run.split.items():
        kinds = [kind for kind in (share.shift or "").split("|") if kind not in ("", "none")]
        renamed = sum(own != common for common, own in enumerate(share.labels or ()))
        found[party] = (
            ", ".join([*kinds, *([f"{renamed} classes renamed"] if renamed else [])]) or UNCHANGED
        )
    return found if set(found.values()) != {UNCHANGED} else {}


def _called(party: str, changed: dict[str, str]) -> str:
    """A party with what was done to its samples."""
    return f"{party} ({changed[party]})" if party in changed else party


def _opened(section: Section, run: Run) -> Federation | None:
    try:
        return run.job.federation
    except Exception as why:  # data that are elsewhere must not cost the page
        section.say(
            f"The data cannot be opened here, so only their amounts are shown: {describe(why)}",
            "missing",
        )
        return None


def _words(run: Run) -> bool:
    """Whether samples are texts: numbers of words have no mean and no distance."""
    return run.experiment is not None and parse(run.experiment.model).name == "fasttext"


def class_names(federation: Federation) -> list[str]:
    """What classes are called: numbers, where they have no names."""
    return list(federation.class_names or map(str, range(federation.classes)))


def _bubbles(federation: Federation, changed: dict[str, str]) -> Chart:
    counts = federation.counts()
    names = class_names(federation)
    rows = [
        {
            "party": party,
            "class": names[c],
            "samples": int(counts[i, c]),
            "shift": changed.get(party),
        }
        for i, party in enumerate(federation.names[:MAX_PARTIES])
        for c in range(federation.classes)
        if counts[i, c]
    ]
    table = Data.of("classes", rows, ("party", "class", "samples", *(["shift"] if changed else [])))
    spec: VegaSpec = {
        "height": rows_height(min(len(federation.names), MAX_PARTIES), 22),
        "mark": {"type": "circle", "opacity": 0.85, "color": "@c0"},
        "encoding": {
            "x": {
                **nominal("class", "class", names),
                "scale": {"domain": names},
                "axis": {"labelAngle": 0 if max(map(len, names)) < 4 else -40},
            },
            "y": nominal("party", None),
            "size": quantitative(
                "samples",
                None,
                scale={"rangeMax": 380},
                legend={
                    "title": "training samples",
                    "orient": "top",
                    "direction": "horizontal",
                    "tickCount": 4,
                },
            ),
            "tooltip": [
                tooltip("party", "party"),
                tooltip("class", "class"),
                tooltip("samples", "samples", ",d"),
                *_shift_tip(changed),
            ],
        },
    }
    held = [int((row > 0).sum()) for row in counts]
    few, many = min(held), max(held)
    how_many = (
        f"between {few} and {many} of {len(names)} classes"
        if few < many
        else f"{few} of {len(names)} classes each"
    )
    alt = (
        f"Training samples by party and class: {len(held)} parties hold"
        f" {how_many}.{truncation_note(len(held))}"
    )
    return Chart("classes", "Who holds which classes", alt, table, spec, half=True)


def _shift_tip(changed: dict[str, str]) -> list[VegaSpec]:
    return [tooltip("shift", "seen")] if changed else []


def _amounts(federation: Federation) -> Chart:
    """Where a label is a number: what parties' values are."""
    label = federation.schema.label if federation.schema else "label"
    names = federation.names[:MAX_PARTIES]
    rows = []
    for party in names:
        middle, unit = federation.preprocess.for_party(party).label
        values = federation.parties[party].train.y.double() * unit + middle
        tenth, median, most = torch.quantile(
            values, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        ).tolist()
        rows.append({"party": party, "low": tenth, "median": median, "high": most})
    tips = [
        tooltip("party", "party"),
        tooltip("median", "median", ".4~g"),
        tooltip("low", "a tenth is below", ".4~g"),
        tooltip("high", "a tenth is above", ".4~g"),
    ]
    plain = {"scale": {"zero": False}}
    spec: VegaSpec = {
        "height": rows_height(len(names), 22),
        "encoding": {"y": nominal("party", None), "tooltip": tips},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 6, "opacity": 0.35, "color": "@c0"},
                "encoding": {"x": quantitative("low", label, **plain), "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1, "color": "@c0"},
                "encoding": {"x": quantitative("median", label, **plain)},
            },
        ],
    }
    low, high = (min(row["median"] for row in rows), max(row["median"] for row in rows))
    alt = (
        "Each party's training labels: the median, and a bar from the lowest to the highest tenth."
        f" Medians lie between {low:.4g} and {high:.4g}.{truncation_note(len(federation.names))}"
    )
    table = Data.of("labels", rows, ("party", "low", "median", "high"))
    return Chart("labels", f"What is to be predicted: {label}", alt, table, spec, half=True)


def _sizes(run: Run, changed: dict[str, str]) -> Chart:
    rows = [
        {
            "party": party,
            "part": part,
            "samples": amount[part],
            "place": PARTS.index(part),
            "shift": changed.get(party),
        }
        for party, amount in list(run.amounts.items())[:MAX_PARTIES]
        for part in PARTS
    ]
    table = Data.of(
        "sizes", rows, ("party", "part", "samples", "place", *(["shift"] if changed else []))
    )
    colour: VegaSpec = {
        "field": "part",
        "type": "nominal",
        "title": None,
        "sort": None,
        "legend": legend("top", 3),
        "scale": {"domain": list(PARTS), "range": ["@c0", "@c5", "@c4"]},
    }
    spec: VegaSpec = {
        "height": rows_height(min(len(run.amounts), MAX_PARTIES), 22),
        "mark": {"type": "bar"},
        "encoding": {
            "y": nominal("party", None),
            "x": quantitative("samples", "samples"),
            "color": colour,
            "order": {"field": "place"},
            "tooltip": [
                tooltip("party", "party"),
                tooltip("part", "part"),
                tooltip("samples", "samples", ",d"),
                *_shift_tip(changed),
            ],
        },
    }
    train = [amount["train"] for amount in run.amounts.values()]
    each = " each" if len(train) > 1 else ""
    many = (
        f"between {min(train):,} and {max(train):,}"
        if min(train) < max(train)
        else f"{min(train):,}{each}"
    )
    alt = f"Samples by party: {many} for training.{truncation_note(len(train))}"
    title = "How much each party has" if each else "How much there is"
    return Chart("sizes", title, alt, table, spec, half=True)


def _look(section: Section, federation: Federation, changed: dict[str, str], key: Key) -> None:
    """Some samples of each party, or what its features are like."""
    channels = federation.shape[0] if len(federation.shape) == 3 else 0
    if channels in (1, 3):
        names = federation.names[:PICTURED]
        some = {
            name: unscaled(federation, name, _some(federation, name, COLUMNS, key))
            for name in names
        }
        low, high = (
            min(float(x.amin()) for x in some.values()),
            max(float(x.amax()) for x in some.values()),
        )
        strips = {
            f"{name}: {changed[name]}" if changed else name: (
                film_strip(images, low, high),
                len(images) / COLUMNS,
            )
            for name, images in some.items()
        }
        alt = (
            "Some training samples of each party, all in one scale of"
            f" grey.{truncation_note(len(federation.names), PICTURED)}"
        )
        alt = (
            alt
            if channels == 1
            else alt.replace(", all in one scale of grey", ", all in one scale")
        )
        section.blocks.append(Pictures("What samples look like", alt, strips))
    elif (
        len(federation.shape) == 1
        and next(iter(federation.parties.values())).train.x.is_floating_point()
    ):
        section.blocks.append(_features(federation))


def _some(federation: Federation, name: str, count: int, key: Key) -> Tensor:
    x = federation.parties[name].train.x
    return x[key.fold("samples", name).permutation(len(x))[:count]]


def unscaled(federation: Federation, name: str, x: Tensor) -> Tensor:
    """A party's values as they were before its constants scaled them: in these, parties can be
    compared.
    """
    how = federation.preprocess.for_party(name)
    scaled = x.shape[1] - len(
        how.marked
    )  # what was added to say where a value was missing was not scaled
    made = x.clone()
    mean, std = (
        torch.tensor(c, dtype=x.dtype).view(-1, *[1] * (x.dim() - 2)) for c in (how.mean, how.std)
    )
    made[:, :scaled] = x[:, :scaled] * std + mean
    return made


def film_strip(images: Tensor, low: float, high: float) -> str:
    """Images (count, channels, height, width) side by side as a PNG's data address; `low` is dark
    and `high` bright.
    """
    count, channels, height, width = images.shape
    pixels = ((images - low) / max(high - low, 1e-9) * 255).round().clamp(0, 255).to(torch.uint8)
    framed = torch.full((count, channels, height, width + 1), 128, dtype=torch.uint8)
    framed[..., :-1] = pixels
    strip = framed.permute(2, 0, 3, 1).reshape(height, count * (width + 1), channels)
    return "data:image/png;base64," + base64.b64encode(png(strip)).decode()


def png(image: Tensor) -> bytes:
    """A PNG file of bytes (height, width, 1 or 3 channels)."""
    height, width, channels = image.shape
    lines = torch.cat(
        [torch.zeros(height, 1, dtype=torch.uint8), image.reshape(height, -1)], 1
    )  # filter 0 before each line
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines.numpy().tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def feature_names(federation: Federation) -> list[str]:
    """What the values of a sample are called; x0, x1, ... where nothing is known of them."""
    (width,) = federation.shape
    if federation.schema and len(federation.schema.display_name) == width:
        return list(federation.schema.display_name)
    marked = federation.preprocess.marked
    return [*(f"x{k}" for k in range(width - len(marked))), *(f"x{k} missing" for k in marked)]


def _measured(values: Tensor, display_name: Sequence[str]) -> Tensor:
    """Samples with NaN where a number was missing and had to be filled in: what was filled in says
    nothing of the party.
    """
    place = {name: k for k, name in enumerate(display_name)}
    values = values.clone()
    for name, k in place.items():
        if (marker := place.get(f"{name} missing")) is not None:
            values[values[:, marker] > 0.5, k] = torch.nan
    return values


def _features(federation: Federation) -> Chart:
    """Features in which parties differ most: a party's mean, in standard deviations of all."""
    names = federation.names[:MAX_PARTIES]
    display_name = feature_names(federation)
    values = {
        n: _measured(unscaled(federation, n, p.train.x.double()), display_name)
        for n, p in federation.parties.items()
    }
    everything = torch.cat(list(values.values()))
    centre = everything.nanmean(0)
    spread = (everything - centre).square().nanmean(0).sqrt().nan_to_num(1.0).clamp(min=1e-9)
    own = torch.stack([values[n].nanmean(0) for n in names])
    means = (own - centre) / spread
    chosen = (
        means.nan_to_num(0.0).var(0).argsort(descending=True)[:MOST_FEATURES].sort().values.tolist()
    )
    rows = [
        {
            "party": n,
            "feature": display_name[f],
            "shift": float(means[i, f]),
            "mean": float(own[i, f]),
        }
        for i, n in enumerate(names)
        for f in chosen
        if means[i, f].isfinite()
    ]
    far = max(rows, key=lambda row: abs(float(str(row["shift"]))))
    most = abs(float(str(far["shift"]))) or 1.0
    value: VegaSpec = {
        "field": "shift",
        "type": "quantitative",
        "title": "shift",
        "format": "+.1f",
        "scale": {
            "domain": [-most, 0, most],
            "range": ["@less", "@middle", "@more"],
            "interpolate": "rgb",
        },
    }
    tips = [
        tooltip("party", "party"),
        tooltip("feature", "feature"),
        tooltip("shift", "mean, in std of all", "+.2f"),
        tooltip("mean", "mean", ".4~g"),
    ]
    axes = [
        nominal("party", None, names),
        nominal("feature", None, [display_name[f] for f in chosen]),
    ]
    across, down = axes if len(names) <= PICTURED else reversed(axes)
    spec = heatmap(across, down, value, tips)
    alt = (
        f"{len(chosen)} of {len(display_name)} features, those in which parties differ most: a"
        " party's mean less that of all, in standard deviations of all. The largest shift is"
        f" {far['party']}'s in {far['feature']}, {far['shift']:+.2f}."
    )
    if len(rows) < len(names) * len(chosen):
        alt += " What a party never has is left empty."
    if federation.preprocess.own:
        alt += " Models see numbers scaled by each party's own mean and spread."
    table = Data.of("features", rows, ("party", "feature", "shift", "mean"))
    return Chart("features", "Features in which parties differ most", alt, table, spec)


def _differences(
    section: Section, federation: Federation, changed: dict[str, str], key: Key
) -> None:
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
    tips = [
        tooltip("party", "party"),
        tooltip("other", "and"),
        tooltip("distance", "Fréchet distance", ".3f"),
    ]
    spec = heatmap(nominal("other", None, names), nominal("party", None, names), value, tips)
    far = max(rows, key=lambda row: float(str(row["distance"])))
    a, b = (_called(str(far[which]), changed) for which in ("party", "other"))
    alt = (
        f"Fréchet distances between the parties' inputs. Farthest apart are {a} and {b},"
        f" {far['distance']:.3g}."
    )
    cut = truncation_note(len(federation.names), COMPARED)
    table = Data.of("distances", rows, ("party", "other", "distance"))
    section.blocks.append(
        Chart(
            "distances", "How different the parties' inputs are", alt + cut, table, spec, half=True
        )
    )
    section.say(
        f"A linear probe that sees only an input names its party {told.accuracy:.0%} of the time"
        f" (the largest party's share: {told.chance:.0%}). Distances are Fréchet distances of"
        f" inputs, at most {EACH} samples a party"
        + (f", in {WIDTH} random directions.{cut}" if first[0].numel() > WIDTH else f".{cut}")
    )
