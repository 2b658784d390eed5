"""What a run is judged by.

From its tables: `figures` (by any metric, and the mean over parties), `summary`, `gain`,
`conventions` (every paper's way to average), `fairness`, `targets` (rounds and bytes to an
accuracy). From scores: `retrieval`; the metrics themselves, AUC among them, are in
`core/metrics.py`. From representations: `mdl`, `frechet`, `separability`, `drift`;
`representations` takes them out of a run's folder, and `study` measures them all. Those two open
runs, which import this package: import them by their own names.
"""

from comity.measure.gain import Gain, gains
from comity.measure.summary import summarise

__all__ = ["Gain", "gains", "summarise"]
