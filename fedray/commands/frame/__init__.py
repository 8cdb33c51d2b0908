"""What every command has: declared options, checks, output, progress and exit codes."""
