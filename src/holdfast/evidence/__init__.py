"""Explains a hang or a death: what /proc, stacks and the flight recorder show of a rank."""
