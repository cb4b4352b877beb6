"""DECIDES: pure machines. ``(event, now) -> effects``; no clock, I/O, threads or torch."""
