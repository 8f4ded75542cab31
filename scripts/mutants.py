#!/usr/bin/env python3
"""Changes the code of a copy of HEAD, one change (mutant) at a time, and runs tests, of which at least one has to fail.

    scripts/mutants.py [WORD]         changes in tests/mutants.toml, or only those whose name contains WORD
    scripts/mutants.py --file FILE    every change of a file, or of several (consensus/src/*.rs), that cargo-mutants generates,
                                      except those in tests/equivalent.toml. QUICK=1: runs only the quickest tests

Exits with 1 if a mutant survives, cannot be applied or does not compile.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target/mutants/copy"
# Failures need not be shrunk, and must not be replayed with the next mutant.
PROPTEST = {"PROPTEST_MAX_SHRINK_ITERS": "0", "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"}

# Tests that take seconds, for crates where these are not only the unit tests. Filters of tests come after `--`.
QUICK = [
    ("swordbox/", "-p swordbox --lib --test it"),
    ("rdmc/", "-p workloads --test it -- rdmc::"),
    ("dataplane/", "-p dataplane --test it"),
]
# Tests of the simulator, and other test programs, that detect mutants which survive the quick tests
OTHERS = [
    ("consensus/src/", "-p workloads --test it -- consensus::"),
    ("p4ce/", "-p workloads --test it -- groups::"),
    ("swordbox/", "-p workloads --test it -- swordbox::"),
    ("onepipe/", "-p workloads --test it -- onepipe::"),
    ("representative/", "-p workloads --test it -- onepipe::"),
    ("rnic/", "-p workloads --test it -- verbs::"),
    ("rdmc/", "-p rdmc --lib"),
]


def git(*arguments):
    subprocess.run(["git", "-C", ROOT, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def copy_of_head():
    """Creates the copy, and removes it at the end."""
    if COPY.exists():  # left by a run that was killed
        git("worktree", "remove", "--force", str(COPY))
    git("worktree", "prune")
    git("worktree", "add", "--force", "--detach", str(COPY), "HEAD")
    try:
        yield
    finally:
        git("worktree", "remove", "--force", str(COPY))


def cargo(*arguments):
    # Builds with debug assertions, as `make test` does.
    done = subprocess.run(
        ["cargo", *arguments], cwd=COPY, env={**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/mutants/target")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    return done.returncode, done.stdout


def outcome(mutant):
    """Returns the result of a mutant, which begins with `killed` if a test detected it."""
    path = COPY / mutant["file"]
    original = path.read_text()
    if original.count(mutant["from"]) != 1:
        return f"cannot be applied: `from` occurs {original.count(mutant['from'])} times in {mutant['file']}, not once"
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
    failures = [line.split()[-1] for line in output.splitlines() if line.strip().startswith(("FAIL [", "TIMEOUT ["))]
    return f"killed by {failures[0]}" if failures else f"fails without a test:\n{output[-2000:]}"


def suites(file):
    """Returns the tests for a file's changes: the quick ones of its crate, then others for the mutants that survive these."""
    crate = file.split("/")[0]
    quick = next((tests for prefix, tests in QUICK if file.startswith(prefix)), f"-p {crate} --lib")
    others = next((tests for prefix, tests in OTHERS if file.startswith(prefix)), f"-p {crate}")
    return [tests.split() for tests in ([quick] if "QUICK" in os.environ else [quick, others])]


def list_mutants(pattern):
    """Returns the changes of cargo-mutants for the files of a pattern, each with a number from 1 on."""
    done = subprocess.run(["cargo", "mutants", "--list", "--json", f"--file={pattern}"], cwd=COPY, check=True, stdout=subprocess.PIPE, text=True)
    return [{**mutant, "number": number} for number, mutant in enumerate(json.loads(done.stdout), 1)]


def embed(file, original, mutants, constant):
    """Writes a file with its mutants in it, except those of functions that have to stay `const`. Returns its text."""
    path = COPY / file
    path.write_text(original)
    manifest = ROOT / "scripts/schemata/Cargo.toml"
    done = subprocess.run(
        ["cargo", "run", "--quiet", "--release", "--locked", "--manifest-path", manifest, "--", path, *constant], check=True, text=True,
        input=json.dumps([mutant for mutant in mutants if mutant["file"] == file]), stdout=subprocess.PIPE,
        env={**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/mutants/schemata")},
    )
    path.write_text(done.stdout)
    return done.stdout


def find_changes(text):
    """Finds the changes in the output of `embed`: (begin, end, number, whether it is the original beside that change)."""
    token = re.compile(r'"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'|(\d+)u32 => \{|__original_(\d+) => \{|[{}]')
    open_braces, found = [], []
    for match in token.finditer(text):
        if match[0] == "}":
            begin, number, original = open_braces.pop()
            if number:
                found.append((begin, match.end(), number, original))
        elif match[0].endswith("{"):
            number = match[1] or match[2]
            open_braces.append((match.start(), number and int(number), bool(match[2])))
    return found


def build(tests):
    """Builds tests. Returns their programs, the errors in rustc's JSON form, and cargo's exit code."""
    tests = tests[: tests.index("--")] if "--" in tests else tests
    done = subprocess.run(
        ["cargo", "test", "--locked", "--no-run", "--message-format=json", *tests], cwd=COPY, text=True,
        stdout=subprocess.PIPE, env={**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target/mutants/target")}, stderr=subprocess.DEVNULL,
    )
    programs, errors = [], []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            programs.append((message["executable"], str(pathlib.Path(message["manifest_path"]).parent)))
        if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            errors.append(message["message"])
    return programs, errors, done.returncode


def no_longer_const(error):
    """Returns the function that an error reports as not `const` although a constant calls it, or None."""
    name = re.search(r"`([^`]+)`", error["message"])
    return name and name[1].split("::")[-1] if (error["code"] or {}).get("code") == "E0015" else None


def build_all(originals, mutants, tests):
    """Builds the tests of files with all mutants that compile. Returns the commands to run and these mutants."""
    constant = set()
    while True:
        texts = {file: embed(file, original, mutants, constant) for file, original in originals.items()}
        programs, errors, code = build(tests)
        regions = {file: find_changes(text) for file, text in texts.items()}
        if code == 0:
            kept = {number for found in regions.values() for _, _, number, _ in found}
            return commands(programs, tests), [mutant for mutant in mutants if mutant["number"] in kept]
        newly_constant = {no_longer_const(error) for error in errors} - {None}
        wrong = {number for error in errors if not no_longer_const(error) for number in changes_at(error, texts, regions, mutants)}
        if not wrong and newly_constant <= constant:
            rendered = "\n".join(line[:200] for error in errors[:3] for line in error["rendered"].splitlines())
            sys.exit(f"the files do not compile with all mutants in them:\n{rendered}")
        constant |= newly_constant
        mutants = [mutant for mutant in mutants if mutant["number"] not in wrong]


def changes_at(error, texts, regions, mutants):
    """Returns the numbers of the changes in which an error is: one, or all at a position if it is in the original there."""
    for span in sorted(error["spans"], key=lambda span: not span["is_primary"]):
        file = span["file_name"]
        if file not in texts:
            continue
        at = len(texts[file].encode()[: span["byte_start"]].decode(errors="ignore"))
        around = [place for place in regions[file] if place[0] <= at < place[1]]
        if around:
            _, _, number, is_original = min(around, key=lambda place: place[1] - place[0])
            here = {mutant["number"]: mutant["span"]["start"] for mutant in mutants if mutant["file"] == file}
            return {one for one in here if here[one] == here[number]} if is_original else {number}
        # A match arm with a guard does not count towards exhaustiveness: the change is the first arm behind the match's start.
        arms = {mutant["number"] for mutant in mutants if mutant["file"] == file and mutant["genre"] == "MatchArm"}
        behind = [place for place in regions[file] if place[0] >= at and place[2] in arms]
        if behind and (error["code"] or {}).get("code") == "E0004":
            return {min(behind)[2]}
    return set()


def commands(programs, tests):
    """Returns the commands that run these programs with the filters of the tests, each with its directory."""
    filters = tests[tests.index("--") + 1 :] if "--" in tests else []
    return [([program, *filters], directory) for program, directory in programs]


def survives(programs, number, limit, output=subprocess.DEVNULL):
    """Runs test programs with a mutant. Returns whether no test detected it.

    The limit of each program is `limit` seconds of CPU time, which does not depend on the load of the machine, and twenty
    times that in wall-clock time, for programs that sleep.
    """
    environment = {**os.environ, "MUTANT": str(number), "RUSTC_BOOTSTRAP": "1", "RUST_BACKTRACE": "0", **PROPTEST}
    for program, directory in programs:
        # The memory limit ends mutants that allocate endlessly.
        test = subprocess.Popen(
            ["prlimit", f"--data={8 << 30}", f"--cpu={limit}", *program, "-Zunstable-options", "--fail-fast", "-q"], cwd=directory, env=environment,
            stdout=output, stderr=output, start_new_session=True,
        )
        try:
            if test.wait(timeout=20 * limit) != 0:
                return False
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            test.wait()
            return False
    return True


def mutate(pattern):
    """Tries every change of files. Returns all changes, those that were tried, and those that survived."""
    everything = list_mutants(pattern)
    originals = {file: (COPY / file).read_text() for file in {mutant["file"] for mutant in everything}}
    tried, left = None, everything
    for tests in suites(pattern):
        start = time.monotonic()
        programs, compiled = build_all(originals, left, tests)
        built = time.monotonic() - start
        tried = tried or compiled
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        if not survives(programs, 0, 600, None):
            sys.exit(f"the tests fail without a mutant; correct them first: {' '.join(tests)}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        limit = 10 + 5 * int(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            survived = threads.map(lambda mutant: survives(programs, mutant["number"], limit), compiled)
            left = [mutant for mutant, same in zip(compiled, survived) if same]
        print(f"{' '.join(tests)}: {len(left)} of {len(compiled)} survived; "
              f"{built:.0f} s to build, {time.monotonic() - start:.0f} s to run", flush=True)
        if not left:
            break
    return everything, tried, left


def survivors(pattern):
    """Prints the changes that survived, except those in tests/equivalent.toml. Returns their number."""
    equivalent = tomllib.loads((ROOT / "tests/equivalent.toml").read_text())["equivalent"]
    known = {(one["file"], one["line"], one["change"]) for one in equivalent}
    everything, tried, surviving = mutate(pattern)
    unknown, seen = 0, set()
    for mutant in surviving:
        file, change = mutant["file"], mutant["name"].split(": ", 1)[1]
        # Reads the line here, because the copy's file contains all mutants.
        line = (ROOT / file).read_text().splitlines()[mutant["span"]["start"]["line"] - 1].strip()
        seen.add((file, line, change))
        if (file, line, change) not in known:
            unknown += 1
            print(f"SURVIVED: {mutant['name']}\n    {line}", flush=True)
    files = {mutant["file"] for mutant in everything}
    for file, line, change in sorted(one for one in known - seen if one[0] in files):
        print(f"detected by a test, remove it from tests/equivalent.toml: {file}: {change}\n    {line}", flush=True)
    print(f"{pattern}: {len(everything)} changes; {len(everything) - len(tried)} not tried (they do not compile, or are in "
          f"constants or planted bugs); {len(surviving)} survived, of which {len(surviving) - unknown} are equivalent")
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
            result = outcome(mutant)
            survived += not result.startswith("killed")
            print(f"{mutant['name']}: {result}", flush=True)
    sys.exit(f"{survived} of {len(mutants)} mutants survived; each needs a test, or a reason in a comment" if survived else 0)


if __name__ == "__main__":
    main()
