#!/bin/sh
# The main job, from end to end, on a stream from a real `zfs send`: receive it, look inside, receive the next day's
# changes, and send them on.
#
#   examples/quickstart.sh [DIRECTORY]      DIRECTORY keeps the pool (default: a new temporary one)
#
# Nothing is installed. Nothing outside DIRECTORY is changed, except cargo's own files.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
work=${1:-$(mktemp -d)}
mkdir -p "$work"
if [ -z "${SNOWMELT_INSTALLED:-}" ]; then     # if set, the snowmelt in PATH is used
  cargo build --release --manifest-path "$here/Cargo.toml"
  PATH=${CARGO_TARGET_DIR:-$here/target}/release:$PATH
fi
export XDG_DATA_HOME="$work/data"      # default place of pools
export XDG_CONFIG_HOME="$work/config"  # list of pools at other places

step() { printf '\n# %s\n' "$*"; }
show() { printf '$ %s\n' "$*"; "$@"; }
from() { file=$1; shift; name=${file#"$here"/}; printf '$ %s < %s\n' "$*" "${name#"$work"/}"; "$@" < "$file"; }
into() { file=$1; shift; printf '$ %s > %s\n' "$*" "${file#"$work"/}"; "$@" > "$file"; }

step 'A pool, in a directory. No root, no kernel module, no ZFS.'
show snowmelt pool create tank

step 'A stream of `zfs send -Lec tank/home@monday`, made on a ZFS machine.'
from "$here/testdata/demo/full.zstream" snowmelt receive tank/home
step 'And `zfs send -Lec -i @monday tank/home@tuesday`.'
from "$here/testdata/demo/incremental.zstream" snowmelt receive tank/home
show snowmelt list -t all -o name,used,referenced,creation

step 'Files of any snapshot, without mounting anything.'
show snowmelt ls -l tank/home@tuesday
show snowmelt cat tank/home@monday:projects/garden/plan.md
show snowmelt diff tank/home@monday tank/home@tuesday
show snowmelt restore tank/home@monday:projects "$work/restored"
show ls -l "$work/restored/garden"

step 'Back out as real ZFS streams: all of it, or what changed.'
into "$work/full.zstream" snowmelt send -Lec tank/home@monday
into "$work/incremental.zstream" snowmelt send -Lec -i @monday tank/home@tuesday
from "$work/incremental.zstream" snowmelt stream verify

step 'Another pool, in a disk image this time, takes them; so does a real `zfs receive`.'
show snowmelt pool create --size 64M vault "$work/vault.img"
from "$work/full.zstream" snowmelt receive vault/home
from "$work/incremental.zstream" snowmelt receive vault/home
snowmelt manifest tank/home@tuesday > "$work/here"
snowmelt manifest vault/home@tuesday > "$work/there"
show cmp "$work/here" "$work/there"

step 'Every block and every count, checked.'
show snowmelt check tank vault

printf '\nThe pools are in %s: tank in data/snowmelt/tank, vault in vault.img.\n' "$work"
