"""The decisions of a job's launchers: no clock, I/O, threads or torch."""
