"""Defects of the port and its clients that no script makes: each has a test that must fail."""

from __future__ import annotations

from tests.calibration.mutation import Edit, Mutation

#: They break what the port promises, and no invariant of a lane.
PORT = "the port"
TESTS = "tests/integration/http"


def _port(name: str, test: str, file: str, old: str, new: str = "if False:") -> Mutation:
    return Mutation(name, PORT, test, (test.rpartition("::")[2],), (Edit(file, old, new),))


#: No two of them are noticed by one test, or in one place: all are made in one copy of the product.
HTTP_MUTATIONS = [
    _port(
        "a token is good for every subscription",
        f"{TESTS}/test_round_trips.py::test_a_token_is_for_the_consumers_of_its_subscription",
        "bridge/http/site.py",
        "if not caller.may(verb, subscription):",
    ),
    _port(
        "without tokens any name of the server is good",
        f"{TESTS}/test_access.py::test_without_tokens_a_name_that_is_not_of_this_machine_is_refused",
        "bridge/http/limits.py",
        'if host and not _is_local(host.decode("latin-1")):',
    ),
    _port(
        "the length of a body has no limit",
        f"{TESTS}/test_limits.py::test_a_body_over_the_limit_is_refused_before_it_is_read",
        "bridge/http/limits.py",
        "if length.isdigit() and int(length) > self._most:",
    ),
    _port(
        "a body in chunks has no limit",
        f"{TESTS}/test_limits.py::test_a_body_without_a_length_is_counted_as_it_comes",
        "bridge/http/limits.py",
        "if whole > self._most:",
    ),
    _port(
        "two lengths of a body are taken",
        f"{TESTS}/test_odd_clients.py::test_each_odd_request_has_one_clear_answer",
        "bridge/http/limits.py",
        'if b"transfer-encoding" in names and b"content-length" in names:',
    ),
    _port(
        "the key of a push is ignored",
        f"{TESTS}/test_pushing.py::test_a_push_with_a_key_can_be_sent_again",
        "bridge/http/pushing.py",
        "idempotency_key=idempotency_key,",
        "idempotency_key=None,",
    ),
    _port(
        "the Python client begins what has expired",
        "tests/unit/consumer/test_http_consumer.py::test_what_has_expired_is_dead_and_its_handler_is_not_called",
        "bridge/consumer/http_messages.py",
        "if work.expires_ns is not None and began_ns >= work.expires_ns:",
    ),
    _port(
        "the Python client waits for a renewal before it looks at its lease",
        "tests/unit/consumer/test_http_consumer.py"
        "::test_the_end_of_the_lease_is_noticed_while_a_renewal_waits_for_its_answer",
        "bridge/consumer/http_consumer.py",
        ", self._beat, self._watch)",
        ", self._beat)",
    ),
    _port(
        "a caller that asks again at once goes before those that wait",
        "tests/unit/routing/test_async_connection.py::test_who_comes_again_at_once_waits_behind_those_that_wait",
        "routing/async_connection.py",
        "self._waiting.popleft().set_result(None)",
        "self._waiting.pop().set_result(None)",
    ),
]
