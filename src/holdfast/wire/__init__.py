"""TRANSLATES: bytes to messages and back. No I/O, no policy."""
