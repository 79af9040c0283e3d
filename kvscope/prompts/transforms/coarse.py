"""Makes a changing line change less often, or takes it out."""

import re
from collections.abc import Sequence

from kvscope.errors import UsageError
from kvscope.model.prompt import Risk
from kvscope.prompts.transforms.base import Body, Params, Transform
from kvscope.prompts.transforms.lines import check_lines, keys_by_role, lines_told, map_lines
from kvscope.prompts.values import ValueKind, find_values

_SECONDS = {"minute": 60, "hour": 3600, "day": 86_400}
_CLOCK = re.compile(r"(?<!\d)(\d{1,2})(:\d{2})(:\d{2})?([.,]\d{1,9})?(?![\d:])")
_TWELVE_HOURS = re.compile(r"(?i)[ap]\.?m")
_EPOCH_UNITS = {10: 1, 13: 1_000, 16: 1_000_000, 19: 1_000_000_000}  # digits -> units a second


def _coarsen(api: str, body: Body, params: Sequence[Params]) -> Body:
    steps: dict[tuple[str, str], int] = {}
    for each in params:
        for key in each["line_keys"]:
            place = each["role"], key
            steps[place] = max(steps.get(place, 0), _SECONDS[each["to"]])
    return map_lines(
        api, body, keys_by_role(params), lambda role, key, line: _coarse_line(line, steps[role, key])
    )


def _coarse_line(line: str, seconds: int) -> str:
    """Return the line with each time of day rounded down; dates, ids and what is no time stay."""
    pieces: list[str] = []
    position = 0
    for span in find_values(line):
        if span.kind in (ValueKind.TIMESTAMP, ValueKind.TIME):
            pieces += line[position : span.start], _coarse_value(line[span.start : span.end], seconds)
            position = span.end
    return "".join([*pieces, line[position:]])


def _coarse_value(value: str, seconds: int) -> str:
    if value.isdigit():
        unit = _EPOCH_UNITS.get(len(value))
        return value if unit is None else str(int(value) - int(value) % (seconds * unit))
    if _TWELVE_HOURS.search(value) and seconds > _SECONDS["hour"]:
        return value  # of twelve hours the first is written 12, so rounding down to the day is none to 00
    return _CLOCK.sub(lambda found: _coarse_clock(found, seconds), value, count=1)


def _coarse_clock(found: re.Match[str], seconds: int) -> str:
    hours, minutes, rest, fraction = found.groups()
    if seconds >= _SECONDS["day"]:
        hours = "0" * len(hours)
    if seconds >= _SECONDS["hour"]:
        minutes = ":00"
    zeros = fraction and fraction[0] + "0" * (len(fraction) - 1)
    return f"{hours}{minutes}{':00' if rest else ''}{zeros or ''}"


def _drop(api: str, body: Body, params: Sequence[Params]) -> Body:
    return map_lines(api, body, keys_by_role(params), lambda _role, _key, _line: None)


def _check_coarse(params: Params) -> None:
    check_lines("coarsen_volatile", params, more={"to": _SECONDS})
    if "to" not in params:
        raise UsageError(f"coarsen_volatile needs `to`: one of {', '.join(_SECONDS)}")


COARSEN_VOLATILE = Transform(
    kind="coarsen_volatile",
    risk=Risk.QUALITY,
    describe=lambda params: (
        f"Rounds the time of day in {lines_told(params)} down to the {params.get('to')}; dates, ids and"
        " what is no time stay."
    ),
    apply=_coarsen,
    check=_check_coarse,
)
DROP_VOLATILE = Transform(
    kind="drop_volatile",
    risk=Risk.QUALITY,
    describe=lambda params: f"Takes {lines_told(params)} out.",
    apply=_drop,
    check=lambda params: check_lines("drop_volatile", params),
)
