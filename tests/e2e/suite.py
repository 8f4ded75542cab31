"""Runner of test cases in a lab, one after the other: options, results, logs, clean-up."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from guest import CommandFailed, LabError
from lab import Lab

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


class Named(Protocol):
    """A case: has a name, and a command that describes it in a line."""

    @property
    def name(self) -> str: ...

    @property
    def command(self) -> str: ...


C = TypeVar("C", bound=Named)


def parser(doc: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that every suite has."""
    options = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    options.add_argument("--understudy", type=Path, default=REPOSITORY / "target/release/understudy", metavar="PATH",
                         help="the program (default: %(default)s)")
    options.add_argument("--only", action="append", metavar="NAME", help="run only the cases that match this pattern (repeatable)")
    options.add_argument("--list", action="store_true", help="print the cases and their commands")
    options.add_argument("--keep-logs", action="store_true", help="also keep the logs if all cases pass")
    options.add_argument("--guest-dir", type=Path, default=REPOSITORY / "target/e2e", metavar="DIR",
                         help="folder of the guests' kernel and initramfs")
    options.add_argument("--accel", default="tcg", help="accelerator of qemu (default: tcg, which is emulation)")
    return options


def chosen(arguments: argparse.Namespace, cases: Sequence[C]) -> list[C]:
    """Returns the cases that the options select; default: all."""
    is_selected = lambda case: any(fnmatch.fnmatchcase(case.name, pattern) for pattern in arguments.only)  # noqa: E731
    return [case for case in cases if not arguments.only or is_selected(case)]


def _interrupt(*_: object) -> None:
    """Ends the run with its clean-up, which further signals do not interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def run(
    arguments: argparse.Namespace,
    cases: Sequence[C],
    set_up: Callable[[Lab], None],
    run_case: Callable[[C, Lab, Path, Path], tuple[list[str], str]],
    description: str,
    more_images: Sequence[str] = (),
) -> int:
    """Runs the cases in a lab that `set_up` prepares, after the scripts `more_images`. Returns the exit code.

    `run_case` takes the case, the lab, the program and a folder, and returns the problems
    and a summary of the run.
    """
    if arguments.list:
        for case in cases:
            print(f"{case.name:22} {case.command}")
        return 0
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    log_dir = Path(tempfile.mkdtemp(prefix="understudy-e2e-"))
    started = time.monotonic()
    passed, error = 0, ""
    try:
        for script in ("build-guest.sh", *more_images):
            subprocess.run([HERE / script, arguments.guest_dir], check=True)
        boot_start = time.monotonic()
        with Lab(arguments.guest_dir, log_dir, accel=arguments.accel) as lab:
            set_up(lab)
            lab.boot()
            print(f"{len(lab.guests)} guests booted in {time.monotonic() - boot_start:.1f} s", flush=True)
            for case in cases:
                start = time.monotonic()
                try:
                    problems, summary = run_case(case, lab, arguments.understudy.resolve(), log_dir)
                except CommandFailed as failure:
                    problems, summary = [str(failure)], ""
                passed += not problems
                verdict = "ok    " if not problems else "FAILED"
                print(f"{verdict} {case.name:22} {time.monotonic() - start:5.1f} s  {summary}", flush=True)
                for problem in problems:
                    print("       " + problem.replace("\n", "\n       "), flush=True)
    except (LabError, subprocess.CalledProcessError) as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "interrupted"
    print(f"{passed} of {len(cases)} cases passed {description} in {time.monotonic() - started:.0f} s")
    if error:
        print(f"error: {error}", file=sys.stderr)
    succeeded = not error and passed == len(cases)
    if succeeded and not arguments.keep_logs:
        shutil.rmtree(log_dir)
    else:
        print(f"logs: {log_dir}", file=sys.stderr)
    return 0 if succeeded else 1
