"""The consequences of a finding for a node: may it take part, and how long does a start wait?"""
