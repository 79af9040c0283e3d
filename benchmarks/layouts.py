"""Render and assign a 2,000-token prompt layout, against jinja2 alone; and what naming a route costs.

    python benchmarks/layouts.py [--rounds 20000]

Each round does every contender once, in turn. Times are those of the thread on its core, so that what else
the machine does weighs less. What is timed:

- ``assign``     LivePolicy.decide on a route with a running experiment (arm by session)
- ``kvscope``    assign, check of all variables, render of the arm's variant: what the gateway does
- ``jinja2``     the same text as one template of jinja2's own sandbox, compiled once: no checks, no arm
- ``route``      RouteMiner.route on a prompt whose clock makes every system message new
"""

import argparse
import dataclasses
import gc
import itertools
import time
from collections.abc import Callable

import jinja2.sandbox

from kvscope.experiments.design import from_transforms
from kvscope.experiments.policy import LivePolicy
from kvscope.prompts.layouts.plan import compile_layout
from kvscope.prompts.layouts.schema import DEFAULT_VARIANT, parse_layout
from kvscope.prompts.routes import RouteMiner
from kvscope.prompts.transforms.variant import use_variant, variant_in

# 4 characters a token: about 2,000 tokens of rules, as a support assistant has them
RULE = "Answer in the language of the customer, and never promise what the table below does not hold. "
RULES = "\n".join(f"{number}. {RULE}" for number in range(1, 83))
LAYOUT = f"""
variables:
  product: {{enum: [shop, app, wholesale]}}
  customer: {{max_chars: 60, regex: "[\\\\p{{L}} .'-]+"}}
  tier: {{enum: [free, pro]}}
  orders: {{type: list, max_items: 20, max_chars: 40}}
  now: {{max_chars: 32, regex: "[0-9T:Z+. -]+"}}
segments:
  - name: rules
    role: system
    scope: global
    text: |
{RULES.replace(chr(10), chr(10) + "      ").join(("      ", ""))}
  - {{name: product, role: system, scope: project, text: "The customer uses the {{{{ product }}}}."}}
  - {{name: who, role: system, scope: session, text: "The customer is {{{{ customer }}}} ({{{{ tier }}}})."}}
  - name: orders
    role: system
    scope: session
    text: "Orders:{{% for order in orders %}} {{{{ order }}}};{{% endfor %}}"
  - {{role: messages}}
  - {{name: clock, role: user, scope: dynamic, text: "Current time: {{{{ now }}}}"}}
variants:
  late: {{without: [who], texts: {{clock: "{{{{ customer }}}} ({{{{ tier }}}}), {{{{ now }}}}"}}}}
"""
WHOLE = (
    RULES + "\n\nThe customer uses the {{ product }}.\n\nThe customer is {{ customer }} ({{ tier }})."
    "\n\nOrders:{% for order in orders %} {{ order }};{% endfor %}"
)
VALUES = {
    "product": "shop",
    "customer": "Ann O'Neil",
    "tier": "pro",
    "orders": ["A-1001", "A-1002", "A-1003"],
    "now": "2026-11-29T12:00:00Z",
}
BODY = {"model": "m", "messages": [{"role": "user", "content": "Where is my order?"}]}


def contenders() -> dict[str, Callable[[int], object]]:
    """Return what is compared; each takes the number of the round."""
    plan = compile_layout(parse_layout(LAYOUT, name="support"))
    planned = from_transforms((use_variant("late"),), route="support", name="bench", now=0.0, approved=True)
    policy = LivePolicy()
    policy.replace([dataclasses.replace(planned, started_at=0.0)], [])
    template = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(WHOLE)
    miner = RouteMiner()

    def assign(number: int) -> object:
        return policy.decide(route="support", session=f"s{number}", request_id="r", at=1.0)

    def kvscope(number: int) -> object:
        decision = policy.decide(route="support", session=f"s{number}", request_id="r", at=1.0)
        return plan.render(BODY, VALUES, variant_in(decision.transforms) or DEFAULT_VARIANT)

    def jinja(_: int) -> object:
        return template.render(VALUES)

    def route(number: int) -> object:
        system = f"Current time: 2026-11-29T{number % 24:02}:{number % 60:02}:{number % 59:02}Z\n{RULES}"
        body = {"model": "m", "messages": [{"role": "system", "content": system}, *BODY["messages"]]}
        return miner.route("chat", body, None)

    return {"assign": assign, "kvscope": kvscope, "jinja2": jinja, "route": route}


def main() -> None:
    """Time the contenders in turn and print quantiles and ratios."""
    parser = argparse.ArgumentParser(description="Layouts against jinja2 alone.")
    parser.add_argument("--rounds", type=int, default=20_000)
    rounds = parser.parse_args().rounds
    timed = contenders()
    taken: dict[str, list[int]] = {name: [] for name in timed}
    for number in range(200):
        for call in timed.values():
            call(number)
    gc.freeze()
    for number, (name, call) in itertools.product(range(rounds), timed.items()):
        began = time.thread_time_ns()
        call(number)
        taken[name].append(time.thread_time_ns() - began)
    print(f"characters of the prompt: {len(WHOLE):,}; rounds: {rounds:,}")
    for name, values in taken.items():
        values.sort()
        p50, p99 = (values[int(len(values) * share)] / 1000 for share in (0.5, 0.99))
        print(f"{name:8}  p50 {p50:8.1f} µs  p99 {p99:8.1f} µs")
    middle = {name: values[len(values) // 2] for name, values in taken.items()}
    print(f"kvscope ÷ jinja2 (p50): {middle['kvscope'] / middle['jinja2']:.2f}")


if __name__ == "__main__":
    main()
