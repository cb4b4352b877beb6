"""What a finding means for a node: whether it may take part, and how long a start waits."""
