"""A page takes Vega's code from the cache, where it is put together once: no test has a cache of its own."""

import torch

torch.set_num_threads(1)
