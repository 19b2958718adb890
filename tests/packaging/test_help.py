"""Help that is whole, and completion of everything that has names."""

from __future__ import annotations

import re

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from outrider.app import cli as command_line
from outrider.app.cli import COMMANDS, cli
from outrider.app.command import summary

GROUPS = [name for name in COMMANDS if isinstance(cli.get_command(click.Context(cli), name), click.Group)]


def complete(*words: str) -> list[str]:
    return [
        item.value for item in ShellComplete(cli, {}, "outrider", "_X").get_completions(list(words[:-1]), words[-1])
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_lists_of_commands_are_not_cut(group: str) -> None:
    out = CliRunner().invoke(cli, [group, "--help"]).output
    assert "..." not in out.split("Commands:")[1].split("Examples")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_says_what_each_command_says_of_itself(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and summary(command).rstrip(".") == re.split(r"\.(?: |$)", COMMANDS[name])[0].rstrip(".")


def test_train_names_its_methods_and_its_other_commands() -> None:
    out = CliRunner().invoke(cli, ["train", "--help"]).output
    assert "dflash, draft_model, eagle, layerskip, medusa, mtp" in out
    assert "runs" in out.split("Options:")[0] and "export" in out.split("Options:")[0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train", "ea"), ["eagle"]),
        (("train", "ru"), ["runs"]),
        (("train", "export", "la"), ["last"]),
        (("run", "-d", "suffix", "--drafter-option", ""), ["corpus="]),
        (("drafters", "test", "eagle", "--drafter-option", "tr"), ["tree="]),
        (("run", "--drafter-option", "corp"), ["corpus="]),
        (("bench", "--drafters", "suffix,ea"), ["suffix,eagle"]),
        (("bench", "--categories", "chat,summ"), ["chat,summarisation"]),
        (("run", "--device", "c"), ["cpu", "cuda", "cuda:0", "cuda:1"]),
        (("run", "--drafter-weights", "z-lab/Qwen3-4B-D"), ["z-lab/Qwen3-4B-DFlash-b16"]),
        (("config", "show", "--model", "starte"), ["starter"]),
        (("plugins", "remove", "no-such"), []),
        (("plugins", "ne"), ["new"]),
    ],
)
def test_completion(words: tuple[str, ...], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_a_command_behind_options_is_told_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["-m", "starter", "run", "hi"]) == 2
    assert "The command run comes after options." in capsys.readouterr().err


def test_variables_fit_into_eighty_columns() -> None:
    out = CliRunner().invoke(cli, ["config", "show", "--env"]).output
    assert max(map(len, out.splitlines())) <= 80
