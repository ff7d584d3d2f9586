"""Plots of schedules: every update of a short one, both ends of a long one."""

from drawn import check_nothing_is_cut_off, legend
from vaswani.insight.schedules import draw_schedules, drawn_updates


def test_drawn_updates_reach_from_the_first_to_the_last():
    assert drawn_updates(1) == [1]
    assert drawn_updates(7) == [1, 2, 3, 4, 5, 6, 7]
    many = drawn_updates(10**9)
    assert (many[0], many[-1], len(many)) == (1, 10**9, 1000)


def test_rates_are_drawn_at_their_updates():
    rates = {"paper": ([1, 2, 3], [0.1, 0.2, 0.1]), "_hidden": ([1, 4], [0.4, 0.0])}
    figure = draw_schedules(rates, dark=True)
    drawn = [tuple(map(list, line.get_data())) for line in figure.axes[0].lines]
    assert drawn == list(rates.values())
    check_nothing_is_cut_off(figure)
    assert "paper" in legend(figure)
