"""The watchdog: one process, one engine, from launch to a proven end."""
