from shop import add, app, book

app.conf.task_always_eager = True


def test_messages_of_a_ticket_are_handled_in_order(bridge_handled):
    handled = bridge_handled(app)
    book.push_many([("T0", {"n": n}) for n in range(4)])

    assert [(one.payload["n"], one.attempt, one.state) for one in handled] == [
        (0, 1, "done"),
        (1, 1, "done"),
        (2, 1, "retried"),
        (2, 2, "retried"),
        (2, 3, "done"),
        (3, 1, "done"),
        (9, 1, "done"),
    ]
    assert handled[0].effects == (("RPUSH", "log:T0", "0"),)
    assert book.calls == 7


def test_ordinary_calls_are_celerys_own():
    assert add.delay(1, 2).get() == 3
    assert add(1, 2) == 3
    assert book.run("T0", {"n": 5}) == 5
    assert book.apply(("T0", {"n": 6})).get() == 6
