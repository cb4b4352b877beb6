"""Decides for the callbacks of trainers: when heartbeats go, when timeouts are learned."""
