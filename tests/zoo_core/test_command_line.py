"""How programs end after a user error, and how their options are spelled."""

import sys

import pytest

from crosslingual_zoo.zoo_core.command_line import CommandParser, until_pipe_closes, user_errors


@pytest.mark.parametrize(
    "error, code", [(ValueError("why"), 2), (PermissionError(13, "why", "runs/x"), 2), (KeyboardInterrupt(), 130)]
)
def test_user_errors_end_with_a_message_and_a_code(error, code, capsys):
    with pytest.raises(SystemExit) as stop, user_errors():
        raise error
    assert stop.value.code == code
    assert str(error) in capsys.readouterr().err


def test_user_errors_keep_the_traceback_of_our_faults(monkeypatch):
    with pytest.raises(ZeroDivisionError), user_errors():
        raise ZeroDivisionError
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    with pytest.raises(ValueError, match="why"), user_errors():
        raise ValueError("why")


@pytest.mark.parametrize("argument", ["--dry_run", "--dry-run"])
def test_command_parser_options_have_hyphens_or_underscores(argument):
    parser = CommandParser()
    parser.add_argument("--dry_run", action="store_true")
    parser.add_argument("--hub-root")
    parser.add_argument("files", nargs="*")
    flags = parser.parse_intermixed_args(["a-b_c", argument, "--hub_root=x-y_z"])
    assert flags.dry_run
    assert flags.hub_root == "x-y_z"
    assert flags.files == ["a-b_c"]
    assert "version" not in flags  # commands pass their flags on
    with pytest.raises(SystemExit):
        parser.parse_args(["--dry"])


def test_until_pipe_closes_ends_as_a_program_that_sigpipe_kills(monkeypatch, tmp_path, capsys):
    with (tmp_path / "output").open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as stop, until_pipe_closes():
            raise BrokenPipeError
        monkeypatch.undo()
    assert stop.value.code == 141
    assert capsys.readouterr().err == ""
