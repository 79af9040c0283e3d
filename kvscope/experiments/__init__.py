"""The closed loop: assignment, looks, verdicts, rollback and promotion."""
