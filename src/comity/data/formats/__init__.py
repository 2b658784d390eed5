"""Readers of common file formats: from a path to numpy arrays.

Images are uint8, N x C x H x W; labels are int64 from 0. Readers raise `UsageError` with one
sentence about a file that they cannot read.
"""

from comity.data.formats.cifar import Cifar, read_cifar_binary, read_cifar_python
from comity.data.formats.har import Har, read_uci_har
from comity.data.formats.idx import read_idx, read_idx_pair
from comity.data.formats.images import (
    Pictures,
    picture_files,
    read_image,
    read_image_folder,
    read_image_list,
    read_images,
)
from comity.data.formats.leaf import Leaf, read_leaf
from comity.data.formats.mat import read_mat, read_svhn_mat
from comity.data.formats.npz import read_npz
from comity.data.formats.table import RawTable, codes, numeric, read_csv, read_parquet, read_xlsx
from comity.data.formats.uci import read_adult

__all__ = [
    "Cifar",
    "Har",
    "Leaf",
    "Pictures",
    "RawTable",
    "codes",
    "numeric",
    "picture_files",
    "read_adult",
    "read_cifar_binary",
    "read_cifar_python",
    "read_csv",
    "read_idx",
    "read_idx_pair",
    "read_image",
    "read_image_folder",
    "read_image_list",
    "read_images",
    "read_leaf",
    "read_mat",
    "read_npz",
    "read_parquet",
    "read_svhn_mat",
    "read_uci_har",
    "read_xlsx",
]
