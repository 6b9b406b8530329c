"""The Windows and WSL2 settings that keep services running as long as the PC is on."""
