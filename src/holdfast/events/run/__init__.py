"""The model of a run, made from its files."""
