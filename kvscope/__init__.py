"""kvscope: traces, explains and improves prefix-cache reuse of vLLM servers."""

__version__ = "0.1.0"
