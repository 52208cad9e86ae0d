from collections import Counter

from bench.adversary import Attack, Pace, Run, result


def test_what_is_accepted_hidden_lost_or_changed_shows_in_the_figures() -> None:
    shown = Counter({"seal": 7, "length": 1})
    refused = Attack("bits", 7, 7, Counter({"seal": 7}))
    passed = Attack("more bits", 9, 8, Counter({"seal": 8}))
    control = Attack("control", 5, 2)
    peace = Run((), Counter(), 0, "one")
    calm, slow = Pace(3.0, 0.1), Pace(1.9, 1.1)
    good = result(Run([refused], shown, 0, "one"), peace, control, [calm, calm], quick=False)
    assert all(figure.holds is not False for figure in good.figures.values())
    paces = [calm, calm, slow]
    bad = result(Run([refused, passed], shown, 1, "two"), peace, control, paces, quick=False)
    assert {name for name, figure in bad.figures.items() if figure.holds is False} == {
        "frames_accepted",
        "honest_rounds_lost",
        "attacks_visible",
        "adapter_unchanged",
        "flood_rounds_kept",
        "flood_status_s",
    }
    assert bad.figures["frames_accepted"].value == 1
