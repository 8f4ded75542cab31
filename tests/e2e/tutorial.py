#!/usr/bin/env python3
"""Runs the tutorial: every command of docs/tutorial.md, word by word, in one shell, as a reader would paste them.

    tests/e2e/tutorial.py --understudy target/release/understudy

A comment `<!-- prints: WORDS -->` below a block of commands states what the block prints. Every command has to succeed. Needs
root, but no virtual machines.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import routers
from routers import expect

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:<!-- prints: (.*?) -->\n)?", re.MULTILINE | re.DOTALL)
NAMESPACES = ("left", "right")
FOLDER = "/tmp/tutorial"
LIMIT_S = 300


def script(blocks: list[tuple[str, str]]) -> str:
    """Returns the commands with a mark before the output of each block. A command that fails ends the shell."""
    # Jobs have numbers and process groups only in a shell with job control.
    lines = ["set -e -m"]
    for number, (commands, _) in enumerate(blocks):
        lines += [f"echo '=== {number}'", commands]
    return "\n".join([*lines, "echo '=== end'"])


def run(arguments: argparse.Namespace, folder: Path) -> None:
    used = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout.split()
    expect("the tutorial's namespaces and folder are free", not set(NAMESPACES) & set(used) and not Path(FOLDER).exists(), used)
    blocks = BLOCK.findall(PAGE.read_text())
    expect("the page has commands", len(blocks) > 5, len(blocks))
    # The tutorial begins in the folder of the repository, whose program it finds in target/release.
    root = folder / "repository"
    (root / "target" / "release").mkdir(parents=True)
    (root / "target" / "release" / "understudy").symlink_to(arguments.understudy.resolve())
    log = folder / "tutorial.log"
    with log.open("w") as out:
        shell = subprocess.Popen(
            ["bash", "-c", script(blocks)], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=root, start_new_session=True
        )
        try:
            code = shell.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # The shell's jobs have process groups of their own, and its session.
            subprocess.run(["pkill", "-9", "-s", str(shell.pid)], check=False)
            shell.wait()
            for name in NAMESPACES:
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(FOLDER, ignore_errors=True)
    parts = re.split(r"^=== (?:\d+|end)\n", log.read_text(), flags=re.MULTILINE)[1:]
    expect("every command succeeds", code == 0, (code, "".join(parts[-1:])[-2000:]))
    for (commands, words), part in zip(blocks, parts, strict=False):
        expect(f"`{commands.splitlines()[0]}` and what follows print {words!r}", words in part, part)
    print(f"ok  the tutorial: {sum(len(commands.splitlines()) for commands, _ in blocks)} lines pasted")


if __name__ == "__main__":
    sys.exit(routers.run(__doc__, ("ethtool", "ip", "ping", "pkill"), run))
