#!/usr/bin/env python3
"""Finds cycles between the top-level modules of each crate, in code that is not a test.

usage: .ci/cycles.py [--list]

A crate's top-level modules are the files and folders in its src/. `lib.rs` and `main.rs` may name all of them and are
not examined. A module depends on another if it names `crate::OTHER`, or an item that `lib.rs` takes from OTHER with
`pub use OTHER::item`. Known cycles are listed in .ci/cycles.txt, one line for each crate: the modules of its cycle. A
module that is in a cycle but not in the list fails the check. So does a listed module that is no longer in a cycle: the
list can only become shorter."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = ROOT / '.ci/cycles.txt'
TEST_FILES = re.compile(r'(^|/)(tests|testing|simulation|fuzzing)(/|\.rs$)|_tests?\.rs$')


def without_comments_and_strings(text):
    """The code with comments, strings and character literals blanked."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|br?#*"|r#*"|"(?:\\.|[^"\\])*"|\'(?:\\[^\n]{1,10}?|[^\\\'\n])\'', re.S)
    out, at = [], 0
    while True:
        found = pattern.search(text, at)
        if found is None:
            return ''.join(out) + text[at:]
        out.append(text[at:found.start()])
        token = found.group()
        if re.fullmatch(r'b?r?#*"', token) and token != '"':
            hashes = '"' + '#' * token.count('#')
            raw = 'r' in token
            end = text.find(hashes, found.end()) if raw else found.end()
            if not raw:
                end = re.compile(r'(?:\\.|[^"\\])*"', re.S).match(text, found.end()).end() - 1
            at = end + len(hashes)
        else:
            at = found.end()
        out.append(' ')


def block_end(code, opening):
    depth = 0
    for at in range(opening, len(code)):
        depth += {'{': 1, '}': -1}.get(code[at], 0)
        if depth == 0:
            return at + 1
    return len(code)


def without_tests(code):
    """The code without items after `#[cfg(test)]`."""
    while True:
        found = re.search(r'#\[cfg\((test|any\(test[^\]]*)\)\]', code)
        if found is None:
            return code
        rest = re.compile(r'[;{]').search(code, found.end())
        if rest is None:
            return code[:found.start()]
        end = rest.end() if rest.group() == ';' else block_end(code, rest.start())
        code = code[:found.start()] + code[end:]


def first_names(tree):
    """For a `use` tree like `a::{b, c}, d` without the leading `crate::`: the names a and d, with the rest of each."""
    tree = tree.strip()
    if tree.startswith('{'):
        inner, depth, part, parts = tree[1:tree.rindex('}')], 0, '', []
        for char in inner:
            depth += {'{': 1, '}': -1}.get(char, 0)
            if char == ',' and depth == 0:
                parts.append(part)
                part = ''
            else:
                part += char
        return [name for one in parts + [part] for name in first_names(one)] if inner.strip() else []
    found = re.match(r'\w+', tree)
    return [found.group()] if found else []


class Crate:
    def __init__(self, path):
        self.name, self.src = path.name, path / 'src'
        entries = [entry for entry in self.src.iterdir() if entry.is_dir() or entry.suffix == '.rs']
        self.modules = {entry.stem for entry in entries} - {'lib', 'main', 'bin'}
        self.home = {}          # the module of each item that lib.rs re-exports
        for root in ('lib.rs', 'main.rs'):
            if (self.src / root).exists():
                code = without_tests(without_comments_and_strings((self.src / root).read_text()))
                for tree in re.findall(r'\buse\s+(?:self::|crate::)?([^;]+);', code):
                    self.remember(tree)

    def remember(self, tree, module=None):
        found = re.match(r'\s*(\w+)\s*::\s*(.*)', tree, re.S)
        if module is None and found and found.group(1) in self.modules:
            module = found.group(1)
            for name in re.findall(r'\w+', re.sub(r'\w+\s+as\s+', '', found.group(2))):
                self.home.setdefault(name, module)

    def files(self, module):
        file, folder = self.src / f'{module}.rs', self.src / module
        if file.exists():
            yield file
        if folder.is_dir():
            yield from sorted(folder.rglob('*.rs'))

    def uses(self, module):
        """{other module: the first file that names it}"""
        found = {}
        for file in self.files(module):
            inside = file.relative_to(self.src).as_posix()
            if TEST_FILES.search(inside):
                continue
            code = without_tests(without_comments_and_strings(file.read_text()))
            names = []
            for use in re.finditer(r'\bcrate\s*::\s*', code):
                if code[use.end():use.end() + 1] == '{':
                    end = block_end(code, use.end())
                    names += first_names(code[use.end():end])
                else:
                    names += first_names(code[use.end():use.end() + 200])
            if file.parent == self.src:
                names += re.findall(r'\bsuper\s*::\s*(\w+)', code)
            for name in names:
                other = name if name in self.modules else self.home.get(name)
                if other is not None and other != module:
                    found.setdefault(other, inside)
        return found


def components(graph):
    """Sets of nodes that reach each other (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = set()
            while node not in part:
                part.add(stack.pop())
            on.difference_update(part)
            found.append(part)

    for node in graph:
        if node not in index:
            visit(node)
    return [part for part in found if len(part) > 1]


def main():
    allowed = {}
    if ALLOWED.exists():
        for line in ALLOWED.read_text().splitlines():
            if line and not line.startswith('#'):
                crate, modules = line.split(':')
                allowed[crate] = set(modules.split())
    failed = False
    for path in sorted((ROOT / 'crates').iterdir()):
        crate = Crate(path)
        graph = {module: crate.uses(module) for module in sorted(crate.modules)}
        graph = {module: {o: f for o, f in uses.items() if o in graph} for module, uses in graph.items()}
        cyclic = set().union(*components(graph))
        if '--list' in sys.argv and cyclic:
            print(f'{crate.name}: {" ".join(sorted(cyclic))}')
            for module in sorted(cyclic):
                arrows = ', '.join(f'{o} ({f})' for o, f in sorted(graph[module].items()) if o in cyclic)
                print(f'    {module} -> {arrows}')
        for module in sorted(cyclic - allowed.get(crate.name, set())):
            others = ', '.join(f'{o} ({f})' for o, f in sorted(graph[module].items()) if o in cyclic)
            print(f'{crate.name}: module {module} is part of a cycle. It uses {others}')
            failed = True
        for module in sorted(allowed.get(crate.name, set()) - cyclic):
            print(f'{crate.name}: module {module} is in no cycle any more: remove it from {ALLOWED.name}')
            failed = True
    sys.exit(failed)


if __name__ == '__main__':
    main()
