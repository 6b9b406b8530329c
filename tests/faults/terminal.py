"""Runs a command as the leader of a terminal of its own, which closes on SIGUSR1.

The command's exit code becomes ours; SIGTERM is passed on to it.
"""

from __future__ import annotations

import os
import pty
import signal
import sys


def main(argv: list[str]) -> int:
    """Run it to its end."""
    pid, terminal = pty.fork()
    if pid == 0:
        for number in (1, 2):  # what it prints is not for the terminal
            os.dup2(3, number)
        os.execvp(argv[0], argv)  # noqa: S606 - that is what it is for
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    signal.signal(signal.SIGUSR1, lambda *_: os.close(terminal))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    os.dup2(2, 3)
    sys.exit(main(sys.argv[1:]))
