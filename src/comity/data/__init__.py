"""Datasets, partitions of their samples among parties, and the resulting federations."""

from comity.base.samples import PartyData, Samples
from comity.data.dataset import Dataset
from comity.data.federation import Federation
from comity.data.groups import Groups
from comity.data.library import catalogue, load
from comity.data.partitions import partition_catalogue
from comity.data.split import Share, Split
from comity.data.views import view_dataset, view_federation

__all__ = [
    "Dataset",
    "Federation",
    "Groups",
    "PartyData",
    "Samples",
    "Share",
    "Split",
    "catalogue",
    "load",
    "partition_catalogue",
    "view_dataset",
    "view_federation",
]
