"""The local write-ahead log: durability and commit order."""

from .file import LocalJournal
from .recovery import JournalScan, scan_journal

__all__ = ["JournalScan", "LocalJournal", "scan_journal"]
