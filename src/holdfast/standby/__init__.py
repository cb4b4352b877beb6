"""Warm restarts: interpreters that have imported torch and wait, parked, until a rank is needed."""
