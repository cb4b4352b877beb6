"""Decisions of a rank's monitor, and its messages with the rank and the launcher."""
