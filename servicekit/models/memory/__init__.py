"""The memory plan: what a recipe does with the GPU; docs/memory.md explains it."""
