"""Decides for all launchers: who takes part in a cycle, and what follows a failure."""
