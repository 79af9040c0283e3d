"""What the records mean: miss causes and latency models."""
