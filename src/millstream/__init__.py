"""Millstream: durable streams over plain HTTP. Public names live here, nothing else does."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
