"""Numbers as people read them: in commands, logs and reports alike."""

from __future__ import annotations

import pytest

from bridge.routing.numbers import count, data_size, duration, moment, rate, ratio, share, significant, whole


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(None), "–"),  # noqa: RUF001 - the dash that is shown
        (duration(0), "0 ms"),
        (duration(-3), "0 ms"),
        (duration(0.42), "420 µs"),
        (duration(0.99999), "1.00 ms"),
        (duration(12.345), "12.3 ms"),
        (duration(999.7), "1.00 s"),
        (duration(59_960), "1 min"),
        (duration(200_000), "3 min 20 s"),
        (duration(3_599_900), "1 h"),
        (duration(86_400_000 * 3 + 3_600_000), "3 d 1 h"),
        (data_size(None), "–"),  # noqa: RUF001 - the dash that is shown
        (data_size(0), "0 B"),
        (data_size(1023), "1023 B"),
        (data_size(1536), "1.50 KiB"),
        (data_size(1024**2 - 1), "1.00 MiB"),
        (data_size(1024**3 * 7), "7.00 GiB"),
        (rate(1339.6), "1,340/s"),
        (rate(0.5), "30.0/min"),
        (rate(0), "0/s"),
        (rate(1 / 7200), "12.0/d"),
        (share(0.1234), "12.3 %"),
        (share(0.00001), "<0.01 %"),
        (ratio(1.1847), "1.18"),
        (significant(9.999), "10.0"),
        (significant(0.0421), "0.0421"),
        (whole(1234567), "1,234,567"),
        (whole(None), "–"),  # noqa: RUF001 - the dash that is shown
        (count(1, "row"), "1 row"),
        (count(2000, "row"), "2,000 rows"),
    ],
)
def test_numbers_are_shown_as_people_read_them(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize("ms", [9999999999999999, 2**64 - 1, 10**15, -(10**17)])
def test_a_time_that_is_none_is_shown_as_the_number_that_it_is(ms: int) -> None:
    """An id may have any number, and people look for that."""
    assert moment(ms) == f"{ms} ms"
    assert moment(float(2**60)) == f"{2**60} ms"
