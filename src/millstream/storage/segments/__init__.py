"""Segments: immutable objects of blocks, stream by stream; what catch-up reads are served from."""
