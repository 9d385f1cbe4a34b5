#!/usr/bin/env bash
# Tests the Debian package: packaging/test-deb.sh PACKAGE [NEWER]
#
# In a clean Debian (debootstrap): installs PACKAGE and runs the quickstart as an ordinary user. With NEWER, upgrades
# while a filesystem is mounted and a server runs. Then removes the package. Needs root, FUSE, debootstrap and a Debian
# mirror. ROOT keeps the Debian for the next run, SUITE is its release (bookworm).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
package=$(realpath "$1")
newer=${2:+$(realpath "$2")}
suite=${SUITE:-bookworm}
base=${ROOT:-$(mktemp -d /var/tmp/snowmelt-debian.XXXXXX)}

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# The rest runs in a separate mount namespace, so that nothing stays mounted.
if [ "${INSIDE:-}" != 1 ]; then
  INSIDE=1 ROOT=$base exec unshare --mount --propagation private "$0" "$@"
fi

if [ ! -x "$base/usr/bin/apt-get" ]; then
  step "a clean $suite"
  debootstrap --variant=minbase "$suite" "$base" > "$base.log" || { tail -5 "$base.log"; exit 1; }
fi
# Changes to this Debian are thrown away.
work=$(mktemp -d /var/tmp/snowmelt-deb.XXXXXX)
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" snowmelt-test "$work/root"
root=$work/root
# Processes inside this root whose command lines begin with the argument.
of_root() {
  for process in /proc/[0-9]*; do
    if [ "$(readlink "$process/root" 2> /dev/null || true)" = "$root" ] \
        && { tr '\0' ' ' < "$process/cmdline" | grep -q "^$1"; } 2> /dev/null; then echo "${process#/proc/}"; fi
  done
}
finish() {
  status=$?
  for process in $(of_root ''); do kill "$process" 2> /dev/null || true; done
  # /dev of this machine is mounted inside.
  if umount --recursive --lazy "$root"; then rm -rf --one-file-system "$work"; fi
  [ $status -eq 0 ] && echo "the package is good"
  exit $status
}
trap finish EXIT
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# Debian's installer makes this link, and fusermount3 needs it.
ln -sf ../proc/self/mounts "$root/etc/mtab"
mkdir -p "$root/packages"
cp "$package" "$root/packages/first.deb"
[ -z "$newer" ] || cp "$newer" "$root/packages/newer.deb"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
  LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
as_user() { chroot --userspec=alice "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/home/alice USER=alice LANG=C.UTF-8 \
  sh -ec "cd; $1"; }

step 'it installs, with what it needs'
inside apt-get update -q > /dev/null
inside apt-get install -y -q --no-install-recommends /packages/first.deb fuse3 > "$work/apt.log" 2>&1 \
  || { tail -20 "$work/apt.log"; fail 'apt-get install'; }
inside useradd --create-home alice
inside snowmelt --version

step 'what it brings'
for file in /usr/share/man/man1/snowmelt-send.1.gz /usr/share/bash-completion/completions/snowmelt \
    /usr/share/zsh/vendor-completions/_snowmelt /usr/share/fish/vendor_completions.d/snowmelt.fish \
    /usr/lib/systemd/system/snowmelt-policy.service /usr/lib/systemd/user/snowmelt-nbd@.service \
    /usr/share/doc/snowmelt/copyright /usr/share/doc/snowmelt/examples/policy.toml; do
  inside test -s "$file" || fail "no $file"
done
[ "$(inside readlink /usr/sbin/mount.zfs)" = /usr/bin/snowmelt ] || fail 'mount.zfs leads elsewhere'
inside getent passwd snowmelt > /dev/null || fail 'no user snowmelt'
if inside sh -c 'command -v zfs || command -v zpool'; then fail 'zfs or zpool is in PATH'; fi
inside /usr/lib/snowmelt/bin/zfs version | grep -q snowmelt || fail 'the shim of zfs'
if readelf -S "$root/usr/bin/snowmelt" | grep -q '\.debug_info'; then fail 'the program is not stripped'; fi
inside du -k /usr/bin/snowmelt

step 'the quickstart, as an ordinary user'
mkdir -p "$root/quickstart/examples" "$root/quickstart/testdata"
cp "$here/examples/quickstart.sh" "$root/quickstart/examples/"
cp -r "$here/testdata/demo" "$root/quickstart/testdata/"
as_user 'SNOWMELT_INSTALLED=1 /quickstart/examples/quickstart.sh /home/alice/quick' > "$work/quickstart.log" 2>&1 \
  || { tail -20 "$work/quickstart.log"; fail 'the quickstart'; }
tail -n 1 "$work/quickstart.log"

if [ -n "$newer" ]; then
  step 'a mount and a server, while it is upgraded'
  as_user 'snowmelt pool create mounted && snowmelt create mounted/home && mkdir m &&
    snowmelt mount mounted/home ~/m && echo before > m/file'
  as_user 'snowmelt pool create served && snowmelt create -s -V 8M served/v'
  as_user 'mkdir -m 700 run; exec snowmelt serve nbd --unix ~/run/nbd.sock served > server.out 2>&1' &
  for _ in $(seq 300); do if inside test -S /home/alice/run/nbd.sock; then break; fi; sleep 0.2; done
  inside apt-get install -y -q /packages/newer.deb > "$work/apt.log" 2>&1 \
    || { tail -20 "$work/apt.log"; fail 'the upgrade'; }
  as_user 'cat m/file && echo after > m/file2'
  # The new program talks to the old one, which owns the pools.
  as_user 'snowmelt snapshot mounted/home@upgraded && snowmelt snapshot served/v@upgraded && snowmelt list -t all'
  as_user 'test -S run/nbd.sock && snowmelt unmount ~/m && snowmelt cat mounted/home@upgraded:file2'
  server=$(of_root 'snowmelt serve nbd')
  kill "$server"
  wait
  as_user 'snowmelt check mounted served'
fi

step 'it goes, and leaves pools alone'
inside apt-get remove -y -q snowmelt > "$work/apt.log" 2>&1 || { tail "$work/apt.log"; fail 'apt-get remove'; }
[ ! -L "$root/usr/sbin/mount.zfs" ] && [ ! -e "$root/usr/bin/snowmelt" ] || fail 'something stays'
[ -d "$root/home/alice/quick/data/snowmelt/tank" ] || fail 'a pool is gone'
