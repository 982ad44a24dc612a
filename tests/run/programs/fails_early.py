"""Fails before its first step, as a program does whose data are not there."""

import torch

assert torch.ones(1)
raise FileNotFoundError("no data in ./data")
