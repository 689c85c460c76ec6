"""Text for people: what every table of the package is laid out by."""

from cudnnlite.texts import aligned, counted, figure, printable, yes_or_no


def test_numbers_stand_to_the_right_and_lines_end_with_a_character():
    rows = [("count", "problem", "ms"), ("1", "a", "0.1"), ("12", "longer name", "")]
    assert aligned(rows, ("count", "ms")) == [
        "count  problem       ms",
        "    1  a            0.1",
        "   12  longer name",
    ]
    assert aligned(rows[:1]) == ["count  problem  ms"]


def test_a_table_may_be_a_heading_alone_or_nothing_to_the_right():
    assert aligned([("a", "b"), ("long", "x")]) == ["a     b", "long  x"]


def test_things_are_counted():
    assert [counted(number, "problem") for number in (0, 1, 2)] == [
        "0 problems",
        "1 problem",
        "2 problems",
    ]
    assert counted(2, "entry", "entries") == "2 entries"


def test_what_cannot_be_shown_is_marked():
    assert printable("a\x00b\nc\ud800 ü卷") == "a�b�c� ü卷"


def test_what_is_not_known_is_empty():
    assert [figure(None), yes_or_no(None)] == ["", ""]
    assert [figure(0.125), figure(1.5, ".2f")] == ["0.125", "1.50"]
    assert [yes_or_no(True), yes_or_no(False)] == ["yes", "no"]
