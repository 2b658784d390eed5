"""What is measured on finished runs.

- From a run's tables: `gain` (a party's gain over training alone), `conventions` (how each paper
  averages accuracy), `fairness`, `targets` (rounds and bytes to a target accuracy), `seeds`
  (intervals over seeds), `mean_ranks` (methods over several federations).
- From representations: `mdl` (description length), `frechet`, `separability`, `drift`.
  `representations` computes the representations of a run folder, and `study` applies all of these
  measures to them.

`comity.runs.summary` computes `summary.json`. The metrics are in `comity.metrics`, those of
re-identification in `comity.metrics.retrieval`.
"""

from comity.measure.gain import Gain, gains
from comity.runs.summary import summarise

__all__ = ["Gain", "gains", "summarise"]
