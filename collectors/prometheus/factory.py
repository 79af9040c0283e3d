"""Entry point of the metrics scraper."""

from collectors.prometheus.scraper import Scraper
from collectors.prometheus.settings import PrometheusSettings
from kvscope.pipeline.contracts import CollectorFactory

FACTORY = CollectorFactory(name="prometheus", settings=PrometheusSettings, create=Scraper)
