"""Translation between bytes and the model. No sockets, no waiting."""
