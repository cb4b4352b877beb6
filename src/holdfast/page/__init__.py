"""The shared-memory pages in which a rank shows itself, and a launcher shows that it lives."""
