"""A model server of two processes: transformers' own, and a worker that holds memory beside it.

    server.py DEVICE MIB ARGUMENTS OF TRANSFORMERS SERVE...

The worker has a session of its own, as those of large engines have, and survives the server.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from transformers.cli.transformers import main

device, mib, *arguments = sys.argv[1:]
holder = Path(__file__).with_name("holder.py")
subprocess.Popen([sys.executable, holder, device, mib], start_new_session=True)
sys.argv = ["transformers", "serve", *arguments, "--device", device]
main()
