"""Structure mined from traffic without any declaration: routes, and what of their prompts stays the same."""
