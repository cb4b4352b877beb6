"""The launchers of a job: membership, restarts, and the log that they share."""
