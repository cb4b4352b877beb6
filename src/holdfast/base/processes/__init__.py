"""Processes: to start them, to know a job's own, to end them and all that they leave behind."""
