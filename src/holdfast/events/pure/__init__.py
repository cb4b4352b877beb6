"""What can have happened: one record per kind."""
