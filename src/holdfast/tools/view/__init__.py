"""Live views of a running job: ``holdfast top`` in a terminal, ``holdfast view`` in a browser."""
