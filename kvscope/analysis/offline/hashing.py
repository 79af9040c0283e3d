"""Prompts as salted hashes of their blocks: what the store and other tools may keep without any text.

Equal prefixes have equal hashes under one salt; without the salt nobody can try out texts or block ids.
"""

import dataclasses
import hashlib
from array import array
from collections.abc import Iterable
from functools import partial

from kvscope.analysis.formats.records import BlockHashes, BlockIds, Body, LoggedRequest
from kvscope.analysis.offline.load import ByteTokenizer, Encoder, replay_request
from kvscope.cache.hashing import ChainMemo
from kvscope.cache.replay import computed_chain
from kvscope.errors import UsageError

_MASK = (1 << 63) - 1  # other tools read hash ids as signed numbers of 64 bits
_KEPT = 200_000


class Salter:
    """Hashes block ids and names with a key (BLAKE2b); the same under the same ``salt``.

    ``salt`` is 1 to 64 bytes; raises ``UsageError`` for another.
    """

    def __init__(self, salt: bytes) -> None:
        if not 0 < len(salt) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise UsageError(f"a salt has 1 to {hashlib.blake2b.MAX_KEY_SIZE} bytes, not {len(salt)}")
        self._hash = partial(hashlib.blake2b, key=salt, digest_size=8)
        self._known: dict[tuple[str, int], int] = {}

    def blocks(self, ids: Iterable[int], scope: str = "") -> "array[int]":
        """Return the hashes of ``ids``, which mean the same within one ``scope`` only."""
        return array("q", [self._block(scope, each) for each in ids])

    def name(self, text: str | None) -> str | None:
        """Return what stands for a name, 16 hexadecimal digits; None for none."""
        if text is None:
            return None
        return self._hash(b"name\0" + text.encode("utf-8", "surrogatepass")).hexdigest()

    def _block(self, scope: str, block: int) -> int:
        key = scope, block
        found = self._known.get(key)
        if found is None:
            named = block.to_bytes(8, "little") + scope.encode("utf-8", "surrogatepass")
            found = int.from_bytes(self._hash(b"block\0" + named).digest(), "little") & _MASK
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = found
        return found


class Hasher:
    """Turns logged requests into ones without text; for one thread.

    ``tokenizer`` is needed for text alone. ``block_size`` is that of text and tokens; block ids have theirs.
    """

    def __init__(self, salter: Salter, *, block_size: int, tokenizer: Encoder | None) -> None:
        self._salter = salter
        self._block_size = block_size
        self._tokenizer = tokenizer
        self._memo = ChainMemo()

    def hashed(self, logged: LoggedRequest) -> LoggedRequest:
        """Return ``logged`` with a prompt of salted hashes and its own count of prompt tokens.

        Raises ``UsageError`` for text where there is no tokenizer, or one that does not make the number of
        tokens that the engine counted.
        """
        prompt = logged.prompt
        if isinstance(prompt, BlockIds):
            ids = self._salter.blocks(prompt.ids, prompt.scope)
            return dataclasses.replace(logged, prompt=BlockIds(ids=ids, block_size=prompt.block_size))
        if isinstance(prompt, BlockHashes):
            hashes = self._salter.blocks(prompt.hashes)
            return dataclasses.replace(logged, prompt=dataclasses.replace(prompt, hashes=hashes))
        if isinstance(prompt, Body) and self._tokenizer is None:
            raise UsageError(
                "text becomes blocks through the model's tokenizer only: name it with --tokenizer"
            )
        # tokens need no tokenizer
        request = replay_request(logged, self._tokenizer or ByteTokenizer())
        tokens = len(request.tokens)
        if logged.whole and logged.prompt_tokens not in {None, tokens}:
            raise UsageError(
                f"the engine counted {logged.prompt_tokens:,} prompt tokens, this tokenizer makes {tokens:,}"
            )
        if isinstance(request.output_tokens, int):
            request = dataclasses.replace(request, output_tokens=())
        chain = computed_chain(request, self._block_size, memo=self._memo)
        return dataclasses.replace(
            logged,
            prompt=BlockHashes(
                hashes=self._salter.blocks(chain),
                block_size=self._block_size,
                answer_hashed=not isinstance(logged.output, int),
            ),
            prompt_tokens=tokens,
            output=logged.output if isinstance(logged.output, int | None) else len(logged.output),
            salt=None,
        )
