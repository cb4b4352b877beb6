"""The model of a run: its files, read, and what follows from them."""
