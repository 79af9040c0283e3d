# ruff: noqa: E501 - sentences are data here
"""The tools of the demo's agent route, in the shape of OpenAI's API; written for kvscope."""

from typing import Any

Tool = dict[str, Any]


def _tool(name: str, description: str, **parameters: tuple[str, str]) -> Tool:
    """Return a tool whose parameters are given as ``name=(type, description)``; all are required."""
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(parameters)},
        },
    }


AGENT_TOOLS: tuple[Tool, ...] = (
    _tool(
        "list_machines",
        "List the virtual machines of a project with their state, group and zone, at most fifty at a time.",
        project=("string", "Short name of the project, as it stands on the ticket."),
        state=("string", "One of running, stopped, failed or any."),
        page=("integer", "Page number, from 1."),
    ),
    _tool(
        "describe_machine",
        "Show one machine: its size, image, disks, addresses, the last ten events and who changed it last.",
        machine=("string", "Identifier of the machine, eight letters and digits."),
    ),
    _tool(
        "restart_machine",
        "Restart one machine. It asks the system inside to shut down and waits up to two minutes before it cuts the power.",
        machine=("string", "Identifier of the machine."),
        ticket=("string", "Number of the ticket that asks for the restart."),
    ),
    _tool(
        "resize_machine",
        "Change the size of a stopped machine. The disks keep their contents; the price changes from the next full hour.",
        machine=("string", "Identifier of the machine."),
        size=("string", "Name of the new size from the price list."),
        ticket=("string", "Number of the ticket."),
    ),
    _tool(
        "read_metrics",
        "Read one metric of a machine or a volume as a list of values, one a minute, the newest last.",
        resource=("string", "Identifier of the machine or the volume."),
        metric=("string", "One of cpu, memory, disk_read, disk_write, network_in, network_out."),
        minutes=("integer", "How far back, in minutes, at most 1440."),
    ),
    _tool(
        "read_log",
        "Read the last lines of a machine's system log. Secrets are blacked out before they get here.",
        machine=("string", "Identifier of the machine."),
        lines=("integer", "How many lines, at most 200."),
        contains=("string", "Only lines with this text; empty for all."),
    ),
    _tool(
        "list_volumes",
        "List the volumes of a project with size, use, the machine they hang on and the time of the last write.",
        project=("string", "Short name of the project."),
    ),
    _tool(
        "create_snapshot",
        "Take a snapshot of a volume. It is kept for thirty days and costs as much as a tenth of the volume.",
        volume=("string", "Identifier of the volume."),
        note=("string", "Why it is taken, in one sentence."),
        ticket=("string", "Number of the ticket."),
    ),
    _tool(
        "open_port",
        "Open a port of a machine's group to a range of addresses for a limited time.",
        group=("string", "Name of the group of machines."),
        port=("integer", "The port, 1 to 65535."),
        addresses=("string", "Range of addresses in CIDR form; never the whole internet."),
        hours=("integer", "For how many hours, at most 72."),
    ),
    _tool(
        "write_ticket",
        "Add a note to the ticket that the customer can read. Short, polite, without internal names.",
        ticket=("string", "Number of the ticket."),
        text=("string", "The note."),
    ),
    _tool(
        "ask_person",
        "Stop and ask the person on duty. Use it when a result contradicts the ticket or a rule stands in the way.",
        ticket=("string", "Number of the ticket."),
        question=("string", "One question that can be answered in one sentence."),
    ),
)
