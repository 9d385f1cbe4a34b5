#!/bin/bash
# Run a script inside the ZFS virtual machine made by build.sh.
#
#   run.sh SHARE_DIR SCRIPT [TIMEOUT [ARG...]]
#
# SHARE_DIR is mounted read-write at /share in the guest; the directory of SCRIPT is mounted
# read-only at /scripts, so a script can source its neighbours.  SCRIPT runs under bash as
# root, in /tmp (a RAM disk), with ARGs.  Its stdout and stderr are passed through as they
# come, and its exit status is returned.  TIMEOUT is in seconds, default 600.
#
# Exit status of its own:  124 timed out   125 the guest did not boot, or died before the
# script ended   2 wrong usage.
#
# Environment: SUITE (default bookworm), ZFS_VM_DIR (default target/zfs-vm of the checkout),
#   ZFS_VM_MEM in MiB (default 4096), ZFS_VM_CPUS (default: all, at most 4),
#   ZFS_VM_ACCEL (default tcg; kvm where /dev/kvm is known to work), ZFS_VM_BOOT_TIMEOUT (90)
set -euo pipefail

SUITE=${SUITE:-bookworm}
DIR=$(realpath -m "${ZFS_VM_DIR:-$(dirname "$0")/../../target/zfs-vm}")/$SUITE
fail() { echo "zfs-vm: $2" >&2; exit "$1"; }

[ $# -ge 2 ] || { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
share=$1 script=$2 limit=${3:-600}
shift 2; if [ $# -gt 0 ]; then shift; fi
[ -d "$share" ] || fail 2 "no such directory: $share"
[ -f "$script" ] || fail 2 "no such script: $script"
case $limit in ''|*[!0-9]*) fail 2 "TIMEOUT is a number of seconds" ;; esac
[ -s "$DIR/vmlinuz" ] && [ -s "$DIR/initrd.img" ] || fail 125 "nothing built for $SUITE in $DIR: run build.sh"
command -v qemu-system-x86_64 > /dev/null || fail 125 "qemu-system-x86_64 is not installed: run build.sh"
share=$(realpath "$share"); script=$(realpath "$script")
case "$share${script%/*}" in *,*) fail 2 "a comma in the path of the share or script directory is not supported" ;; esac

tmp=$(mktemp -d); qemu= cats=
cleanup() {
  if [ -n "$qemu" ]; then kill -9 "$qemu" 2> /dev/null || true; fi
  if [ -n "$cats" ]; then kill $cats 2> /dev/null || true; fi
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$tmp/ctl"
{ printf 'exec bash %q' "/scripts/${script##*/}"; if [ $# -gt 0 ]; then printf ' %q' "$@"; fi; echo; } > "$tmp/ctl/go"
mkfifo "$tmp/out" "$tmp/err"
cat "$tmp/out" & cats=$!
cat "$tmp/err" >&2 & cats="$cats $!"

cpus=${ZFS_VM_CPUS:-$(nproc)}; if [ "$cpus" -gt 4 ]; then cpus=4; fi
accel=${ZFS_VM_ACCEL:-tcg}; [ "$accel" != tcg ] || accel=tcg,thread=multi
share9p() { echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap$3 -device virtio-9p-pci,fsdev=$1,mount_tag=$1"; }
IFS=$'\n'   # paths may hold spaces: split the option lists below on newlines only
opts=$(share9p share "$share" ""; share9p scripts "${script%/*}" ,readonly=on; share9p ctl "$tmp/ctl" "")
opts=$(sed 's/^-fsdev \(.*\) -device \([^ ]*\)$/-fsdev\n\1\n-device\n\2/' <<< "$opts")
qemu-system-x86_64 -accel "$accel" -cpu max -m "${ZFS_VM_MEM:-4096}" -smp "$cpus" \
  -nodefaults -no-user-config -display none -no-reboot \
  -kernel "$DIR/vmlinuz" -initrd "$DIR/initrd.img" -append "console=ttyS0 quiet panic=-1 random.trust_cpu=on no_timer_check" \
  -serial "file:$tmp/serial" -device virtio-rng-pci \
  -device virtio-serial-pci \
  -chardev "file,id=out,path=$tmp/out,append=on" -device virtserialport,chardev=out,name=out \
  -chardev "file,id=err,path=$tmp/err,append=on" -device virtserialport,chardev=err,name=err \
  $opts < /dev/null 2> "$tmp/qemu.err" &
qemu=$!
unset IFS

start=$SECONDS; boot=${ZFS_VM_BOOT_TIMEOUT:-90}; verdict=
while kill -0 "$qemu" 2> /dev/null; do
  if [ ! -e "$tmp/ctl/started" ] && [ $((SECONDS - start)) -ge "$boot" ]; then verdict=boot; break; fi
  if [ $((SECONDS - start)) -ge "$limit" ]; then verdict=time; break; fi
  sleep 0.2
done
if [ -n "$verdict" ]; then kill -9 "$qemu" 2> /dev/null || true; fi
wait "$qemu" 2> /dev/null || true; qemu=
# the guest's last output is still in the pipes; they end when qemu has ended
for c in $cats; do
  for _ in $(seq 25); do kill -0 "$c" 2> /dev/null || break; sleep 0.1; done
  kill "$c" 2> /dev/null || true
done
cats=
explain() {
  echo "zfs-vm: $1" >&2
  if [ -s "$tmp/qemu.err" ]; then sed 's/^/  qemu: /' "$tmp/qemu.err" | tail -n 10 >&2; fi
  if [ -s "$tmp/serial" ]; then
    grep -aE 'Kernel panic|VERIFY|PANIC|BUG:|Oops' "$tmp/serial" | tr -d '\r' | head -n 3 | sed 's/^/  console: /' >&2 || true
    echo "  console, last lines:" >&2
    tr -d '\r' < "$tmp/serial" | tail -n 25 | sed 's/^/  console: /' >&2
  fi
}
if [ "$verdict" = time ]; then explain "timed out after $limit s"; exit 124; fi
if [ "$verdict" = boot ]; then explain "the guest did not start within $boot s"; exit 125; fi
if [ ! -s "$tmp/ctl/started" ]; then explain "the guest did not boot"; exit 125; fi
if [ ! -s "$tmp/ctl/rc" ]; then explain "the guest died before the script ended"; exit 125; fi
exit "$(cat "$tmp/ctl/rc")"
