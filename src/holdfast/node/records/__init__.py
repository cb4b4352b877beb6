"""The files that a launcher writes: run folders, incidents, progress, the failure report."""
