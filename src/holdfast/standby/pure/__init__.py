"""When an interpreter is parked, and whether a rank may start from it."""
