"""The process around a node: settings, listeners, limits and signals."""
