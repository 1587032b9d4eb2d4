"""``bridge_schedule``: its times are exact, and what cannot work is refused in one line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import bridge
from bridge.master.schedule_entries import entries_of
from bridge.routing.errors import ConfigurationError
from bridge.settings.schedule import LONGEST_S, Crontab, Every, Scheduled

BERLIN = ZoneInfo("Europe/Berlin")
GOOD = {"task": "shop.close", "ticket": "T1", "every": 60}


def shop(entry: Any, name: Any = "nightly", **conf: Any) -> Celery:
    app = Celery("shop", broker="redis://localhost:1/0", set_as_current=False)
    bridge.install(app)

    @app.task(bind=True, name="shop.close", shared=False)
    def close(self: Any, ticket_id: str, payload: Any) -> None: ...

    @app.task(name="shop.free", shared=False, base=Celery("other", set_as_current=False).Task)
    def free() -> None: ...

    app.conf.update(bridge_default_task="shop.close", bridge_schedule={name: entry}, **conf)
    app.finalize()
    return app


def ms(text: str, zone: Any = UTC) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp() * 1000)


def shown(at_ms: int, zone: Any = UTC) -> str:
    return datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


def test_an_interval_ticks_at_its_multiples_wherever_it_is_asked() -> None:
    every = Every(5000)
    assert [every.after(at) for at in (0, 1, 4999, 5000, 9999)] == [5000, 5000, 5000, 10_000, 10_000]
    assert every.latest(5000, 9999) is None
    assert every.latest(5000, 10_000) == 10_000
    assert every.latest(5000, 99_999) == 95_000


@given(ms=st.integers(1000, LONGEST_S * 1000))
def test_the_text_of_an_interval_is_exact(ms: int) -> None:
    number = Every(ms).text.removeprefix("every ").removesuffix(" s")
    assert Decimal(number) * 1000 == ms
    assert not set(number) - set("0123456789."), "no power of ten"


def test_the_texts_of_usual_intervals_are_those_that_are_stored() -> None:
    for seconds in (1, 1.5, 2.25, 60, 100, 90.125, 3600, 86_400, 604_800):
        assert Every(round(seconds * 1000)).text == f"every {seconds:g} s"


@pytest.mark.parametrize("text", ["0 3 * * *", "*/5 * * * *", "30 2 * * 1-5", "0 0 29 2 *", "15,45 8-18 1 */3 *"])
@pytest.mark.parametrize("zone", [UTC, BERLIN, ZoneInfo("Australia/Lord_Howe")], ids=str)
def test_the_latest_tick_is_the_last_of_all_that_follow(text: str, zone: Any) -> None:
    times = Crontab(crontab.from_string(text), zone)
    start = ms("2024-03-30T00:00", zone)
    ticks = []
    at = start
    for _ in range(300):
        following = times.after(at)
        assert following > at
        ticks.append(following)
        at = following
    assert times.latest(start, ticks[0] - 1) is None
    for last in (0, 1, 7, 150, 299):
        assert times.latest(start, ticks[last]) == ticks[last]
        if last < 299:
            assert times.latest(start, ticks[last + 1] - 1) == ticks[last]


def test_a_tick_in_the_hour_that_summer_time_leaves_out_or_repeats_comes_once() -> None:
    times = Crontab(crontab.from_string("30 2 * * *"), BERLIN)
    at = ms("2026-03-28T00:00", BERLIN)
    spring = [at := times.after(at) for _ in range(3)]
    assert [shown(tick, BERLIN) for tick in spring] == [
        "2026-03-28 02:30:00",
        "2026-03-29 03:30:00",
        "2026-03-30 02:30:00",
    ]
    at = ms("2026-10-24T00:00", BERLIN)
    autumn = [at := times.after(at) for _ in range(3)]
    assert [shown(tick) for tick in autumn] == ["2026-10-24 00:30:00", "2026-10-25 00:30:00", "2026-10-26 01:30:00"]


#: Zones, and a moment shortly before their clocks go forward or back: by an hour, half an hour, two hours, a day.
CHANGES = [
    ("Europe/Berlin", "2026-03-29T00:30"),
    ("Europe/Berlin", "2026-10-25T00:30"),
    ("America/Havana", "2026-03-08T04:30"),
    ("Australia/Lord_Howe", "2026-04-04T14:30"),
    ("Australia/Lord_Howe", "2026-10-03T15:00"),
    ("Antarctica/Troll", "2026-03-29T00:30"),
    ("Pacific/Chatham", "2026-09-26T13:30"),
    ("Pacific/Apia", "2011-12-30T09:30"),
    ("Asia/Tokyo", "2026-03-29T00:30"),
]
MINUTES, HOURS = (
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.sets(st.integers(0, 23), min_size=1, max_size=4),
)


@given(st.sampled_from(CHANGES), MINUTES, HOURS | HOURS.map(lambda hours: {hour % 4 for hour in hours}))
@settings(max_examples=60, deadline=None)
def test_each_time_of_the_clock_comes_once_and_that_much_later_if_it_is_left_out(
    change: tuple[str, str], minutes: set[int], hours: set[int]
) -> None:
    zone = ZoneInfo(change[0])
    middle = ms(change[1])
    first, last = middle - 86_400_000, middle + 2 * 86_400_000
    day = datetime.fromtimestamp(middle / 1000, zone).replace(hour=0, minute=0, second=0, tzinfo=None)
    clock = [
        day + timedelta(days=days, hours=hour, minutes=minute)
        for days in range(-3, 6)
        for hour in hours
        for minute in minutes
    ]
    # What a zone makes of a time that its clock leaves out is as much later as the clock jumps.
    wanted = sorted({int(at.replace(tzinfo=zone).timestamp() * 1000) for at in clock})
    times = Crontab(crontab(minute=minutes, hour=hours), zone)
    found, at = [], first
    while (at := times.after(at)) <= last:
        found.append(at)
    assert found == [at for at in wanted if first < at <= last]
    assert times.latest(first, last) == (found[-1] if found else None)


def test_the_times_are_in_the_zone_of_the_entry_or_else_of_the_app() -> None:
    entry = Scheduled(task="t", ticket=("T",), crontab="0 3 * * *")
    assert shown(entry.times(BERLIN).after(ms("2026-07-01T00:00"))) == "2026-07-01 01:00:00"
    own = Scheduled(task="t", ticket=("T",), crontab="0 3 * * *", timezone="Asia/Tokyo")
    assert shown(own.times(BERLIN).after(ms("2026-07-01T00:00"))) == "2026-07-01 18:00:00"
    assert own.times(BERLIN).text == "crontab 0 3 * * * Asia/Tokyo"


@pytest.mark.parametrize(
    ("zone", "left_out", "comes"),
    [
        ("Europe/Berlin", "2026-03-29T02:10", "2026-03-29 03:10:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:10", "2026-10-04 02:40:00"),
    ],
)
def test_a_time_that_summer_time_leaves_out_comes_later_by_the_shift(zone: str, left_out: str, comes: str) -> None:
    of = ZoneInfo(zone)
    at = datetime.fromisoformat(left_out)
    times = Crontab(crontab.from_string(f"{at.minute} {at.hour} * * *"), of)
    assert shown(times.after(ms(f"{left_out[:10]}T01:00", of)), of) == comes


def test_the_limits_of_an_interval_are_those_that_the_page_names() -> None:
    assert "1 s to 366 days" in str(Scheduled.model_fields["every"].description)
    for possible in (1.0, timedelta(days=366)):
        assert Scheduled.model_validate({"task": "t", "ticket": "T", "every": possible}).every
    for impossible in (0.999, timedelta(days=366, seconds=1)):
        with pytest.raises(ValidationError):
            Scheduled.model_validate({"task": "t", "ticket": "T", "every": impossible})


def test_what_an_entry_may_be() -> None:
    for when in ({"crontab": "0  3 * * *"}, {"crontab": crontab(minute="0", hour="3")}, {"every": timedelta(days=1)}):
        [entry] = entries_of(shop({"task": "shop.close", "ticket": ["A", 7], "payload": {"n": 1}, **when}))
        assert entry.messages(5) == ((b"A", b'{"n":1}'), (b"7", b'{"n":1}'))
    [entry] = entries_of(shop({**GOOD, "tick": "at"}))
    assert entry.messages(5) == ((b"T1", b'{"at":5}'),)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            {**GOOD, "cron": "x"},
            "unknown setting bridge_schedule.nightly.cron; did you mean bridge_schedule.nightly.crontab?",
        ),
        ({"task": "shop.close", "ticket": "T"}, "bridge_schedule.nightly: must have either crontab or every"),
        ({**GOOD, "crontab": "0 3 * * *"}, "must have either crontab or every"),
        ({"ticket": "T", "every": 5}, "bridge_schedule.nightly.task: field required"),
        ({"task": "shop.close", "every": 5}, "bridge_schedule.nightly.ticket: field required"),
        ({**GOOD, "every": 0.5}, "bridge_schedule.nightly.every: input should be greater than or equal to 1"),
        ({**GOOD, "every": float("nan")}, "bridge_schedule.nightly.every: must be seconds"),
        ({**GOOD, "every": 1e12}, "bridge_schedule.nightly.every: input should be less than or equal"),
        ({**GOOD, "every": "5"}, "bridge_schedule.nightly.every: input should be a valid number"),
        ({**GOOD, "every": True}, "bridge_schedule.nightly.every"),
        ({**GOOD, "timezone": "UTC"}, "has a timezone, which only a crontab can have"),
        ({**GOOD, "ticket": []}, "must be a ticket, or a list of tickets"),
        ({**GOOD, "ticket": ["A", "A"]}, "names a ticket twice"),
        ({**GOOD, "ticket": [1.5]}, "bridge_schedule.nightly.ticket"),
        ({**GOOD, "ticket": ""}, "ticket_id must have 1 to 512 bytes"),
        ({**GOOD, "ticket": [str(n) for n in range(501)]}, "at most 500"),
        ({**GOOD, "payload": object()}, "bridge_schedule.nightly: the payload cannot be written as JSON"),
        ({**GOOD, "payload": "x" * 3_000_000}, "bridge_max_payload allows"),
        ({**GOOD, "payload": "x" * 600_000, "ticket": ["A", "B"]}, "a tick may have 1,048,576: use several entries"),
        ({**GOOD, "payload": [], "tick": "at"}, "has a tick, which only a payload that is a dict can take"),
        ({**GOOD, "task": "shop.clsoe"}, "the app has no task 'shop.clsoe'; did you mean shop.close?"),
        ({**GOOD, "every": None, "crontab": "0 3 * *"}, "'0 3 * *' has 4"),
        ({**GOOD, "every": None, "crontab": "0 25 * * *"}, "'0 25 * * *' is no crontab"),
        ({**GOOD, "every": None, "crontab": "x 3 * * *"}, "'x 3 * * *' is no crontab"),
        ({**GOOD, "every": None, "crontab": "0 0 31 2 *"}, "0 0 31 2 *"),
        ({**GOOD, "every": None, "crontab": 5}, "must be five fields in a text"),
        ({**GOOD, "every": None, "crontab": "0 3 * * *", "timezone": "Mars/Base"}, "'Mars/Base' is no time zone"),
        ({**GOOD, "every": None, "crontab": "0 3 * * *", "timezone": "../../etc"}, "is no time zone"),
        ("daily", "bridge_schedule.nightly: input should be a valid dictionary"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_work_is_refused_in_one_line(entry: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        entries_of(shop(entry))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", 5, "x" * 101])
def test_names_of_entries(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot name an entry"):
        entries_of(shop(GOOD, name))


@pytest.mark.parametrize("value", [[GOOD], 5, "x"])
def test_the_setting_is_a_dict(value: Any) -> None:
    app = shop(GOOD)
    app.conf.bridge_schedule = value
    with pytest.raises(ConfigurationError, match="bridge_schedule: must be a dict from name to entry"):
        entries_of(app)
