"""Checks of the host and of every service, before something fails.

`look` gathers a frozen view of the host, with a bound on every question; the checks are small pure
functions over that view. None needs
root: a check that cannot be made is skipped, with the reason.
"""
