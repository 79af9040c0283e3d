"""The built-in engine: an OpenAI-compatible server that models vLLM's prefix cache and its timing.

It computes no model. It exists for tests, and for machines without vLLM, and says so in every answer. Cache:
``kvscope.cache.pool``; shapes of answers, metrics, spans and events: vLLM 0.32, executed.
"""
