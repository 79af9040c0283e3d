"""The latest prompts, in memory, for the advisor."""

import threading
from collections import deque

from kvscope.model.prompt import Prompt


class Window:
    """The latest prompts, bounded by number and by characters of text; for any thread."""

    def __init__(self, max_prompts: int, max_chars: int) -> None:
        self._max_prompts = max_prompts
        self._max_chars = max_chars
        self._chars = 0
        self._prompts: deque[tuple[Prompt, int]] = deque()
        self._lock = threading.Lock()

    def add(self, prompt: Prompt, chars: int) -> None:
        """Add the newest prompt, which holds ``chars`` characters; the oldest ones go."""
        with self._lock:
            self._prompts.append((prompt, chars))
            self._chars += chars
            while len(self._prompts) > self._max_prompts or self._chars > self._max_chars:
                self._chars -= self._prompts.popleft()[1]

    def prompts(self) -> list[Prompt]:
        """Return the prompts, oldest first."""
        with self._lock:
            return [prompt for prompt, _ in self._prompts]
