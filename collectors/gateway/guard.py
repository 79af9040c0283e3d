"""Holds requests to their deadlines: one whose first token would come too late is told so at once."""

import math
from collections.abc import Sequence
from typing import Literal

from collectors.gateway.call import Call
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.relay import Relay
from collectors.gateway.replica import Replica
from collectors.gateway.upstream import Upstreams
from kvscope.pipeline.contracts import LatencyForecast


class Guard:
    """Refuses or diverts requests that would miss their deadline; lets pass what nobody can foretell."""

    def __init__(
        self,
        action: Literal["off", "reject", "fallback"],
        forecast: LatencyForecast,
        upstreams: Upstreams,
        metrics: GatewayMetrics,
    ) -> None:
        self._action = action
        self._forecast = forecast
        self._upstreams = upstreams
        self._metrics = metrics

    def admit(self, call: Call, servers: Sequence[Replica], relay: Relay) -> Sequence[Replica]:
        """Return the servers that the call may go to, in order; none where it was refused.

        Those come first that are expected to keep the deadline.
        """
        if self._action == "off" or call.deadline_seconds is None or call.sent_body is None:
            return servers
        late: list[float] = []
        with self._metrics.fail_open("forecast"):
            in_time = []
            for server in servers:
                foretold = self._forecast.ttft_seconds(
                    call.api, call.sent_body, engine=server.url, in_flight=server.in_flight
                )
                if foretold is None or foretold <= call.deadline_seconds:
                    in_time.append(server)
                else:
                    late.append(foretold)
            if in_time:
                return in_time
        if not late:
            return servers
        return self._without_hope(call, min(late), relay)

    def _without_hope(self, call: Call, soonest: float, relay: Relay) -> Sequence[Replica]:
        self._metrics.late.labels(self._action).inc()
        fallback = self._upstreams.fallback
        if fallback is not None:
            return (fallback,)
        wait = soonest - (call.deadline_seconds or 0.0)
        message = (
            f"the first token is expected after {soonest:.2f} s, later than the deadline"
            f" of {call.deadline_seconds:g} s; try again later or allow more time"
        )
        retry = [(b"retry-after", str(max(1, math.ceil(wait))).encode())]
        relay.refuse(message, "DeadlineExceeded", 503, retry)
        return ()
