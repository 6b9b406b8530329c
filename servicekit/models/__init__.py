"""Models: the hub, weights on disk, and what they need of the GPU."""
