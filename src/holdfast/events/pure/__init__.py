"""What a launcher tells whatever restarts around it."""
