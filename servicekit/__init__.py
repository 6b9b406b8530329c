"""Make a local model server a dependable service: profiles, service files, and a watchdog."""

__version__ = "0.2.0"
