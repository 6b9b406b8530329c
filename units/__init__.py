"""Units that are the same for every profile, as package data of ``servicekit.units``."""
