"""Numbers after gates: a verified profile, measured by a versioned suite, one file a run."""
