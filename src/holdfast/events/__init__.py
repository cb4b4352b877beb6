"""What happened, written down once: the event files of a run."""
