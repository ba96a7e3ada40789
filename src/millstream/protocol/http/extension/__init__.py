"""The extension over HTTP: buckets, listings, snapshots, bootstrap (`stream-extensions.txt`)."""
