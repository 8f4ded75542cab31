#!/usr/bin/env python3
"""Makes the changes of tests/mutants.toml, one at a time, in a copy of HEAD, and runs their tests: one has to fail each time.

    scripts/mutants.py [WORD]      only mutants whose name contains WORD

Exits with 1 if a mutant survives, cannot be made or does not compile.
"""

import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target/mutants/copy"


def git(*arguments):
    subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def cargo(*arguments):
    # The copy's own code has debug assertions, as in `make test`.
    done = subprocess.run(
        ["cargo", *arguments], cwd=COPY, env={**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/mutants/target")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    return done.returncode, done.stdout


def outcome(mutant):
    """Says what became of a mutant: `killed` if a test noticed it."""
    path = COPY / mutant["file"]
    original = path.read_text()
    if original.count(mutant["from"]) != 1:
        return f"cannot be made: its text is {original.count(mutant['from'])} times in {mutant['file']}"
    tests = mutant["tests"].split()
    try:
        path.write_text(original.replace(mutant["from"], mutant["to"]))
        code, output = cargo("nextest", "run", "--locked", "--no-run", *tests)
        if code != 0:
            return f"does not compile:\n{output[-2000:]}"
        code, output = cargo("nextest", "run", "--locked", "--fail-fast", *tests)
    finally:
        path.write_text(original)
    if code == 0:
        return "SURVIVED"
    noticed = [line.split()[-1] for line in output.splitlines() if line.strip().startswith(("FAIL [", "TIMEOUT ["))]
    return f"killed by {noticed[0]}" if noticed else f"fails without a test:\n{output[-2000:]}"


def main():
    mutants = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    if len(sys.argv) > 1:
        mutants = [mutant for mutant in mutants if sys.argv[1] in mutant["name"]]
    git("worktree", "prune")
    git("worktree", "add", "--force", "--detach", str(COPY), "HEAD")
    survived = 0
    try:
        for mutant in mutants:
            became = outcome(mutant)
            survived += not became.startswith("killed")
            print(f"{mutant['name']}: {became}", flush=True)
    finally:
        git("worktree", "remove", "--force", str(COPY))
    sys.exit(f"{survived} of {len(mutants)} mutants were not noticed" if survived else 0)


if __name__ == "__main__":
    main()
