"""Text becomes files: all of them or none, remembered in a manifest."""
