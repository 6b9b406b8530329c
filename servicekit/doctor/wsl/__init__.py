"""What WSL2 must be told so that a service inside it lives as long as the PC is on."""
