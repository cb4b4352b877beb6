"""Healthy jobs that make no steps for long, and hung ones, with no line of holdfast in the script.

``tests/real/test_no_code_change.py`` runs a few; ``python -m tests.stalls`` (``make stalls``) all.
"""
