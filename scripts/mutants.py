#!/usr/bin/env python3
"""Makes changes, one at a time, in a copy of HEAD, and runs tests: one has to fail each time.

    scripts/mutants.py [WORD]         changes of tests/mutants.toml; only those whose name contains WORD
    scripts/mutants.py --file FILE    every change of a file that cargo-mutants knows; but for those of tests/equivalent.toml

Exits with 1 if a mutant survives, cannot be made or does not compile.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target/mutants/copy"

# Tests of the simulator, and other programs, that notice what the crate's own quick tests do not
OTHERS = [
    ("p4ce/src/consensus/", "-p sim --test consensus"),
    ("p4ce/", "-p p4ce -p sim --test groups"),
    ("swordbox/", "-p swordbox -p sim --test frames --test swordbox"),
    ("representative/", "-p sim --test onepipe"),
    ("rnic/", "-p sim --test verbs"),
    ("rdmc/", "-p rdmc -p sim --tests"),
]


def git(*arguments):
    subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def copy_of_head():
    """Makes the copy, and removes it."""
    git("worktree", "prune")
    git("worktree", "add", "--force", "--detach", str(COPY), "HEAD")
    try:
        yield
    finally:
        git("worktree", "remove", "--force", str(COPY))


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


def suites(file):
    """Returns the tests that a file's changes are tried with: first the quick ones of its crate, then others for what is left."""
    crate = file.split("/")[0]
    for prefix, others in OTHERS:
        if file.startswith(prefix):
            return [["-p", crate, "--lib"], others.split()]
    return [["-p", crate]]


def mutate(file, output):
    """Has cargo-mutants change a file in every way. Returns the changes that no test notices."""
    for round, tests in enumerate(suites(file)):
        packages = [name for option, name in zip(tests, tests[1:]) if option == "-p"]
        targets = [word for n, word in enumerate(tests) if word != "-p" and (n == 0 or tests[n - 1] != "-p")]
        code = subprocess.run(
            ["cargo", "mutants", "--in-place", "--no-shuffle", "--test-tool=nextest", f"--file={file}", f"--output={output}",
             *(["--iterate", "--baseline=skip", "--timeout=300"] if round else []), *(f"--test-package={name}" for name in packages),
             "--", "--locked", "--fail-fast", *targets],
            cwd=COPY, env={**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/mutants/target")},
        ).returncode
        # 2: some were missed; 3: some ran into their time-out, which is noticed
        if code not in (0, 2, 3):
            sys.exit(f"cargo-mutants: exit {code}")
    outcomes = json.loads((output / "mutants.out/outcomes.json").read_text())["outcomes"]
    return [outcome["scenario"]["Mutant"] for outcome in outcomes if outcome["summary"] == "MissedMutant"]


def survivors(file):
    """Says which changes of a file no test notices, but for those that are known to change nothing. Returns their number."""
    equivalent = tomllib.loads((ROOT / "tests/equivalent.toml").read_text())["equivalent"]
    known = {(one["line"], one["change"]) for one in equivalent if one["file"] == file}
    lines = (COPY / file).read_text().splitlines()
    output = ROOT / "target/mutants" / file.replace("/", "-")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    missed, unknown = mutate(file, output), 0
    for mutant in missed:
        line = lines[mutant["span"]["start"]["line"] - 1].strip()
        change = mutant["name"].split(": ", 1)[1]
        if (line, change) not in known:
            unknown += 1
            print(f"SURVIVED: {mutant['name']}\n    {line}", flush=True)
    print(f"{file}: {len(missed)} not noticed, of which {len(missed) - unknown} change nothing")
    return unknown


def main():
    if sys.argv[1:2] == ["--file"]:
        with copy_of_head():
            sys.exit(1 if survivors(sys.argv[2]) else 0)
    mutants = tomllib.loads((ROOT / "tests/mutants.toml").read_text())["mutant"]
    if len(sys.argv) > 1:
        mutants = [mutant for mutant in mutants if sys.argv[1] in mutant["name"]]
    survived = 0
    with copy_of_head():
        for mutant in mutants:
            became = outcome(mutant)
            survived += not became.startswith("killed")
            print(f"{mutant['name']}: {became}", flush=True)
    sys.exit(f"{survived} of {len(mutants)} mutants were not noticed" if survived else 0)


if __name__ == "__main__":
    main()
