"""The Durable Streams Protocol over HTTP/1.1."""
