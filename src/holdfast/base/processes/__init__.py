"""Processes: to start them, to know which are ours, to end them and all that they leave behind."""
