"""Tools for trying out restarts."""
