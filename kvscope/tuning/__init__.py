"""The advisor: finds what breaks prefixes in traffic and predicts what a change would bring."""
