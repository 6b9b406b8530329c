"""Measuring a running service: acceptance gates, benchmarks and comparisons."""
