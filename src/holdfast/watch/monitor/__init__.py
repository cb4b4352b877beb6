"""The rank monitor: a process of its own that imports neither torch nor the launcher."""
