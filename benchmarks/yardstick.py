"""What collaborating gives over each party's own best model, on three tables: plain models, SOLO and
federated methods, by cross-validation.

    COMITY_DATA=... python benchmarks/yardstick.py [--out DIR] [--model mlp2] [--tables heart ...]

The tables are the four hospitals of heart (its files are in COMITY_DATA), and two of scikit-learn,
of which the parties are groups of similar people: breast cancer by quarters of the cells' mean
texture, and diabetes, where a number is predicted, by quarters of age. Prints a table per dataset in
Markdown, with the means over parties.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pandas
from sklearn import datasets

import comity
from comity.data.importing import import_federation
from comity.studies.own_models import describe_choices

METHODS = ("fedavg", "fedper", "fedavg+dbe", "relay")
NEED_CLASSES = ("relay",)
NUMBERS = ("diabetes",)
"""The tables whose label is a number."""
GROUPED_BY = {"breast_cancer": "mean texture", "diabetes": "age"}
PARTIES = 4


def import_table(name: str, folder: Path) -> Path:
    """Import a table of scikit-learn whose parties are quarters of a column; a table that is there
    already is used as it is.
    """
    out = folder / "data" / name
    if out.exists():
        return out
    files = folder / "files" / name
    files.mkdir(parents=True, exist_ok=True)
    bunch: Any = getattr(datasets, f"load_{name}")(as_frame=True)
    table: pandas.DataFrame = bunch.frame
    quarter = pandas.qcut(table[GROUPED_BY[name]].rank(method="first"), PARTIES, labels=False)
    for k in range(PARTIES):
        table[quarter == k].to_csv(files / f"quarter{k + 1}.csv", index=False)
    out.parent.mkdir(exist_ok=True)
    kinds = {"target": "number"} if name in NUMBERS else {}
    import_federation(files, out, name=name, label="target", kinds=kinds)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the runs, which are continued")
    parser.add_argument("--model", default="mlp2")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--tables", nargs="+", default=["heart", *GROUPED_BY])
    arguments = parser.parse_args()
    folder: Path = arguments.out or Path(mkdtemp(prefix="yardstick-"))
    for name in arguments.tables:
        data = name if name == "heart" else str(import_table(name, folder))
        comparison = comity.compare(
            [m for m in METHODS if name not in NUMBERS or m not in NEED_CLASSES],
            data=data,
            model=arguments.model,
            folds=arguments.folds,
            out=folder / f"{name}-{arguments.model}",
        )
        print(f"\n{name}, {arguments.model}, by {comparison.metric}\n")
        print("| method | mean | over own model | gained | hurt | worst party |")
        print("| --- | --- | --- | --- | --- | --- |")
        for row in comparison.rows:
            gain = row.gain.short if row.gain else ""
            print(
                f"| {row.algorithm} | {100 * (row.mean or 0):.1f} | {gain} |"
                f" {row.gained}/{row.judged} | {row.hurt}/{row.judged} |"
                f" {100 * (row.worst_mean or 0):.1f} |"
            )
        print(f"\n{describe_choices(comparison.findings.own_models)}", flush=True)


if __name__ == "__main__":
    main()
