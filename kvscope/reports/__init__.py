"""The tuning report in Markdown, HTML and JSON."""
