"""Tests, the cheapest level first: unit, simulation, integration, real."""

import os

# torch's TCPStore looks up the name of each caller in its only thread. A name server that leaves
# one of many questions without an answer, as in some sandboxes, would stop the store for 5 s:
# longer than the silence after which a node counts as lost here. This bounds it to 1 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
