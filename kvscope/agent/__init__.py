"""The composition root: wires collectors, pipeline, analysis and controller into one process."""
