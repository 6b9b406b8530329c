"""What of a host keeps services from running well, found out before they do not.

`look` gathers a frozen view of the host, with a bound on every question; the checks are small pure
functions over that view. None of them needs root: what could not be looked at is said, with why.
"""
