"""What both programs share of their command lines: commands, units, output and exit codes."""
