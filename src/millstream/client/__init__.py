"""Clients for users of a server."""
