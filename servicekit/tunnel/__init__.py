"""An engine's port made reachable on another host, over ssh."""
