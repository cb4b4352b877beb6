"""The observer process of a node: metrics and hooks, at no cost to the launcher."""
