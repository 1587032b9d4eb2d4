"""Mutations of single scripts, for races that need exact timing. The tests of the scripts catch them."""

from __future__ import annotations

from tests.calibration.mutation import Edit, Mutation

LUA = "routing/lua"
ADVANCE, APPLY, ADOPT, FORGET = (f"{LUA}/{name}.lua" for name in ("advance", "apply", "adopt", "forget"))
LEAD, RENEW, RESIGN = (f"{LUA}/{name}.lua" for name in ("lead", "renew", "resign"))
READ, REGISTER, REROUTE = (f"{LUA}/{name}.lua" for name in ("read", "register", "reroute"))
DONE, REMOVE = f"{LUA}/done.lua", f"{LUA}/remove.lua"

_ASKS = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then"
#: Somebody must lead, but who does not matter.
_SOMEBODY = "if false then"


def _script(name: str, breaks: str, file: str, test: str, old: str, new: str) -> Mutation:
    tests, _, function = test.partition("::")
    return Mutation(name, breaks, f"tests/scripts/{tests}.py", (function,), (Edit(file, old, new),))


SCRIPT_MUTATIONS = [
    # -- I1 ----------------------------------------------------------------------------------------------------------
    _script(
        "a run that moves is not claimed back",
        "I1",
        REROUTE,
        "test_reroute::test_the_tickets_of_an_ended_incarnation_move",
        "redis.call('XCLAIM', KEYS[5], ARGV[2], ARGV[3], 0, ARGV[i], 'FORCE', 'JUSTID')",
        "",
    ),
    _script(
        "a run that moves is claimed back if it is pending still",
        "I1",
        REROUTE,
        "test_reroute::test_a_message_that_was_acknowledged_by_hand_comes_again",
        "ARGV[i], 'FORCE', 'JUSTID'",
        "ARGV[i], 'JUSTID'",
    ),
    _script(
        "only what is pending is adopted",
        "I1",
        ADOPT,
        "test_reroute::test_entries_are_pending_where_they_belong_wherever_they_were",
        "arguments[#arguments + 1] = 'FORCE'\n",
        "",
    ),
    _script(
        "an entry counts as done that another subscription has not read",
        "I1",
        DONE,
        "test_retention::test_done_is_what_no_group_has_unread_or_pending",
        "if younger(upto, info['last-delivered-id']) then",
        "if false then",
    ),
    _script(
        "an entry leaves that another subscription has pending",
        "I1",
        REMOVE,
        "test_retention::test_remove_spares_what_another_group_has_pending",
        "needed = needed or #redis.call('XPENDING'",
        "needed = needed and #redis.call('XPENDING'",
    ),
    _script(
        "an entry leaves although there is a subscription that nobody knew of",
        "I1",
        REMOVE,
        "test_retention::test_remove_touches_nothing_when_the_groups_are_others",
        "if not known[info[i + 1]] then",
        "if false then",
    ),
    # -- I2 ----------------------------------------------------------------------------------------------------------
    _script(
        "records are not compared",
        "I2",
        ADVANCE,
        "test_advance::test_a_record_that_is_not_as_expected_changes_nothing",
        "if (found[k - i + 1] or '') ~=",
        "if false and (found[k - i + 1] or '') ~=",
    ),
    _script(
        "the records of what moves are not compared",
        "I2",
        REROUTE,
        "test_reroute::test_a_record_that_is_not_as_expected_moves_nothing",
        "if (redis.call('HGET', KEYS[2], ARGV[t]) or '') ~= ARGV[t + 1] then",
        "if false then",
    ),
    _script(
        "Celery messages reach a worker in the wrong order",
        "I2",
        ADVANCE,
        "test_advance::test_messages_reach_each_consumer_in_the_order_of_the_batch",
        "redis.call('LPUSH'",
        "redis.call('RPUSH'",
    ),
    # -- I3 ----------------------------------------------------------------------------------------------------------
    _script(
        "tickets move while an outcome is unread",
        "I3",
        REROUTE,
        "test_reroute::test_an_outcome_that_was_not_read_yet_comes_first",
        "fields[i] == 'i' and fields[i + 1] == ARGV[4]",
        "false",
    ),
    _script(
        "only the first thousands of outcomes are looked at",
        "I3",
        REROUTE,
        "test_reroute::test_its_outcome_is_found_behind_thousands_of_others",
        "if #unread == 10000 then",
        "if false then",
    ),
    # -- I4 ----------------------------------------------------------------------------------------------------------
    _script(
        "fences do not follow the clock",
        "I4",
        ADVANCE,
        "test_advance::test_a_failover_that_lost_the_last_writes_gives_no_fence_out_again",
        "base = tonumber(now[1]) * 1000000 + tonumber(now[2])",
        "base = 1",
    ),
    _script(
        "a fence is given out twice",
        "I4",
        ADVANCE,
        "test_advance::test_a_stored_fence_ahead_of_the_clock_is_exceeded_by_exactly_one",
        "base = last + 1",
        "base = last",
    ),
    _script(
        "the fences of a batch are not counted",
        "I4",
        ADVANCE,
        "test_advance::test_a_stored_fence_ahead_of_the_clock_is_exceeded_by_exactly_one",
        "string.format('%.0f', base + fences - 1)",
        "string.format('%.0f', last)",
    ),
    _script(
        "fences behind the run pass for its own",
        "I4",
        APPLY,
        "test_apply::test_a_fence_that_is_not_current_changes_nothing",
        " and fence < base + tonumber(count)",
        "",
    ),
    _script(
        "fences before the run pass for its own",
        "I4",
        APPLY,
        "test_apply::test_a_fence_that_is_not_current_changes_nothing",
        " and fence >= base",
        "",
    ),
    # -- I5 ----------------------------------------------------------------------------------------------------------
    _script(
        "tickets move although the lease holds",
        "I5",
        REROUTE,
        "test_reroute::test_while_the_lease_holds_nothing_moves",
        "if redis.call('EXISTS', KEYS[6]) == 1 then",
        "if false then",
    ),
    _script(
        "a name is taken although its lease holds",
        "I5",
        REGISTER,
        "test_consumers::test_while_the_other_lease_holds_it_waits",
        "redis.call('EXISTS', KEYS[3]) == 1",
        "false",
    ),
    _script(
        "two take a name at once",
        "I5",
        REGISTER,
        "test_consumers::test_one_of_two_workers_that_start_under_one_name_wins",
        "if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[5] then",
        "if false then",
    ),
    _script(
        "a lease that the server's clock made too long stays so",
        "I5a",
        f"{LUA}/shorten.lua",
        "test_consumers::test_a_lease_that_the_servers_clock_made_too_long_is_cut_to_its_length",
        "redis.call('PEXPIRE', KEYS[2], ARGV[2])",
        "",
    ),
    _script(
        "a lead that the server's clock made too long stays so",
        "I5a",
        f"{LUA}/lead.lua",
        "test_leadership::test_a_lead_that_the_servers_clock_made_too_long_is_cut_to_one_lease",
        "redis.call('PEXPIRE', KEYS[1], ARGV[2])",
        "",
    ),
    _script(
        "one that lives is forgotten",
        "I5",
        FORGET,
        "test_consumers::test_a_live_consumer_is_not_forgotten",
        "if redis.call('EXISTS', KEYS[4]) == 1 then",
        "if false then",
    ),
    # -- I7 ----------------------------------------------------------------------------------------------------------
    _script(
        "recorded and not pushed",
        "I7",
        ADVANCE,
        "test_advance::test_a_whole_batch_changes_exactly_what_it_says",
        "redis.call('LPUSH', KEYS[12 + d], opening .. ARGV[i])",
        "",
    ),
    # -- I8 ----------------------------------------------------------------------------------------------------------
    _script(
        "anybody may send a batch",
        "I8",
        ADVANCE,
        "test_advance::test_a_master_that_does_not_lead_changes_nothing",
        _ASKS,
        _SOMEBODY,
    ),
    _script(
        "the holder is compared, and not the term",
        "I8",
        ADVANCE,
        "test_advance::test_the_same_holder_in_an_older_term_changes_nothing",
        _ASKS,
        "if string.match(redis.call('GET', KEYS[1]) or '', ' .*') ~= string.match(ARGV[1], ' .*') then",
    ),
    _script(
        "anybody may read",
        "I8",
        READ,
        "test_read::test_a_former_leader_takes_nothing_from_the_next_one",
        _ASKS,
        _SOMEBODY,
    ),
    _script(
        "anybody may move tickets",
        "I8",
        REROUTE,
        "test_reroute::test_a_master_that_does_not_lead_moves_nothing",
        _ASKS,
        _SOMEBODY,
    ),
    _script(
        "anybody may adopt entries",
        "I8",
        ADOPT,
        "test_reroute::test_a_master_that_does_not_lead_adopts_nothing",
        _ASKS,
        _SOMEBODY,
    ),
    _script(
        "anybody may forget a consumer",
        "I8",
        FORGET,
        "test_consumers::test_a_master_that_does_not_lead_forgets_no_consumer",
        _ASKS,
        _SOMEBODY,
    ),
    _script(
        "a term comes again",
        "I8",
        LEAD,
        "test_leadership::test_terms_never_repeat",
        "redis.call('INCR', KEYS[2])",
        "(redis.call('INCR', KEYS[2]) % 2)",
    ),
    _script(
        "who leads no more removes entries",
        "I8",
        REMOVE,
        "test_retention::test_remove_is_the_leaders_alone",
        _ASKS,
        _SOMEBODY,
    ),
    _script(
        "two lead",
        "I8",
        LEAD,
        "test_leadership::test_while_one_leads_no_other_is_elected_not_even_with_the_same_name",
        "if current then",
        "if current and string.match(current, ' .*') ~= ' ' .. ARGV[1] then",
    ),
    _script(
        "anybody's lead is renewed",
        "I8",
        RENEW,
        "test_leadership::test_only_the_token_of_the_term_renews_or_ends_it",
        "if redis.pcall('GET', KEYS[i]) ~= ARGV[2 * i - 1] then",
        _SOMEBODY,
    ),
    _script(
        "anybody's lead is ended",
        "I8",
        RESIGN,
        "test_leadership::test_only_the_token_of_the_term_renews_or_ends_it",
        _ASKS,
        _SOMEBODY,
    ),
    # -- I9 ----------------------------------------------------------------------------------------------------------
    _script(
        "the lead has no end",
        "I9",
        LEAD,
        "test_leadership::test_the_first_master_is_elected_in_term_one",
        "redis.call('SET', KEYS[1], token, 'PX', ARGV[2])",
        "redis.call('SET', KEYS[1], token)",
    ),
    _script(
        "the queue of one that is gone stays",
        "I9",
        FORGET,
        "test_consumers::test_a_consumer_without_pending_entries_is_forgotten_completely",
        "redis.call('DEL', KEYS[5])",
        "",
    ),
    _script(
        "a read brings all that there is",
        "I9a",
        READ,
        "test_read::test_a_read_ends_when_it_has_enough_bytes_and_the_next_one_goes_on",
        "while #found < most and bytes < budget do",
        "while #found < most do",
    ),
    _script(
        "a read does not learn how large entries are",
        "I9a",
        READ,
        "test_read::test_a_read_ends_when_it_has_enough_bytes_and_the_next_one_goes_on",
        "math.max(1, math.min(most - #found, STEP, math.floor((budget - bytes) / peak)))",
        "most - #found",
    ),
    _script(
        "all entries are named at once",
        "I9a",
        f"{LUA}/survey.lua",
        "test_large::test_a_survey_names_all_entries_in_order_and_reads_few_bytes_at_once",
        " and bytes < budget do",
        " do",
    ),
    _script(
        "all queues are looked at in one call",
        "I9a",
        f"{LUA}/oldest.lua",
        "test_large::test_the_oldest_message_of_each_queue_is_returned_in_part_a_few_megabytes_at_a_time",
        "if bytes >= tonumber(ARGV[2]) then",
        "if false then",
    ),
    _script(
        "a queue is taken back as a whole",
        "I9a",
        f"{LUA}/recall.lua",
        "test_large::test_large_messages_are_taken_back_a_few_at_a_time",
        " and bytes < tonumber(ARGV[3]) do",
        " do",
    ),
    # -- promise 4 ---------------------------------------------------------------------------------------------------
    _script(
        "effects are applied again when the reply was lost",
        "promise 4",
        APPLY,
        "test_apply::test_a_repeat_of_the_same_call_is_applied_once",
        "elseif fence <= done then",
        "elseif false then",
    ),
    _script(
        "effects are applied up to the first that cannot be",
        "promise 4",
        APPLY,
        "test_apply::test_a_key_of_another_type_lets_nothing_be_applied",
        "err = err or applied(calls, publications)",
        "err = applied(calls, publications)",
    ),
]
