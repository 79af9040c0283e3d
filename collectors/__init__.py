"""The ways in: each collector brings one kind of data to the pipeline."""
