"""A folder to put on PYTHONPATH; see ``sitecustomize.py`` in it."""
