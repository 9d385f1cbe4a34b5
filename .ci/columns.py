#!/usr/bin/env python3
"""Finds lines of prose that are longer than 120 columns.

usage: .ci/columns.py [FILE...]

Prose is: paragraphs and lists in Markdown (not tables, code blocks, headings, and lines without a space to break at),
comments in Rust, Python and shell, and docstrings in Python. Without arguments, all files of the repository are
checked."""
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 120


def markdown(text):
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r'\s*(```+|~~~+)', line)
        if mark and (fence is None or line.strip().startswith(fence)):
            fence = None if fence else mark.group(1)
        elif fence is None and not re.match(r'\s*(\||#|    \S)', line):
            yield number, line


def rust(text):
    for number, line in enumerate(text.splitlines(), 1):
        # A table of rustdoc is one line for each row.
        if re.match(r'\s*//', line) and not re.match(r'\s*//[/!]? \|', line):
            yield number, line


def python(text):
    lines = text.splitlines()
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith('#'):
            yield token.start[0], lines[token.start[0] - 1]
        begins_line = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL)
        if token.type == tokenize.STRING and begins_line:
            yield from ((number, lines[number - 1]) for number in range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type


def shell(text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith('#') and not line.startswith('#!'):
            yield number, line


def kind(path, text):
    if path.suffix == '.md':
        return markdown
    if path.suffix == '.rs':
        return rust
    if path.suffix == '.py' or re.match(r'#!.*python', text):
        return python
    if path.suffix == '.sh' or re.match(r'#!.*\b(ba)?sh\b', text):
        return shell
    return None


def main():
    names = sys.argv[1:] or subprocess.run(
        ['git', 'ls-files'], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split('\n')
    found = 0
    for name in filter(None, names):
        path = ROOT / name
        try:
            text = path.read_text()
        except (UnicodeDecodeError, IsADirectoryError, FileNotFoundError):
            continue
        prose = kind(path, text)
        for number, line in prose(text) if prose else ():
            if len(line) > COLUMNS and ' ' in line.strip().lstrip('-*/! '):
                print(f'{name}:{number}: {len(line)} columns')
                found += 1
    if found:
        print(f'{found} lines of prose are longer than {COLUMNS} columns')
    sys.exit(found > 0)


if __name__ == '__main__':
    main()
