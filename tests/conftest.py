"""One torch thread in every test process: two are slower on a busy machine, and equal bits need one."""

import torch

torch.set_num_threads(1)
