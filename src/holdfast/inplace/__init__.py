"""Restarts inside the process: a rank's session, the guard of its node, the coordinator."""
