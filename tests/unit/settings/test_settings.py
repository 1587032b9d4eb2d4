"""What a configuration may contain. Each refusal is one line that names the setting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import VERSION, Celery

from bridge.app.installation import install
from bridge.app.task_options import check_task_options, check_tasks
from bridge.routing.errors import ConfigurationError
from bridge.settings.app import NAMES, read_settings
from bridge.settings.retries import Backoff


def app(broker: str | None = "redis://127.0.0.1:6379/0", **settings: Any) -> Celery:
    made = Celery("shop", broker=broker, set_as_current=False)
    made.conf.update(settings)
    return made


def nothing() -> None:
    """A task."""


async def waits(self: Any, lost: Any, ticket_id: str, payload: Any) -> None:
    """A rollback that is async, so a call would not run it."""


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(app(**settings))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


SUBSCRIPTIONS: list[tuple[Any, str]] = [
    (None, "bridge_subscriptions must be a dict of at least one subscription"),
    (["billing"], "bridge_subscriptions must be a dict of at least one subscription"),
    ({"a b": {}}, "bridge_subscriptions: 'a b' cannot name a subscription"),
    ({"a": 5}, "bridge_subscriptions['a'] must be a dict, not 5"),
    ({"a": {"tsak": "x"}}, "bridge_subscriptions['a']: unknown option 'tsak'; did you mean 'task'?"),
    (
        {"a": {"backoff": {"bas": 1}}},
        "bridge_subscriptions['a']: unknown option 'backoff.bas'; did you mean 'backoff.base'?",
    ),
    (
        {"a": {"breaker": {"shares": 1}}},
        "bridge_subscriptions['a']: unknown option 'breaker.shares'; did you mean 'breaker.share'?",
    ),
    (
        {"a": {"max_lag": {"cuont": 1}}},
        "bridge_subscriptions['a']: unknown option 'max_lag.cuont'; did you mean 'max_lag.count'?",
    ),
    ({"a": {"task": 5}}, "bridge_subscriptions['a']: task must be the name of a task, not 5"),
    ({"a": {"lease": 5}}, "bridge_subscriptions['a']: lease is the same for all subscriptions: set bridge_lease"),
    ({"a": {"max_attempts": 0}}, "bridge_subscriptions['a']: max_attempts: input should be greater than or equal to 1"),
    ({"a": {"filter": {}}}, "bridge_subscriptions['a']: filter"),
    ({"a": {"filter": {"kind": []}}}, "bridge_subscriptions['a']: filter: 'kind' has no values"),
    (
        {"a": {"filter": {"kind": [{"x": 1}]}}},
        "bridge_subscriptions['a']: filter: {'x': 1} of 'kind' cannot be compared",
    ),
    ({"a": {"filter": {"kind": float("nan")}}}, "bridge_subscriptions['a']: filter: nan of 'kind' cannot be compared"),
    ({"a": {"filter": {"payload": "x"}}}, "bridge_subscriptions['a']: filter: name a member of the payload"),
    ({"a": {"filter": {5: "x"}}}, "bridge_subscriptions['a']: filter: 5 is not the name of a field"),
    ({"a": {"filter": print}}, "bridge_subscriptions['a']: filter"),
]


@pytest.mark.parametrize(("value", "said"), SUBSCRIPTIONS, ids=[f"{n}" for n in range(len(SUBSCRIPTIONS))])
def test_a_subscription_that_cannot_be_is_refused(value: object, said: str) -> None:
    assert refusal(bridge_subscriptions=value).startswith(said)


LAGS = [
    (5, "bridge_max_lag"),
    ({"count": 0}, "bridge_max_lag.count: input should be greater than or equal to 1 (it is 0)"),
    ({"age": "old"}, "bridge_max_lag.age: input should be a valid number (it is 'old')"),
    ({"count": 1, "then": "drop"}, "bridge_max_lag.then: input should be 'skip' or 'park' (it is 'drop')"),
    ({"cuont": 1}, "unknown setting bridge_max_lag.cuont; did you mean bridge_max_lag.count?"),
]


@pytest.mark.parametrize(("value", "said"), LAGS, ids=str)
def test_a_lag_that_cannot_be_is_refused(value: object, said: str) -> None:
    assert refusal(bridge_max_lag=value).startswith(said)


def test_a_limit_of_the_lag_is_read_for_a_subscription_and_for_all() -> None:
    names = {"billing": {"max_lag": {"bytes": 7}}, "search": {}}
    settings = read_settings(app(bridge_max_lag={"age": 3}, bridge_subscriptions=names))
    found = {name: lane.max_lag for name, lane in settings.subscriptions.items()}
    assert (found["billing"].bytes, found["billing"].age, found["search"].age) == (7, None, 3.0)
    assert not read_settings(app()).lane.max_lag


def test_nothing_has_to_be_set() -> None:
    settings = read_settings(app())
    lane = settings.lane
    assert (lane.stream, lane.group, lane.master) == ("ticket_stream", "concurrency_stream_group", "master")
    assert (lane.lease, lane.max_attempts, lane.on_dead) == (6.0, 5, "skip")
    assert lane.max_payload == 1024 * 1024
    assert settings.redis_url == "redis://127.0.0.1:6379/0"


def in_namespace(namespace: str, **settings: Any) -> Celery:
    """An app that is configured as Django's pages show it, by an object with unrelated settings too."""
    made = Celery("shop", set_as_current=False)
    unrelated = {
        "DEBUG": True,
        "BRIDGE_API_TOKEN": "of another library",
        f"{namespace}_BROKER_URL": "redis://127.0.0.1/0",
    }
    made.config_from_object(type("settings", (), {**unrelated, **settings}), namespace=namespace)
    return made


@pytest.mark.parametrize("namespace", ["CELERY", "SHOP_QUEUE", "BRIDGE"])
def test_settings_are_read_in_the_apps_namespace(namespace: str) -> None:
    given = {f"{namespace}_BRIDGE_LEASE": 3, f"{namespace}_BRIDGE_BACKOFF": {"base": 2}}
    settings = read_settings(in_namespace(namespace, **given))
    assert (settings.lane.lease, settings.lane.backoff.base, settings.redis_url) == (3.0, 2.0, "redis://127.0.0.1/0")


def test_settings_of_the_app_itself_and_of_the_namespace_have_the_order_that_celery_gives_them() -> None:
    """From 5.7 on, those of the app itself come first."""
    made = in_namespace("CELERY", CELERY_BRIDGE_LEASE=3)
    made.conf.bridge_lease = 4
    assert read_settings(made).lane.lease == made.conf.bridge_lease == (4 if VERSION >= (5, 7) else 3)


@pytest.mark.parametrize(
    ("namespace", "key", "value", "message"),
    [
        (
            "CELERY", "CELERY_BRIDGE_LEESE", 3,
            "unknown setting CELERY_BRIDGE_LEESE; did you mean CELERY_BRIDGE_LEASE?",
        ),
        (
            "CELERY", "BRIDGE_LEASE", 3,
            "BRIDGE_LEASE is not read: the configuration has the namespace 'CELERY', so call it CELERY_BRIDGE_LEASE",
        ),
        (
            "CELERY", "CELERY_BRIDGE_LEASE", "x",
            "CELERY_BRIDGE_LEASE: input should be a valid number (it is 'x')",
        ),
        (
            None, "CELERY_BRIDGE_LEASE", 3,
            "CELERY_BRIDGE_LEASE is not read: name the namespace, config_from_object(…, namespace='CELERY'), "
            "or call it bridge_lease",
        ),
    ],
)  # fmt: skip
def test_names_outside_the_namespace_are_always_checked(
    namespace: str | None, key: str, value: Any, message: str
) -> None:
    made = in_namespace(namespace, **{key: value}) if namespace else app(**{key: value})
    with pytest.raises(ConfigurationError) as raised:
        read_settings(made)
    assert str(raised.value) == message


def test_settings_are_read_in_capitals_too() -> None:
    assert read_settings(app(BRIDGE_STREAM="orders")).lane.stream == "orders"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_misspelt_setting_names_the_right_one(name: str) -> None:
    wrong = f"bridge_{name}s"
    assert refusal(**{wrong: 1}) == f"unknown setting {wrong}; did you mean bridge_{name}?"


HUGE = 10**400


def test_a_misspelt_part_of_the_backoff_names_the_right_one() -> None:
    assert refusal(bridge_backoff={"bse": 1}) == "unknown setting bridge_backoff.bse; did you mean bridge_backoff.base?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", "6"),
        ("lease", 0.1),
        ("lease", True),
        ("lease", float("nan")),
        ("leader_lease", -1),
        ("max_attempts", 0),
        ("max_attempts", 1.5),
        ("max_attempts", "5"),
        ("max_payload", 1),
        ("bundle_ms", -1),
        ("window", 10),
        ("stream", ""),
        ("stream", 5),
        ("group", None),
        ("policy", "best"),
        ("policy", 1),
        ("on_dead", "explode"),
        ("default_task", 5),
        ("backoff", "fast"),
        ("backoff", {"base": -1}),
        ("backoff", {"factor": 0.5}),
        ("backoff", {"jitter": 2}),
        ("master", "w1@host"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_setting(name: str, value: object) -> None:
    assert f"bridge_{name}" in refusal(**{f"bridge_{name}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease", HUGE),
        ("state_ttl", -HUGE),
        ("backoff", {"base": HUGE}),
        ("max_lag", {"age": HUGE}),
        ("subscriptions", {"a": {"backoff": {"base": HUGE}}}),
        ("on_dead_notify", {"url": "https://x/", "rate": HUGE}),
        ("schedule", {"a": {"task": "x", "ticket": "t", "every": HUGE}}),
    ],
)
def test_a_number_beyond_a_float_is_refused_in_one_line(name: str, value: object) -> None:
    said = refusal(**{f"bridge_{name}": value})
    assert "is too large a number" in said
    assert len(said) < 300


def test_whole_numbers_are_seconds_and_names_are_policies() -> None:
    settings = read_settings(app(bridge_lease=3, bridge_policy="rendezvous", bridge_backoff={"base": 2}))
    assert (settings.lane.lease, settings.lane.lease_ms, settings.lane.policy.value) == (3.0, 3000, "rendezvous")
    assert settings.lane.backoff.base == 2.0


@pytest.mark.parametrize("url", ["amqp://guest@localhost//", "sqs://", "memory://"])
def test_a_broker_that_is_no_redis_is_refused(url: str) -> None:
    assert "broker's URL" in refusal(broker=url)


def test_a_port_that_is_no_number_is_refused_without_showing_it() -> None:
    said = refusal(broker="redis://host:s3cret/0")
    assert "port" in said
    assert "s3cret" not in said


def test_another_server_than_the_brokers_is_refused() -> None:
    assert "must be the broker's server" in refusal(bridge_redis_url="redis://elsewhere:6379/0")
    assert "must be the broker's server" in refusal(bridge_redis_url="redis://127.0.0.1:6379/1")


def test_the_brokers_server_may_be_written_in_another_way() -> None:
    assert read_settings(app(bridge_redis_url="redis://127.0.0.1")).redis_url == "redis://127.0.0.1"


@pytest.mark.parametrize("value", ["", " ", ",", "billing,,search"])
def test_a_variable_that_names_no_subscription_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_SERVE", value)
    assert refusal().startswith(f"the environment variable BRIDGE_SERVE is {value!r}: name subscriptions")


def test_no_message_shows_a_password() -> None:
    for settings in ({"bridge_redis_url": "redis://:secret@elsewhere/0"}, {"bridge_redis_url": ["redis://:secret@x"]}):
        assert "secret" not in refusal(**settings)


def test_the_default_task_must_be_one_of_the_apps() -> None:
    shop = install(app(bridge_default_task="shop.updat"))
    shop.task(name="shop.update", shared=False)(nothing)
    shop.finalize()
    with pytest.raises(
        ConfigurationError, match=r"bridge_default_task 'shop.updat' is not a task.*its tasks: .*shop.update"
    ):
        check_tasks(shop)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bridge_max_attempt": 1}, "unknown option bridge_max_attempt; did you mean bridge_max_attempts?"),
        ({"bridge_max_attempts": 0}, "must be 1 to 1,000,000, not 0"),
        ({"bridge_max_attempts": 1_000_001}, "must be 1 to 1,000,000, not 1000001"),
        ({"bridge_max_attempts": 2**64}, "must be 1 to 1,000,000, not 18446744073709551616"),
        ({"bridge_max_attempts": True}, "must be int"),
        ({"bridge_bundle": 1}, "must be bool"),
        ({"bridge_on_dead": "wait"}, "must be skip or park"),
        ({"bridge_on_dead": True}, "must be str"),
        ({"bridge_rollback": "undo"}, "must be a function"),
        ({"bridge_rollback": lambda _self, _lost: None}, "bridge_rollback takes (_self, _lost), and is called with"),
        ({"bridge_rollback": lambda _lost, _ticket, _load: None}, "bridge_rollback takes (_lost, _ticket, _load), and"),
        ({"bridge_rollback": lambda _a, _b, _c, _d, _e: None}, "bridge_rollback takes (_a, _b, _c, _d, _e), and is"),
        ({"bridge_rollback": waits}, "bridge_rollback is async or a generator, so its body would not run"),
        ({"expires": "tomorrow"}, "expires must be seconds, a datetime or an ISO 8601 time, not 'tomorrow'"),
        ({"expires": True}, "expires must be seconds, a datetime or an ISO 8601 time, not True"),
        ({"expires": timedelta(hours=1)}, "expires must be seconds, a datetime or an ISO 8601 time, not datetime"),
    ],
)
def test_a_tasks_own_options_are_checked(options: dict[str, object], said: str) -> None:
    shop = app()
    task = shop.task(name="shop.update", shared=False, **options)(nothing)
    shop.finalize()
    with pytest.raises(ConfigurationError) as caught:
        check_task_options("shop.update", shop.tasks[task.name])
    assert said in str(caught.value)
    assert "shop.update" in str(caught.value)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"*": {"bridge_max_attempt": 7}}, 'task_annotations["*"]: unknown option bridge_max_attempt; did you mean'),
        ({"*": {"bridge_max_attempts": "7"}}, "task_annotations[\"*\"]: bridge_max_attempts must be int, not '7'"),
        ([{"a": {"rate_limit": 1}}, {"*": {"bridge_on_dead": "x"}}], 'task_annotations["*"]: bridge_on_dead must be'),
        ({"shop.update": {"bridge_max_attempts": 0}}, 'task_annotations["shop.update"]: bridge_max_attempts must be'),
        ({"*": {"bridge_rollback": "undo"}}, 'task_annotations["*"]: bridge_rollback must be a function'),
        ({"*": {"expires": "soon"}}, 'task_annotations["*"]: expires must be seconds'),
        (
            {"*": {"rate_limit": 1}, "other": {"bridge_bundel": 1}},
            "task shop.update: unknown option bridge_bundel; did",
        ),
    ],
    ids=range(7),
)
def test_an_option_of_an_annotation_is_said_of_the_annotation(annotations: Any, said: str) -> None:
    shop: Any = install(app(task_annotations=annotations))
    more: dict[str, object] = {"bridge_bundel": True} if "bundel" in said else {}
    shop.task(name="shop.update", shared=False, **more)(nothing)
    shop.finalize()
    with pytest.raises(ConfigurationError) as caught:
        check_tasks(shop)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "options",
    [
        {"bridge_on_dead": "skip"},
        {"bridge_on_dead": "park"},
        {"bridge_rollback": print},
        {"bridge_rollback": lambda _self, _lost, _ticket_id, _payload: None},
        {"bridge_rollback": lambda _self, _lost, *_given: None},
        {"bridge_rollback": staticmethod(lambda _self, _lost, _ticket_id, _payload=None: None)},
        {"expires": 10},
        {"expires": 0.5},
        {"expires": datetime(2100, 1, 1, tzinfo=UTC)},
        {"expires": "2100-01-01T00:00:00Z"},
        {},
    ],
    # Not their repr: all test processes must have equal ids, and a function's repr has its address.
    ids=lambda options: "-".join(f"{name}-{type(value).__name__}" for name, value in options.items()) or "none",
)
def test_a_tasks_own_options_are_taken(options: dict[str, object]) -> None:
    shop = app()
    task = shop.task(name="shop.update", shared=False, **options)(nothing)
    shop.finalize()
    check_task_options("shop.update", shop.tasks[task.name])


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read_settings(app()).lane.lease = 1.0


def test_a_backoff_grows_to_its_limit_and_jitter_only_shortens_it() -> None:
    backoff = Backoff(base=1.0, factor=2.0, limit=10.0, jitter=0.5)
    assert [backoff.delay_ms(attempt, 0.0) for attempt in (1, 2, 3, 4, 5, 5000)] == [
        1000,
        2000,
        4000,
        8000,
        10_000,
        10_000,
    ]
    assert backoff.delay_ms(3, 0.999) > 2000


@pytest.mark.parametrize("name", ["{x}", "a{", "}", "shop:{orders}:tickets"])
def test_a_stream_whose_name_has_a_hash_tag_is_refused(name: str) -> None:
    assert "bridge_stream: must not contain { or }" in refusal(bridge_stream=name)


@pytest.mark.parametrize("name", ["a b", "a:b", "a\nb", "'\"", "é" * 200, "x" * 512])
def test_any_other_name_will_do(name: str) -> None:
    settings = read_settings(app(bridge_stream=name, bridge_group=name))
    assert settings.lane.keys.stream == name
