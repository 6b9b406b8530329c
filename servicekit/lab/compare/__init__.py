"""Results of benchmarks side by side: only what matches, with the traps named."""
