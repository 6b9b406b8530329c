"""Why an engine ended: log lines become a cause, a sentence and what would help. Pure.

`causes` is the closed list. `signatures` reads what engines write when they fail, which is data
(`signatures/*.toml`). `reader` goes through a log as it arrives; `verdict` weighs what it found
against how the process ended. `handbook` writes the same knowledge out for people: `docs/causes.md`
and the journal's message catalog.
"""
