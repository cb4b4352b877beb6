"""``holdfast chaos``: faults from a seed in a running job, and a scorecard of its recoveries.

``schedule.py`` draws, ``trial.py`` decides, ``job.py`` and ``run.py`` act, ``explanation.py`` reads
the launcher's reports, and ``scorecard.py`` counts.
"""
