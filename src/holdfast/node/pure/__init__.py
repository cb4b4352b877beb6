"""What the launcher of a node decides: its ranks, its host, its parked interpreters."""
