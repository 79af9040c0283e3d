"""Regular expressions of the values that vary from prompt to prompt.

Every repetition is bounded or possessive and every value starts at a word's start, so a search is linear in
the text whatever the text is.
"""

import re

_DAY_NAME = r"(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_MONTH_NAME = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_YEAR = r"(?:19|20)\d{2}"
_MONTH = r"(?:1[0-2]|0?[1-9])"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])"
_END = r"(?![A-Za-z0-9])"
_ORDINAL_DAY = rf"{_DAY}(?:st|nd|rd|th)?"
_ZONE = r"(?:[ ]?(?:Z|UTC|GMT|[ECMP][SD]T|CES?T|JST|IST)(?![A-Za-z])|[ ]?[+-](?:0\d|1[0-4]):?[0-5]\d(?!\d))"
_HALF = r"(?:[ \u00a0\u202f]?[AaPp]\.?[Mm](?![A-Za-z])\.?)"
_SECOND = r":[0-5]\d(?:[.,]\d{1,9})?|:60"
_CLOCK = rf"(?:(?:2[0-3]|[01]?\d):[0-5]\d(?:{_SECOND})?(?!\d){_HALF}?{_ZONE}?)"
_CJK_HALF = r"(?:凌晨|早上|上午|中午|下午|晚上|午前|午後|오전|오후)"
_HOUR = r"(?:2[0-3]|[01]?\d)"
_CJK_TIME = rf"{_HOUR}[ ]?[时時点點시][ ]?[0-5]?\d[ ]?[分분](?:[ ]?[0-5]?\d[ ]?[秒초])?"
_CJK_MINUTES = r"[:\uff1a][0-5]\d(?:[:\uff1a][0-5]\d)?(?!\d)"
_CJK_CLOCK = rf"(?:{_CJK_HALF}[ ]?(?:{_CJK_TIME}|{_HOUR}[时時点點시]|{_HOUR}{_CJK_MINUTES})|{_CJK_TIME})"
_CJK_DATE = (
    rf"(?:{_YEAR}[ ]?[年년][ ]?{_MONTH}[ ]?[月월](?:[ ]?{_DAY}[ ]?[日号號일])?"
    rf"|{_MONTH}[月월][ ]?{_DAY}[日号號일])"
    r"(?:[ ]?(?:星期|周|週)[一二三四五六日天])?"
)
_NUMERIC_DATE = rf"{_YEAR}(?P<sep>[-/.]){_MONTH}(?P=sep){_DAY}(?!\d)"
_COMPACT_DATE = rf"{_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_LOCAL_DATE = (
    rf"(?:{_MONTH}/{_DAY}|{_DAY}/{_MONTH})/(?:{_YEAR}|\d{{2}})(?!\d)|{_DAY}\.{_MONTH}\.{_YEAR}(?!\d)"
)
_WRITTEN_DATE = (
    rf"(?:{_DAY_NAME},?[ ])?(?:{_MONTH_NAME}[ ]{_ORDINAL_DAY},?[ ]{_YEAR}(?!\d)"
    rf"|{_ORDINAL_DAY}(?:[ ](?:of[ ])?|-){_MONTH_NAME},?[ -]{_YEAR}(?!\d))"
)
_WRITTEN_DAY = rf"(?:{_DAY_NAME},?[ ])?{_MONTH_NAME}[ ]{_DAY}(?:st|nd|rd|th)?{_END}"
_ASCTIME = rf"{_DAY_NAME}[ ]{_MONTH_NAME}[ ]{{1,2}}{_DAY}[ ]{_CLOCK}[ ]{_YEAR}(?!\d)"
_DATE = rf"(?:{_NUMERIC_DATE}|{_LOCAL_DATE}|{_WRITTEN_DATE})"
_BETWEEN = r"(?:T|t|,?[ ]{1,2}(?:at[ ])?|_)"
_TIMESTAMP = (
    rf"{_DATE}{_BETWEEN}{_CLOCK}|{_ASCTIME}|{_CJK_DATE}[ ]?(?:{_CJK_CLOCK}|{_CLOCK})"
    rf"|{_COMPACT_DATE}[T_-]?(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?(?!\d)Z?{_END}"
)

_URL = r"[A-Za-z][A-Za-z0-9+.-]{1,15}://[A-Za-z0-9._~:/?#@!$&*+,;=%-]{1,2048}"
_EMAIL = r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"
_UUID = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}" + _END
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP = (
    rf"{_OCTET}(?:\.{_OCTET}){{3}}(?![.\dA-Za-z])(?::\d{{1,5}})?"
    r"|(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}(?![A-Za-z0-9:])"
    r"|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6}(?![A-Za-z0-9:])"
)
_COMPOUND = r"(?=[A-Za-z_-]{1,64}+\d)[A-Za-z][A-Za-z0-9]{0,31}(?:[_-][A-Za-z0-9]{1,128}){1,8}"
_RUN = r"(?=[A-Za-z]*+\d)[A-Za-z0-9]++"
_NUMBER = r"\d++(?:[.,]\d++)*+%?"

_ALTERNATIVES = {
    "timestamp": _TIMESTAMP,
    "date": rf"{_DATE}|{_CJK_DATE}|{_WRITTEN_DAY}|{_COMPACT_DATE}{_END}",
    "url": _URL,
    "uuid": _UUID,
    "email": _EMAIL,
    "ip": _IP,
    "time": rf"{_CLOCK}|(?:2[0-3]|1?\d){_HALF}|{_CJK_CLOCK}",
    "compound": _COMPOUND,
    "run": _RUN,
}


def _numbered(pattern: str, name: str) -> str:
    """Give the back-reference inside ``pattern`` a name of its own."""
    return pattern.replace("?P<sep>", f"?P<sep_{name}>").replace("(?P=sep)", f"(?P=sep_{name})")


CANDIDATE = re.compile(
    # Where no value can begin, one test of the next character is all that is done.
    r"(?<![A-Za-z0-9])(?=[A-Za-z0-9凌早上中下晚午오])(?:"
    + "|".join(f"(?P<{name}>{_numbered(pattern, name)})" for name, pattern in _ALTERNATIVES.items())
    + ")",
    re.ASCII,
)
"""Finds the next value or word with a digit; the last matched group's name says which."""

NUMBER = re.compile(_NUMBER, re.ASCII)
DATE_WITHIN = re.compile(rf"(?<![A-Za-z0-9]){_YEAR}-{_MONTH}-{_DAY}(?!\d)", re.ASCII)
