"""What the monitor of a rank decides, and the messages between it, the rank and the launcher."""
