"""The `paceline` command: one file a command."""
