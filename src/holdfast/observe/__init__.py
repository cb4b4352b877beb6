"""What happened, written down once and shown in many ways."""
