"""Frames, addresses, and who may stay connected: bytes and decisions, no sockets."""
