"""The files of a run, read into one model: what every command reads."""
