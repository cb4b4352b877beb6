"""What needs torch. Nothing here is imported before a caller needs a tensor or a process group."""
