"""The launcher of a node: its plan, its machines at work, ranks, monitors, parked interpreters."""
