"""What a batch's number means after those before it."""

from collectors.kv_events.sequence import Judgement, SequenceTracker


def _after(*handed_on: int, live: bool = True) -> SequenceTracker:
    tracker = SequenceTracker()
    for sequence in handed_on:
        if live:
            tracker.judge(sequence, float(sequence))
        tracker.handed_on(sequence, float(sequence), b"")
    return tracker


def test_numbers_in_order_are_next() -> None:
    tracker = SequenceTracker()
    assert tracker.judge(0, 0.0) is Judgement.NEXT
    tracker.handed_on(0, 0.0, b"")
    assert tracker.judge(1, 1.0) is Judgement.NEXT


def test_a_jump_is_a_gap_also_at_the_start() -> None:
    assert _after(0, 1).judge(4, 4.0) is Judgement.GAP
    assert SequenceTracker().judge(3, 3.0) is Judgement.GAP


def test_a_live_number_that_goes_back_is_a_restart() -> None:
    assert _after(0, 1, 2).judge(0, 3.0) is Judgement.RESTART
    assert _after(0, 1, 2).judge(2, 3.0) is Judgement.RESTART
    # also when the new engine's clock is behind
    assert _after(0, 1, 2).judge(0, -5.0) is Judgement.RESTART


def test_what_a_replay_brought_already_is_a_duplicate_and_no_restart() -> None:
    tracker = _after(0, 1, 2, live=False)
    assert tracker.judge(1, 1.0) is Judgement.DUPLICATE
    assert tracker.judge(2, 2.0) is Judgement.DUPLICATE
    assert tracker.judge(3, 3.0) is Judgement.NEXT


def test_a_restart_right_after_a_replay_is_told_by_its_time() -> None:
    assert _after(0, 1, 2, live=False).judge(0, 9.0) is Judgement.RESTART


def test_after_a_restart_numbers_begin_at_zero() -> None:
    tracker = _after(0, 1, 2)
    assert tracker.judge(1, 9.0) is Judgement.RESTART
    tracker.restarted()
    assert tracker.expected == 0
