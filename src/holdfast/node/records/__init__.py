"""What a launcher writes down: the folders of a run, incidents, reports."""
