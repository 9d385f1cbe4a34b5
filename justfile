# The recipes are the steps of .ci/run: what passes here passes there.

default: fmt clippy test

# everything that CI does
ci:
    .ci/run

# install what the steps need (Debian)
setup:
    .ci/run setup

fmt:
    .ci/run fmt

# cycles between the modules of a crate, and prose beyond 120 columns
structure:
    .ci/run structure

# documentation of the crates, without a broken link
doc:
    .ci/run doc

clippy:
    .ci/run clippy

# licences of all dependencies
licences:
    .ci/run licences

# bans, licences, advisories (needs cargo-deny)
deny:
    cargo deny check

test:
    .ci/run test

# real clients of what is served
clients:
    .ci/run clients

# the README's first command
quickstart:
    .ci/run quickstart

build:
    .ci/run build

# the Debian package, built and tested in a clean Debian (root, FUSE)
deb: build
    .ci/run deb

# streams made by real ZFS: received, compared, sent again
corpus: build
    .ci/run corpus

# mounts under test suites, kill -9 and full pools (root, FUSE); `interop/run fuse --large` for full sizes
fuse: build
    .ci/run fuse

# syncoid, sanoid and zfs_autobackup on pools of ours
tools: build
    .ci/run tools

# the test suites of zrepl, syncoid, zfs_autobackup and OpenZFS on our zfs and zpool, and rsync's on our rsync (root, FUSE);
# `just suites zts --only rsend` for a part, `just suites rsync` for one
suites *args: build
    interop/suites/fetch.sh target/interop-suites
    interop/suites/run {{args}}

# pools in a Ceph on loopback (root); `interop/run ceph --large` for 4 GiB
ceph: build
    .ci/run ceph

# our streams in real ZFS, in a virtual machine
vm: build
    .ci/run vm

# the same with ZFS 2.3
vm-trixie: build
    SUITE=trixie .ci/run vm

# the same with ZFS 2.4, where its module builds for the kernel of Debian sid
vm-sid: build
    SUITE=sid .ci/run vm

# one minute for each target
fuzz:
    .ci/run fuzz

# full sizes; `just bench --quick` for small ones
bench *args: build
    python3 bench/run.py {{args}}
