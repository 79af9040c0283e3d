"""Publishes the cache's changes as vLLM 0.24 and later do: ZMQ, msgpack, one map an event."""

import msgspec
import zmq

from kvscope.clock import Clock
from kvscope.demo.engine.core import CacheChange
from kvscope.errors import ConfigError

_TOPIC = b"kv"


class EventPublisher:
    """A PUB socket; a slow subscriber loses messages and never slows the engine."""

    def __init__(self, endpoint: str, *, block_size: int, clock: Clock) -> None:
        self._clock = clock
        self._block_size = block_size
        self._sequence = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 500)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"cannot publish on {endpoint} ({error.strerror}); choose another with --kv-events"
            ) from error

    def publish(self, change: CacheChange) -> None:
        """Send one batch: removals first, for they made the room."""
        where = {"medium": "GPU", "group_idx": 0}
        events: list[dict[str, object]] = [
            {"type": "BlockRemoved", "block_hashes": [block], **where} for block in change.removed
        ]
        for stored in change.stored:
            salt = None if stored.salt is None or stored.parent is not None else [stored.salt]
            events.append(
                {
                    "type": "BlockStored",
                    "block_hashes": stored.ids,
                    "parent_block_hash": stored.parent,
                    "token_ids": stored.tokens,
                    "block_size": self._block_size,
                    "lora_id": None,
                    "lora_name": None,
                    "extra_keys": [salt] + [None] * (len(stored.ids) - 1),
                    "kv_cache_spec_kind": "full_attention",
                    **where,
                }
            )
        payload = msgspec.msgpack.encode([self._clock(), events, 0])
        self._socket.send_multipart([_TOPIC, self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1

    def close(self) -> None:
        """Close the socket after what was published has left."""
        self._socket.close()
        self._context.term()
