"""The command line: parses, and wires rooms together."""
