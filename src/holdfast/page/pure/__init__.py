"""The layout of each page, and how it is read."""
