"""The command ``holdfast``: reports, traces, live views, metrics, chaos, doctor."""
