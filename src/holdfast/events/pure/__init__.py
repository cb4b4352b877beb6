"""The schema of events: one record per kind."""
