import dataclasses
from collections.abc import Callable

from kvscope.experiments.assignment import arm_for, arm_of_slice, bucket
from kvscope.model.advice import Experiment, Unit

MakeExperiment = Callable[..., Experiment]


def test_buckets_are_the_same_in_every_process() -> None:
    # written down: a change of the hash would move running sessions to the other arm
    assert [round(bucket("exp-1", f"s:{n}"), 6) for n in range(3)] == [0.868332, 0.346284, 0.68369]
    assert 0 <= min(bucket("e", str(n)) for n in range(2000)) < 0.01
    assert 0.99 < max(bucket("e", str(n)) for n in range(2000)) < 1


def test_a_session_stays_in_its_arm_and_shares_are_kept(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(share=0.3)
    arms = {}
    for n in range(4000):
        chosen = {
            arm_for(experiment, session=f"s{n}", request_id=f"r{n}-{k}", at=float(k)).name for k in (0, 1)
        }
        assert len(chosen) == 1
        arms[n] = chosen.pop()
    # 4000 sessions at 0.3: four standard deviations are 0.029
    assert abs(list(arms.values()).count("treatment") / 4000 - 0.3) < 0.029


def test_without_a_session_the_request_is_the_unit(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    names = [arm_for(experiment, session=None, request_id=f"r{n}", at=0.0).name for n in range(100)]
    assert set(names) == {"baseline", "treatment"}


def test_a_ramp_up_takes_no_session_from_the_treatment(make_experiment: MakeExperiment) -> None:
    small = make_experiment(share=0.1)
    large = dataclasses.replace(make_experiment(share=0.6), id=small.id)

    def treated(experiment: Experiment) -> set[int]:
        return {
            n for n in range(500) if not arm_for(experiment, session=f"s{n}", request_id="r", at=0.0).baseline
        }

    assert treated(small) < treated(large)


def test_experiments_split_sessions_independently(make_experiment: MakeExperiment) -> None:
    first, second = make_experiment(now=1.0), make_experiment(now=2.0)

    def treated(experiment: Experiment, n: int) -> bool:
        return not arm_for(experiment, session=f"s{n}", request_id="r", at=0.0).baseline

    both = sum(treated(first, n) and treated(second, n) for n in range(2000))
    assert abs(both / 2000 - 0.25) < 0.04


def test_time_slices_come_in_pairs_of_both_arms_in_random_order(make_experiment: MakeExperiment) -> None:
    experiment = dataclasses.replace(
        make_experiment(unit=Unit.TIME_SLICE, slice_seconds=30.0), started_at=1000.0
    )
    orders = []
    for pair in range(100):
        first, second = arm_of_slice(experiment, 2 * pair), arm_of_slice(experiment, 2 * pair + 1)
        assert {first.name, second.name} == {"baseline", "treatment"}
        orders.append(first.name)
    assert 30 < orders.count("treatment") < 70
    # one slice: one arm, whoever asks
    asked = [arm_for(experiment, session=f"s{n}", request_id="r", at=1000.0 + n) for n in range(30)]
    assert asked == [arm_of_slice(experiment, 0)] * 30
