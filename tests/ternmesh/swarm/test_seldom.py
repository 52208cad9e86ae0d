from ternmesh.swarm.seldom import ASKERS_MAX, Seldom


def test_who_asks_often_is_answered_seldom() -> None:
    seldom = Seldom(1.0)
    answered = [now for now in range(0, 50) if seldom.may("theo", now / 10)]
    assert answered == [0, 10, 20, 30, 40]
    assert seldom.may("yan", 4.9)


def test_it_remembers_so_many_and_no_more() -> None:
    seldom = Seldom(1.0)
    for index in range(ASKERS_MAX + 10):
        assert seldom.may(str(index), 0.0)
    assert len(seldom) == ASKERS_MAX
    assert not seldom.may(str(ASKERS_MAX), 0.5)
