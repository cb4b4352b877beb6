"""Finds hangs: the rank monitor, and the client that a rank talks to it through."""
