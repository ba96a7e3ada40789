"""The `millstream` command: one file per command, and what they print."""
