"""Gates before numbers: what a served model must pass before a profile counts as verified."""
