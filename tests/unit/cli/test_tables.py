"""Tables in narrow terminals: folded between words or row by row, never cut."""

import pytest

from kvscope.cli.tables import print_table

ID = "d64aa5a0-c1d2-4e3f-8a9b-0c1d2e3f4a5b"


def printed(capsys: pytest.CaptureFixture[str], columns: list[str], row: list[str], width: int | None) -> str:
    print_table("Title", columns, [row], width=width)
    return capsys.readouterr().out


def test_what_fits_is_a_plain_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, ["id", "tokens saved a day"], [ID, "1,234"], 80)
    assert f"│ {ID} │ 1,234              │" in out


def test_prose_and_headings_are_folded_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    why = "the treatment is not worse than the baseline by more than the margin"
    out = printed(capsys, ["id", "tokens saved a day", "why"], [ID, "1,234", why], 80)
    assert f"│ {ID} │ 1,234 " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    cells = [line.split("│")[3].split() for line in out.splitlines() if line.startswith("│")]
    assert [word for cell in cells for word in cell] == why.split()


def test_what_does_not_fit_is_written_row_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [f"column {number}" for number in range(12)]
    out = printed(capsys, columns, [ID] * 12, 80)
    assert out.splitlines()[2:-1] == [f"  {column + ':':<10} {ID}" for column in columns]


def test_an_id_longer_than_the_terminal_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert "x" * 120 in printed(capsys, ["id", "n"], ["x" * 120, "1"], 80)


def test_a_pipe_gets_the_table_as_wide_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, [f"c{number}" for number in range(12)], [ID] * 12, None)
    assert ID + " │ " + ID in out
    assert "…" not in out
