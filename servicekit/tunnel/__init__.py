"""An engine's port on another host, over ssh: installed, kept up, and looked through."""
