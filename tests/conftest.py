"""Every test runs on one thread, as the suite runs one process per core."""

import torch

torch.set_num_threads(1)
