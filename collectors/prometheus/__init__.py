"""Prometheus scraper: reads each engine's ``/metrics`` and keeps what tells of cache and latency."""
