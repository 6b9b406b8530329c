"""The command line: one module per verb, and the only place that prints and exits.

`--help`, `--version`, `status`, `probe` and `watch` run without the command-line library, which
takes longer to load than they take to run. Everything else goes through `servicekit.cli.app`.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper


def main() -> None:
    from servicekit.cli.direct import parse, run
    from servicekit.cli.failures import failures

    _complete_streams()
    command_line = parse(sys.argv[1:], os.environ)
    if command_line is None:
        from servicekit.cli.app import app

        app(prog_name="servicekit")
    else:
        with failures():
            sys.exit(run(command_line))


def _complete_streams() -> None:
    """Open missing standard streams, so that no file opened later becomes one of them.

    Characters that the locale's encoding lacks are escaped. Each line is written at once, so that
    lines of stdout and stderr stay in order.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so this very one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, "w" if descriptor else "r"))
        elif descriptor and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
