"""The archive: what happened, bucket by bucket in commit order, kept for a time."""
