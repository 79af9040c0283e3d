"""What runs inside vLLM: a stat logger that reports each finished request to the agent.

It lives in the engine's process, so it never raises into it, never blocks it, and imports vLLM and
OpenTelemetry only when they are needed.
"""
