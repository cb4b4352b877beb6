"""What the launchers of a job decide together: who takes part, and what follows a failure."""
