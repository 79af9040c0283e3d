"""Shows the whole loop on a tiny model: a real vLLM or the built-in engine, made-up traffic, a script."""
