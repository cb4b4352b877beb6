"""The log of a job of several nodes, in a store of torch's."""
