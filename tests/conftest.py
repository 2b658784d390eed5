"""One torch thread in every test process: two are slower on a busy machine, and equal bits need one.

Comparisons end without their page, which takes seconds, unless a test asks for it.
"""

import os

import torch

torch.set_num_threads(1)
os.environ["COMITY_REPORT"] = "0"
