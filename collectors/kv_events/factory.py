"""Entry point of the KV-event subscriber."""

from collectors.kv_events.settings import KvEventsSettings
from collectors.kv_events.subscriber import KvEventSubscriber
from kvscope.pipeline.contracts import CollectorFactory

FACTORY = CollectorFactory(name="kv_events", settings=KvEventsSettings, create=KvEventSubscriber)
