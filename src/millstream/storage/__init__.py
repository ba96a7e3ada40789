"""Durable bytes on this machine: files, the journal, the catalog, the object store and its segments."""
