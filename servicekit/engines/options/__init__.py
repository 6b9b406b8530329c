"""An engine's command line, held against its own parser."""
