"""KV-event subscriber: hears which blocks each engine puts into its prefix cache and takes out."""
