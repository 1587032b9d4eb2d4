"""A command that the server has disabled is named in one line, and no master leads without it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from bridge.link.failures import translated
from bridge.operate.role_commands import OWN, Role, commands_of_scripts
from bridge.operate.server_commands import refuse_without_commands
from bridge.routing.errors import ServerUnfit

NEEDED = sorted({one.partition("|")[0] for one in (*OWN[Role.MASTER], *commands_of_scripts(Role.MASTER))})
#: What servers say. The last two are of a script.
ERRORS = (
    "unknown command '{}', with args beginning with: 'a' ",
    "unknown command `{}`, with args beginning with: ",
    "Command # 22 ({} a) of pipeline caused error: unknown command '{}', with args beginning with: 'a' ",
    "Unknown Redis command called from script script: ab12, on @user_script:3.",
    "Error running script (call to f_ab): @user_script:3: @user_script: 3: Unknown Redis command called from script",
)


@given(st.sets(st.sampled_from(NEEDED)))
def test_all_commands_that_are_missing_are_named(missing: set[str]) -> None:
    class Client:
        def execute_command(self, _what: str, *names: str) -> list[Any]:
            return [None if name in missing else [name] for name in names]

    client: Any = Client()
    if not missing:
        refuse_without_commands(client, Role.MASTER)
        return
    with pytest.raises(ServerUnfit) as refused:
        refuse_without_commands(client, Role.MASTER)
    named = str(refused.value).partition(" which ")[0]
    assert all(name.upper() in named for name in missing)
    assert "bridge acl" in str(refused.value)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", NEEDED)
def test_an_error_of_the_server_names_its_command(name: str, error: str) -> None:
    found = translated(ResponseError(error.replace("{}", name.upper())))
    assert isinstance(found, ServerUnfit)
    assert "bridge acl" in str(found)
    assert "{}" not in error or f"no command {name.upper()}, " in str(found)
