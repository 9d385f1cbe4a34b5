"""Programs of this machine with their libraries, for a machine that has other versions or none."""
import os
import re
import shutil
import subprocess

LOADER = 'ld.so'
LIBRARY = re.compile(r'(?:\S+ => )?(/\S+) \(0x')


class Bundle:
    """A directory to be copied or mounted at `there`. `bin` holds the programs to call, `lib` their libraries."""

    def __init__(self, top, there):
        self.top, self.there = top, there
        for d in ('bin', 'lib', 'libexec'):
            os.makedirs(os.path.join(top, d))

    def libraries(self, path):
        for line in subprocess.run(['ldd', path], capture_output=True, text=True, check=True).stdout.split('\n'):
            found = LIBRARY.search(line)
            if found:
                library = found.group(1)
                name = LOADER if os.path.basename(library).startswith('ld-') else os.path.basename(library)
                shutil.copy(os.path.realpath(library), os.path.join(self.top, 'lib', name))

    def add(self, path, *names):
        """Adds a program under its own name or under these names. The program sees the name by which it was called."""
        program = os.path.basename(path)
        shutil.copy(os.path.realpath(path), os.path.join(self.top, 'libexec', program))
        self.libraries(path)
        for name in names or (program,):
            self.script(name, 'exec %s/lib/%s --argv0 %s --library-path %s/lib %s/libexec/%s "$@"\n'
                        % (self.there, LOADER, name, self.there, self.there, program))

    def script(self, name, text):
        path = os.path.join(self.top, 'bin', name)
        with open(path, 'w') as f:
            f.write('#!/bin/sh\n' + text)
        os.chmod(path, 0o755)

    def add_perl(self):
        """Adds perl with all installed modules."""
        self.add(shutil.which('perl'))
        where = subprocess.run(['perl', '-e', 'print join "\n", grep { -d } @INC'], capture_output=True, text=True,
                               check=True)
        places = []
        for number, place in enumerate(where.stdout.split('\n')):
            name = 'perl%d' % number
            shutil.copytree(place, os.path.join(self.top, 'lib', name), ignore=shutil.ignore_patterns('*.pod'),
                            ignore_dangling_symlinks=True)
            places.append('%s/lib/%s' % (self.there, name))
        # perl would see the loader as its own path ($^X), and start that to run another perl.
        with open(os.path.join(self.top, 'lib', 'perl0', 'Itself.pm'), 'w') as f:
            f.write('package Itself;\n$^X = "%s/bin/perl";\n1;\n' % self.there)
        shutil.move(os.path.join(self.top, 'bin', 'perl'), os.path.join(self.top, 'libexec', 'perl.sh'))
        self.script('perl', 'PERL5OPT=-MItself PERL5LIB=%s exec %s/libexec/perl.sh "$@"\n'
                    % (':'.join(places), self.there))
