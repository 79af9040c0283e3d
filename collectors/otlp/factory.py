"""Entry point of the OTLP receiver."""

from collectors.otlp.receiver import OtlpReceiver
from collectors.otlp.settings import OtlpSettings
from kvscope.pipeline.contracts import CollectorFactory

FACTORY = CollectorFactory(name="otlp", settings=OtlpSettings, create=OtlpReceiver)
