"""Why an engine ended: log lines become a cause, a sentence and what helps. Pure.

`causes` is the closed list. `signatures` describes what engines write when they fail, as data
(`data/signatures/*.toml`). `lines` takes one line apart, `reader` reads a log as it arrives, and
`reading` holds what it said; `verdict` weighs that against how the process ended.
"""
