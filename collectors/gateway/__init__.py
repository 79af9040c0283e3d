"""The reverse proxy in front of vLLM: passes bytes on, observes them, and applies what the policy decides."""
