"""Frames, addresses, admission of connections: bytes and decisions, no sockets."""
