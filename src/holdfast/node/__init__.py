"""The launcher of a node at work: its ranks, their monitors, its part in the job."""
