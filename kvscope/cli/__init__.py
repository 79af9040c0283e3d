"""The command line: ``kvscope COMMAND``."""
