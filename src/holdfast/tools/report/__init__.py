"""The report of a run, its goodput, and its trace."""
