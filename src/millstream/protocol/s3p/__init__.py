"""S3P v0.1.0: a RESP-like protocol over TCP, as bytes and values. The sockets are elsewhere."""
