"""A folder for PYTHONPATH: ``sitecustomize.py`` in it runs first in each rank."""
