"""In-process restart: when a rank fails, all call the training function again, where they are."""
