"""ACTS: the only code that touches the machine. No policy."""
