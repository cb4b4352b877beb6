"""The processes of a node's ranks, and what they need to start."""
