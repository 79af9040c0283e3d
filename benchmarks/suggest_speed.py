"""From 100,000 requests of about 2,000 tokens to ranked suggestions: processor time of one core, and memory.

    python benchmarks/suggest_speed.py [--tokenizer DIR] [--requests 100000] [--routes 20]

The requests are made up: for each route rules with a clock in their first line, and a question each. They are
in memory before the clock starts, as prompts that share the text of their rules; reading a log is not in the
figures. The advisor looks at the newest 400 requests of a route within 4 million characters of all, so that
its time grows with the requests only in choosing these.
"""

import argparse
import json
import resource
import time
from collections import Counter
from pathlib import Path

from suggested_faults import tool_tokenizer

from kvscope.model.prompt import Prompt
from kvscope.tuning.advisor import advise

TOKENIZER = Path(__file__).parents[1] / "tests" / "data" / "tokenizer"
RULE = "Answer in the language of the customer, and never promise what the table below does not hold."


def prompts(count: int, routes: int) -> list[Prompt]:
    """Return requests of several routes in turn, a second apart."""
    rules = ["\n".join(f"{route}.{at}: {RULE}" for at in range(75)) for route in range(routes)]
    found = []
    for number in range(count):
        route = number % routes
        clock = f"Current time: 2026-11-29T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        messages = [
            {"role": "system", "content": clock},
            {"role": "system", "content": rules[route]},
            {"role": "user", "content": f"Question {number}: where is my order?"},
        ]
        body = {"model": "m", "messages": messages}
        found.append(
            Prompt(
                request_id=str(number),
                api="chat",
                route=f"route-{route}",
                arrived_at=float(number),
                body=body,
                sent_body=body,
                engine="e",
            )
        )
    return found


def main() -> None:
    """Time one round of advice and print what it took."""
    parser = argparse.ArgumentParser(description="Requests to suggestions.")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--routes", type=int, default=20)
    options = parser.parse_args()
    tokenizer = tool_tokenizer(options.tokenizer)
    made = prompts(options.requests, options.routes)
    held = _peak_mib()
    tokens = len(tokenizer.encode("chat", made[-1].sent_body))
    began, clock = time.process_time(), time.perf_counter()
    advice = advise(made, tokenizer=tokenizer, block_size=16, num_blocks=None, ttft=None, now=0.0)
    told = {
        "requests": len(made),
        "tokens_each": tokens,
        "routes": options.routes,
        "processor_seconds": round(time.process_time() - began, 1),
        "seconds": round(time.perf_counter() - clock, 1),
        "peak_mib_before": held,
        "peak_mib_after": _peak_mib(),
        "suggestions": dict(Counter(item.kind for item in advice.suggestions)),
    }
    print(json.dumps(told, indent=2))


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
