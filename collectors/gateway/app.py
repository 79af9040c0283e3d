"""The ASGI application: tells inference requests from all others and hands them on."""

from collectors.gateway.incoming import Receive, Scope, Send
from collectors.gateway.inference import Inference
from collectors.gateway.layouts import Layouts
from collectors.gateway.metrics import GatewayMetrics
from collectors.gateway.passing import pass_through
from collectors.gateway.settings import GatewaySettings
from collectors.gateway.upstream import Upstreams
from kvscope.pipeline.contracts import CollectorContext
from kvscope.prompts.segments import CHAT, COMPLETION

_INFERENCE = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}


class GatewayApp:
    """Serves HTTP; every answer comes from an inference server, but for errors on the way to it."""

    def __init__(self, settings: GatewaySettings, context: CollectorContext, upstreams: Upstreams) -> None:
        self._upstreams = upstreams
        self.metrics = GatewayMetrics(context.registry)
        self.layouts = Layouts(settings.layouts, settings.layouts_poll_seconds, context.registry)
        self._inference = Inference(settings, context, upstreams, self.metrics, self.layouts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI 3 calls it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1011, "reason": "not passed on by kvscope"})
        elif scope["type"] == "http":
            api = _INFERENCE.get(scope["path"]) if scope["method"] == "POST" else None
            if api is None:
                await pass_through(scope, receive, send, self._upstreams)
            else:
                await self._inference.handle(api, scope, receive, send)
