"""How long a reader waits for a silent step."""

from shared.core.silence import Silence


def test_a_step_that_names_its_time_is_given_up_when_that_and_the_grace_are_over() -> None:
    silence = Silence(100.0, 5.0, grace_s=10.0, unnamed_s=1.0, overall_s=1.0)
    assert (silence.left_s(100.0), silence.left_s(114.0), silence.left_s(116.0)) == (15.0, 1.0, -1.0)


def test_what_is_heard_behind_the_time_gives_the_grace_anew_and_never_less() -> None:
    silence = Silence(100.0, 5.0, grace_s=10.0, unnamed_s=1.0)
    silence.heard(102.0)
    assert silence.left_s(102.0) == 13.0
    silence.heard(112.0)
    assert silence.left_s(112.0) == 10.0


def test_a_step_that_names_none_is_given_up_after_silence_or_after_all_of_its_time() -> None:
    silence = Silence(100.0, None, grace_s=10.0, unnamed_s=20.0, overall_s=50.0)
    assert silence.left_s(110.0) == 10.0
    silence.heard(140.0)
    assert silence.left_s(140.0) == 10.0
