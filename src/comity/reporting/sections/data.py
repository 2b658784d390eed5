"""The section on the parties' data: amounts by class, some samples, and differences between
parties.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from comity.base.key import Key
from comity.charts.chart import Chart, Data, VegaSpec
from comity.charts.encodings import (
    diverging,
    heatmap,
    legend,
    nominal,
    quantitative,
    rows_height,
    tooltip,
)
from comity.data import Federation
from comity.errors import describe
from comity.measure.frechet import pairwise
from comity.measure.representations import Projection
from comity.measure.separability import LEAST, separability
from comity.reporting.blocks import Pictures, Section
from comity.reporting.charts import MAX_PARTIES, first_parties
from comity.reporting.gather import RunGroup
from comity.reporting.readable import PARTS, Run
from comity.spec import parse

PICTURED = 12
"""The most parties whose samples are shown, or that are the columns of a matrix."""
COLUMNS = 12
"""How many samples of each party are shown."""
COMPARED = 25
"""The most parties whose inputs are compared in pairs."""
COMPARED_SAMPLES = 200
"""The most samples of each party that are compared."""
MOST_FEATURES = 20
"""The most features of a table that are shown."""
WIDTH = 64
"""Wider inputs are projected to this many values before they are compared."""
UNCHANGED = "as it is"


def data(group: RunGroup, reopen: bool = True, samples: bool = True) -> Section:
    """Return the fourth section. `reopen` allows opening the data, `samples` showing some."""
    section = Section("data", "The data")
    run = next((run for run in group.runs if run.amounts), None)
    if run is None:
        section.say(
            "No run's split.json can be read, so the parties' data cannot be shown.", "missing"
        )
        return section
    if group.between_sites and not group.site:
        section.say("Samples are at the sites, and only there; this is how many there are.")
    federation = _open_federation(section, run) if reopen else None
    if federation is not None:
        for warning in federation.warnings:
            section.say(warning)
    shifts = party_shifts(run)
    if shifts:
        listed = ", ".join(
            f"{party} {shift}" for party, shift in list(shifts.items())[:MAX_PARTIES]
        )
        more = (
            f" The first {MAX_PARTIES} of {len(shifts)} parties."
            if len(shifts) > MAX_PARTIES
            else ""
        )
        section.say(f"Parties see things differently: {listed}.{more}")
    if federation is not None:
        section.blocks.append(
            _class_counts(federation, shifts) if federation.classes else _label_ranges(federation)
        )
    section.blocks.append(_sizes(run, shifts))
    if not group.same_parties:
        section.say(f"Seed {run.seed}: under another, a party has other samples.")
    if federation is not None and not _is_text(run):
        key = Key.root(0).fold("report")
        if samples:
            _add_samples(section, federation, shifts, key)
        _add_distances(section, federation, shifts, key)
    return section


def party_shifts(run: Run) -> dict[str, str]:
    """Return how the split changed each party's samples, in words; empty if it changed none."""
    shifts = {}
    for party, share in run.split.items():
        changes = [kind for kind in (share.shift or "").split("|") if kind not in ("", "none")]
        renamed = sum(label != common for common, label in enumerate(share.labels or ()))
        if renamed:
            changes.append(f"{renamed} classes renamed")
        shifts[party] = ", ".join(changes) or UNCHANGED
    return shifts if set(shifts.values()) != {UNCHANGED} else {}


def _with_shift(party: str, shifts: dict[str, str]) -> str:
    """Return a party's name with how its samples were changed."""
    return f"{party} ({shifts[party]})" if party in shifts else party


def _open_federation(section: Section, run: Run) -> Federation | None:
    try:
        return run.job.federation
    except Exception as why:  # missing data must not cost the page
        section.say(
            f"The data cannot be opened here, so only their amounts are shown: {describe(why)}",
            "missing",
        )
        return None


def _is_text(run: Run) -> bool:
    """Whether samples are texts: word indices have no meaningful mean or distance."""
    return run.experiment is not None and parse(run.experiment.model).name == "fasttext"


def class_names(federation: Federation) -> list[str]:
    """Return the names of the classes, or their numbers."""
    return list(federation.class_names or map(str, range(federation.classes)))


def _class_counts(federation: Federation, shifts: dict[str, str]) -> Chart:
    """Return a chart of training samples by party and class."""
    counts = federation.counts()
    names = class_names(federation)
    rows = [
        {
            "party": party,
            "class": names[c],
            "samples": int(counts[i, c]),
            "shift": shifts.get(party),
        }
        for i, party in enumerate(federation.names[:MAX_PARTIES])
        for c in range(federation.classes)
        if counts[i, c]
    ]
    table = Data.of("classes", rows, ("party", "class", "samples", *(["shift"] if shifts else [])))
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
                *_shift_tooltip(shifts),
            ],
        },
    }
    classes_held = [int((row > 0).sum()) for row in counts]
    fewest, most = min(classes_held), max(classes_held)
    classes_text = (
        f"between {fewest} and {most} of {len(names)} classes"
        if fewest < most
        else f"{fewest} of {len(names)} classes each"
    )
    alt = f"Training samples by party and class: {len(classes_held)} parties hold {classes_text}."
    positions = first_parties(len(classes_held))
    return Chart(
        "classes", "Who holds which classes", alt, table, spec, half=True, selection=positions
    )


def _shift_tooltip(shifts: dict[str, str]) -> list[VegaSpec]:
    return [tooltip("shift", "seen")] if shifts else []


def _label_ranges(federation: Federation) -> Chart:
    """Return a chart of the parties' labels, for regression."""
    label = federation.schema.label if federation.schema else "label"
    names = federation.names[:MAX_PARTIES]
    rows = []
    for party in names:
        middle, unit = federation.preprocess.for_party(party).label
        values = federation.parties[party].train.y.double() * unit + middle
        low, median, high = torch.quantile(
            values, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        ).tolist()
        rows.append({"party": party, "low": low, "median": median, "high": high})
    tips = [
        tooltip("party", "party"),
        tooltip("median", "median", ".4~g"),
        tooltip("low", "a tenth is below", ".4~g"),
        tooltip("high", "a tenth is above", ".4~g"),
    ]
    scale = {"zero": False}
    spec: VegaSpec = {
        "height": rows_height(len(names), 22),
        "encoding": {"y": nominal("party", None), "tooltip": tips},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 6, "opacity": 0.35, "color": "@c0"},
                "encoding": {"x": quantitative("low", label, scale=scale), "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1, "color": "@c0"},
                "encoding": {"x": quantitative("median", label, scale=scale)},
            },
        ],
    }
    medians = [row["median"] for row in rows]
    alt = (
        "Each party's training labels: the median, and a bar from the lowest to the highest tenth."
        f" Medians lie between {min(medians):.4g} and {max(medians):.4g}."
    )
    table = Data.of("labels", rows, ("party", "low", "median", "high"))
    title = f"What is to be predicted: {label}"
    positions = first_parties(len(federation.names))
    return Chart("labels", title, alt, table, spec, half=True, selection=positions)


def _sizes(run: Run, shifts: dict[str, str]) -> Chart:
    """Return a chart of each party's samples for training, validation and test."""
    rows = [
        {
            "party": party,
            "part": part,
            "samples": amount[part],
            "place": PARTS.index(part),
            "shift": shifts.get(party),
        }
        for party, amount in list(run.amounts.items())[:MAX_PARTIES]
        for part in PARTS
    ]
    table = Data.of(
        "sizes", rows, ("party", "part", "samples", "place", *(["shift"] if shifts else []))
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
                *_shift_tooltip(shifts),
            ],
        },
    }
    train = [amount["train"] for amount in run.amounts.values()]
    title, count = "How much each party has", f"between {min(train):,} and {max(train):,}"
    if len(train) == 1:
        title, count = "How much there is", f"{train[0]:,}"
    elif min(train) == max(train):
        count = f"{train[0]:,} each"
    alt = f"Samples by party: {count} for training."
    return Chart("sizes", title, alt, table, spec, half=True, selection=first_parties(len(train)))


def _add_samples(
    section: Section, federation: Federation, shifts: dict[str, str], key: Key
) -> None:
    """Add some samples of each party if they are images, or the means of tabular features."""
    channels = federation.shape[0] if len(federation.shape) == 3 else 0
    if channels in (1, 3):
        section.blocks.append(_image_samples(federation, shifts, key))
    elif (
        len(federation.shape) == 1
        and next(iter(federation.parties.values())).train.x.is_floating_point()
    ):
        section.blocks.append(_features(federation))


def _image_samples(federation: Federation, shifts: dict[str, str], key: Key) -> Pictures:
    names = federation.names[:PICTURED]
    samples = {
        name: unscale(federation, name, _sample(federation, name, COLUMNS, key)) for name in names
    }
    low = min(float(images.amin()) for images in samples.values())
    high = max(float(images.amax()) for images in samples.values())
    strips = {
        f"{name}: {shifts[name]}" if shifts else name: (
            film_strip(images, low, high),
            len(images) / COLUMNS,
        )
        for name, images in samples.items()
    }
    grey = " of grey" if federation.shape[0] == 1 else ""
    alt = (
        f"Some training samples of each party, all in one scale{grey}."
        f" {first_parties(len(federation.names), PICTURED)}"
    )
    return Pictures("What samples look like", alt.rstrip(), strips)


def _sample(federation: Federation, name: str, count: int, key: Key) -> Tensor:
    """Return random training inputs of a party."""
    x = federation.parties[name].train.x
    return x[key.fold("samples", name).permutation(len(x))[:count]]


def unscale(federation: Federation, name: str, x: Tensor) -> Tensor:
    """Return a party's inputs in their original units, in which parties can be compared.

    Indicators of missing values, which are at the end of a sample, were never scaled.
    """
    constants = federation.preprocess.for_party(name)
    scaled = x.shape[1] - len(constants.marked)
    shape = (-1, *[1] * (x.dim() - 2))
    mean = torch.tensor(constants.mean, dtype=x.dtype).view(shape)
    std = torch.tensor(constants.std, dtype=x.dtype).view(shape)
    original = x.clone()
    original[:, :scaled] = x[:, :scaled] * std + mean
    return original


def film_strip(images: Tensor, low: float, high: float) -> str:
    """Return images (count, channels, height, width) side by side, as the data URL of a PNG.

    Values at `low` are black and values at `high` white.
    """
    count, channels, height, width = images.shape
    pixels = ((images - low) / max(high - low, 1e-9) * 255).round().clamp(0, 255).to(torch.uint8)
    framed = torch.full((count, channels, height, width + 1), 128, dtype=torch.uint8)
    framed[..., :-1] = pixels
    strip = framed.permute(2, 0, 3, 1).reshape(height, count * (width + 1), channels)
    return "data:image/png;base64," + base64.b64encode(png(strip)).decode()


def png(image: Tensor) -> bytes:
    """Return the PNG file of an image (height, width, 1 or 3 channels) of bytes."""
    height, width, channels = image.shape
    no_filter = torch.zeros(height, 1, dtype=torch.uint8)  # the filter type, before each line
    lines = torch.cat([no_filter, image.reshape(height, -1)], 1)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines.numpy().tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def feature_names(federation: Federation) -> list[str]:
    """Return the names of a sample's values, or x0, x1, ... without a schema."""
    (width,) = federation.shape
    if federation.schema and len(federation.schema.feature_names) == width:
        return list(federation.schema.feature_names)
    missing_marks = federation.preprocess.marked
    return [
        *(f"x{k}" for k in range(width - len(missing_marks))),
        *(f"x{k} missing" for k in missing_marks),
    ]


def _mark_missing(values: Tensor, names: Sequence[str]) -> Tensor:
    """Return samples with NaN instead of imputed values, which say nothing about the party."""
    columns = {name: k for k, name in enumerate(names)}
    values = values.clone()
    for name, k in columns.items():
        indicator = columns.get(f"{name} missing")
        if indicator is not None:
            values[values[:, indicator] > 0.5, k] = torch.nan
    return values


def _features(federation: Federation) -> Chart:
    """Return a matrix of the features in which parties differ most.

    A cell is a party's mean minus the mean of all samples, in standard deviations of all samples.
    """
    parties = federation.names[:MAX_PARTIES]
    names = feature_names(federation)
    values = {
        party: _mark_missing(unscale(federation, party, data.train.x.double()), names)
        for party, data in federation.parties.items()
    }
    everything = torch.cat(list(values.values()))
    centre = everything.nanmean(0)
    spread = (everything - centre).square().nanmean(0).sqrt().nan_to_num(1.0).clamp(min=1e-9)
    party_means = torch.stack([values[party].nanmean(0) for party in parties])
    shifts = (party_means - centre) / spread
    by_variance = shifts.nan_to_num(0.0).var(0).argsort(descending=True)
    selected = by_variance[:MOST_FEATURES].sort().values.tolist()
    rows = [
        {
            "party": party,
            "feature": names[k],
            "shift": float(shifts[i, k]),
            "mean": float(party_means[i, k]),
        }
        for i, party in enumerate(parties)
        for k in selected
        if shifts[i, k].isfinite()
    ]
    far = max(rows, key=lambda row: abs(float(str(row["shift"]))))
    most = abs(float(str(far["shift"]))) or 1.0
    tips = [
        tooltip("party", "party"),
        tooltip("feature", "feature"),
        tooltip("shift", "mean, in std of all", "+.2f"),
        tooltip("mean", "mean", ".4~g"),
    ]
    axes = [
        nominal("party", None, parties),
        nominal("feature", None, [names[k] for k in selected]),
    ]
    across, down = axes if len(parties) <= PICTURED else reversed(axes)
    spec = heatmap(across, down, diverging("shift", most), tips)
    alt = (
        f"{len(selected)} of {len(names)} features, those in which parties differ most: a"
        " party's mean less that of all, in standard deviations of all. The largest shift is"
        f" {far['party']}'s in {far['feature']}, {far['shift']:+.2f}."
    )
    if len(rows) < len(parties) * len(selected):
        alt += " What a party never has is left empty."
    if federation.preprocess.own:
        alt += " Models see numbers scaled by each party's own mean and spread."
    table = Data.of("features", rows, ("party", "feature", "shift", "mean"))
    title = "Features in which parties differ most"
    return Chart(
        "features", title, alt, table, spec, selection=first_parties(len(federation.names))
    )


def _add_distances(
    section: Section, federation: Federation, shifts: dict[str, str], key: Key
) -> None:
    """Add a matrix of the distances between the parties' inputs, before any training."""
    first = next(iter(federation.parties.values())).train.x
    large = [n for n, p in federation.parties.items() if len(p.train) >= LEAST]
    names = large[:COMPARED]
    if not first.is_floating_point() or len(names) < 2:
        return
    project = Projection(WIDTH, key.fold("projection"))
    sets = [project("input", _sample(federation, name, COMPARED_SAMPLES, key)) for name in names]
    distances = pairwise(sets)
    probe = separability(sets, key.fold("separability"))
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
    a, b = (_with_shift(str(far[side]), shifts) for side in ("party", "other"))
    alt = (
        f"Fréchet distances between the parties' inputs. Farthest apart are {a} and {b},"
        f" {far['distance']:.3g}."
    )
    positions = first_parties(len(federation.names), COMPARED)
    if len(large) < len(federation.names):
        positions = (
            f"The first {len(names)} of {len(large)} parties with {LEAST} training samples or more"
            f" are drawn, of {len(federation.names)} parties in all."
        )
    table = Data.of("distances", rows, ("party", "other", "distance"))
    title = "How different the parties' inputs are"
    section.blocks.append(
        Chart("distances", title, alt, table, spec, half=True, selection=positions)
    )
    projected = f", in {WIDTH} random directions" if first[0].numel() > WIDTH else ""
    section.say(
        f"A linear probe that sees only an input names its party {probe.accuracy:.0%} of the time"
        f" (the largest party's share: {probe.chance:.0%}). Distances are Fréchet distances of"
        f" inputs, at most {COMPARED_SAMPLES} samples a party{projected}. {positions}".rstrip()
    )
