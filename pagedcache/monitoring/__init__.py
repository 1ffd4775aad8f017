"""What a cache tells the outside: events for routers, and numbers for Prometheus.

Nothing runs, and nothing is imported beyond the library, until it is asked for: `KVEventExporter` needs the extra
``events`` (msgspec, pyzmq), `CacheMetrics` the extra ``metrics`` (prometheus-client).
"""

from pagedcache.monitoring.exporter import EventSink, KVEventExporter
from pagedcache.monitoring.kv_events import encode_events
from pagedcache.monitoring.prometheus import CacheMetrics
from pagedcache.monitoring.zmq_publisher import ZmqPublisher

__all__ = ["CacheMetrics", "EventSink", "KVEventExporter", "ZmqPublisher", "encode_events"]
