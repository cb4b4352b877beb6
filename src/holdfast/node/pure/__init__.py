"""The launcher's machines: its ranks, their lives, the evidence at an incident."""
