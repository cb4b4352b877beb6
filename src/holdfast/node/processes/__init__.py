"""The processes of a node's ranks, and helper processes."""
