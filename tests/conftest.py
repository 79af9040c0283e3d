"""Fixtures that several kinds of test share."""

pytest_plugins = ["tests.support.databases"]
