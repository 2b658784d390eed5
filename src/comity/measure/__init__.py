"""What a run is judged by."""

from comity.measure.gain import Gain, gains
from comity.measure.summary import summarise

__all__ = ["Gain", "gains", "summarise"]
