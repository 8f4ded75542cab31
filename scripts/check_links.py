#!/usr/bin/env python3
"""Checks that relative links and anchors of all Markdown files in the repository resolve, and that docs/SUMMARY.md lists
every page.

Prints a line per broken link, and exits with 1 if there is one. Anchors are computed as on GitHub.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def lines_outside_code(path):
    """Yields the numbered lines of a file outside code blocks."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(path):
    """Yields the anchors of a file's headings."""
    seen = {}
    for _, line in lines_outside_code(path):
        heading = re.match(r"#{1,6} (.*)", line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = seen.setdefault(anchor, 0)
            seen[anchor] += 1
            yield f"{anchor}-{count}" if count else anchor


def main():
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], check=True, stdout=subprocess.PIPE, text=True).stdout
    files = [ROOT / name for name in names.split()]
    anchors_by_file = {path: set(anchors(path)) for path in files}
    broken = 0
    listed = set()
    for path in files:
        for number, line in lines_outside_code(path):
            for link in LINK.findall(re.sub(r"`[^`]*`", "``", line)):
                if re.match(r"[a-z]+:", link):
                    continue
                name, _, anchor = link.partition("#")
                target = (path.parent / name).resolve() if name else path
                if path == ROOT / "docs/SUMMARY.md":
                    listed.add(target)
                if not target.exists() or anchor and anchor not in anchors_by_file.get(target, ()):
                    print(f"{path.relative_to(ROOT)}:{number}: {link} does not resolve; correct the path or the anchor")
                    broken += 1
    for path in files:
        if path.is_relative_to(ROOT / "docs") and path.name != "SUMMARY.md" and path not in listed:
            print(f"docs/SUMMARY.md: {path.relative_to(ROOT)} is not listed; add a link to it")
            broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
