"""Holds memory through torch until it is killed: `holder.py DEVICE MIB`."""

from __future__ import annotations

import os
import signal
import sys

import torch

device, mib = sys.argv[1:]
held = torch.ones(int(mib) << 20, dtype=torch.uint8, device=device)
print(os.getpid(), flush=True)  # noqa: T201 - whoever started it waits for this
signal.pause()
