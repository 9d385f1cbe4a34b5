#!/bin/bash
# Build a tiny virtual machine (kernel + initramfs) that runs the real OpenZFS,
# for use as a test oracle.  Companion of run.sh.
#
#   build.sh             build what is missing, then print where it is
#   build.sh --check     do not build: verify the cached files and boot them once
#   build.sh --rebuild   throw the cached files of this suite away and build anew
#   build.sh --initrd    rebuild only the initramfs from the cached root tree
#
# Environment
#   SUITE        bookworm (default, ZFS 2.1, Linux 6.1), trixie (ZFS 2.3, Linux 6.12),
#                or any Debian suite; "<suite>-backports" takes kernel and ZFS from there
#   ZFS_VM_DIR   cache directory, default target/zfs-vm of the checkout; each suite has its own
#                subdirectory, holding vmlinuz, initrd.img, version, SHA256SUMS (all that
#                run.sh needs; may be copied to another machine) and root/ (the build tree)
#   MIRROR       Debian mirror; default: the one this machine's apt uses
#   KEEP_ROOT    1 (default) keeps root/ so that --initrd is quick; 0 deletes it (~1.3 GB)
#
# Must run as root on Debian (debootstrap needs chroot and mknod).  Needs ~2 GB of disk.
set -euo pipefail

SUITE=${SUITE:-bookworm}
KEEP_ROOT=${KEEP_ROOT:-1}
BASE=${SUITE%-backports}
HERE=$(cd "$(dirname "$0")" && pwd)
ZFS_VM_DIR=$(realpath -m "${ZFS_VM_DIR:-$HERE/../../target/zfs-vm}")
DIR=$ZFS_VM_DIR/$SUITE
ROOT=$DIR/root
LOG=$DIR/build.log
T0=$SECONDS

say() { printf 'zfs-vm[%s] %4ds  %s\n' "$SUITE" $((SECONDS - T0)) "$*" >&2; }
die() { say "ERROR: $*"; if [ -s "$LOG" ]; then echo "--- last lines of $LOG" >&2; tail -n 15 "$LOG" >&2; fi; exit 1; }

mode=build
case "${1:-}" in
  '') ;;
  --check) mode=check ;;
  --rebuild) mode=rebuild ;;
  --initrd) mode=initrd ;;
  -h|--help) sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  *) echo "unknown argument: $1 (try --help)" >&2; exit 2 ;;
esac

complete() { [ -s "$DIR/SHA256SUMS" ] && (cd "$DIR" && sha256sum --status -c SHA256SUMS); }

check() {
  complete || die "no complete build in $DIR (run build.sh)"
  say "files are intact: $(tr '\n' ' ' < "$DIR/version")"
  t=$(mktemp -d)
  trap 'rm -rf "$t"' EXIT
  cat > "$t/check.sh" <<'GUEST'
set -e
truncate -s 256M /tmp/p; zpool create -o cachefile=none chk /tmp/p
echo hello > /chk/f; zfs snapshot chk@a
zfs send chk@a > /share/s; zfs receive chk/r < /share/s; cmp /chk/f /chk/r/f
zstream dump /share/s | grep -q 'SUMMARY'
python3 -c 'import hashlib, json'
zpool destroy chk; zfs version
GUEST
  local s=$SECONDS
  SUITE=$SUITE ZFS_VM_DIR=$ZFS_VM_DIR "$HERE/run.sh" "$t" "$t/check.sh" 180 || die "boot check failed (exit $?)"
  say "boot, send, receive: ok ($((SECONDS - s)) s)"
}

if [ $mode = check ]; then check; exit 0; fi

[ "$(id -u)" = 0 ] || die "must run as root"
mkdir -p "$DIR"
exec 9> "$DIR/.lock"; flock 9               # two builds of the same suite wait for each other
if [ $mode = rebuild ]; then rm -rf "$ROOT" "$DIR"/{vmlinuz,initrd.img,version,SHA256SUMS}; fi
if [ $mode = build ] && complete; then say "already built: $DIR"; exit 0; fi
if [ $mode = initrd ]; then touch "$LOG"; else : > "$LOG"; fi

# ---- host tools -------------------------------------------------------------------------
need=()
for p in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap cpio:cpio zstd:zstd \
         xz:xz-utils ; do
  command -v "${p%%:*}" > /dev/null || need+=("${p#*:}")
done
if [ ${#need[@]} -gt 0 ]; then
  say "apt-get install ${need[*]}"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${need[@]}"; } \
    >> "$LOG" 2>&1 || die "cannot install host tools"
fi

# ---- Debian mirror: whatever this machine's apt takes the main archive from --------------
if [ -z "${MIRROR:-}" ]; then
  targets() { apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' 'Identifier: Packages' 2> /dev/null; }
  find_mirror() { targets | awk '$2 == "Debian" && $3 == "main" { print $1; exit }'; }
  MIRROR=$(find_mirror)
  # a fresh image has no package lists yet, and so no Label to select the mirror by
  if [ -z "$MIRROR" ]; then apt-get update >> "$LOG" 2>&1 || true; MIRROR=$(find_mirror); fi
  if [ -z "$MIRROR" ]; then MIRROR=$(targets | awk '$1 !~ /security/ { print $1; exit }'); fi
  [ -n "$MIRROR" ] || die "cannot tell the Debian mirror from apt's configuration; set MIRROR"
fi

# ---- root tree --------------------------------------------------------------------------
#
# Mounts for the chroot are made in a private mount namespace, so they cannot leak. Mounts that tests made outside stay
# in use in that namespace, and unmounting them could take minutes.
in_root() {
  unshare --mount --propagation private bash -c '
    root=$1; shift
    umount --all --lazy --types fuse.snowmelt
    mount -t proc proc "$root/proc" && mount -t sysfs -o ro sys "$root/sys" && mount --bind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive INITRD=No "$@"' in_root "$ROOT" "$@"
}
if [ ! -e "$ROOT/.complete" ]; then
  rm -rf "$ROOT"
  say "debootstrap $BASE from the machine's mirror"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  script=(); [ -e "/usr/share/debootstrap/scripts/$BASE" ] || script=(/usr/share/debootstrap/scripts/sid)
  debootstrap --variant=minbase --components=main,contrib --include=ca-certificates \
    $([ -e $keyring ] && echo --keyring=$keyring) "$BASE" "$ROOT" "$MIRROR" "${script[@]}" >> "$LOG" 2>&1 \
    || die "debootstrap failed"
  # let apt inside reach the mirror in the same way as outside
  { apt-config dump | grep -E '^Acquire::(http|https|ftp|Check|Retries|ForceIPv|Languages)' || true; } > "$ROOT/etc/apt/apt.conf.d/90host"
  for f in /etc/resolv.conf /etc/hosts; do cp -L $f "$ROOT$f"; done
  if [ -d /usr/local/share/ca-certificates ]; then
    cp -rL /usr/local/share/ca-certificates/. "$ROOT/usr/local/share/ca-certificates/"
    in_root update-ca-certificates >> "$LOG" 2>&1 || true
  fi
  printf '#!/bin/sh\nexit 101\n' > "$ROOT/usr/sbin/policy-rc.d"; chmod 755 "$ROOT/usr/sbin/policy-rc.d"
  printf 'path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n' \
    > "$ROOT/etc/dpkg/dpkg.cfg.d/nodoc"
  echo "deb $MIRROR $BASE main contrib" > "$ROOT/etc/apt/sources.list"
  from=()
  if [ "$SUITE" != "$BASE" ]; then
    echo "deb $MIRROR $SUITE main contrib" >> "$ROOT/etc/apt/sources.list"; from=(-t "$SUITE")
  fi
  say "install kernel, headers, compiler, tools"
  in_root apt-get update >> "$LOG" 2>&1 || die "apt-get update failed in the root tree"
  in_root apt-get install -y --no-install-recommends "${from[@]}" linux-image-amd64 linux-headers-amd64 \
    build-essential dkms kmod busybox-static rsync attr acl e2fsprogs util-linux coreutils diffutils findutils \
    grep sed gawk gzip xz-utils zstd python3 >> "$LOG" 2>&1 || die "package installation failed"
  say "install and compile ZFS (the long step)"
  in_root apt-get install -y --no-install-recommends "${from[@]}" zfs-dkms zfsutils-linux >> "$LOG" 2>&1 \
    || die "ZFS installation failed"
  kver=$(basename "$(ls -d "$ROOT"/lib/modules/*/ | sort -V | tail -n 1)")
  in_root dkms autoinstall -k "$kver" >> "$LOG" 2>&1 || die "dkms failed for $kver"
  [ -n "$(find "$ROOT/lib/modules/$kver/updates" -name 'zfs.ko*')" ] || die "zfs.ko was not built for $kver"
  in_root depmod "$kver" >> "$LOG" 2>&1
  rm -rf "$ROOT"/var/cache/apt/archives/*.deb "$ROOT"/var/lib/apt/lists/* "$ROOT/etc/apt/apt.conf.d/90host"
  touch "$ROOT/.complete"
fi
KVER=$(basename "$(ls -d "$ROOT"/lib/modules/*/ | sort -V | tail -n 1)")

# ---- initramfs --------------------------------------------------------------------------
say "initramfs for $KVER"
IRD=$DIR/ird.tmp; rm -rf "$IRD"
mkdir -p "$IRD"/{dev,proc,sys,tmp,run,share,scripts,ctl,etc,root,mnt,var,bb} "$IRD"/usr/{bin,sbin,lib,lib64}
for d in bin sbin lib lib64; do ln -s usr/$d "$IRD/$d"; done
real() { readlink -f "$1"; }

# copy files (paths inside the root tree) with the libraries they need; /bin/x is /usr/bin/x
declare -A have=()
copy() {
  local f l
  for f in "$@"; do
    case $f in /bin/*|/sbin/*|/lib/*|/lib64/*) f=/usr$f ;; esac
    if [ -n "${have[$f]:-}" ]; then continue; fi
    if [ ! -e "$ROOT$f" ] && [ ! -L "$ROOT$f" ]; then say "note: $f is not there"; continue; fi
    have[$f]=1
    mkdir -p "$IRD${f%/*}"
    if [ -L "$ROOT$f" ]; then               # keep the link, then copy its target
      cp -a "$ROOT$f" "$IRD$f"
      l=$(readlink "$ROOT$f"); case $l in /*) ;; *) l=$(realpath -ms "${f%/*}/$l") ;; esac
      copy "$l"; continue
    fi
    cp -a "$ROOT$f" "$IRD$f"
    for l in $(chroot "$ROOT" ldd "$f" 2> /dev/null | grep -oE '/[^ ]+\.so[^ ]*' || true); do copy "$l"; done
  done
}
bins_of() { chroot "$ROOT" dpkg -L "$@" | grep -E '^(/usr)?/s?bin/[^/]+$' | sort -u; }
which_in() { local b; for b in "$@"; do chroot "$ROOT" sh -c "command -v $b" || say "note: no $b"; done; }

copy $(bins_of coreutils attr acl diffutils findutils grep sed gzip xz-utils zstd kmod e2fsprogs zfsutils-linux rsync)
copy $(which_in bash gawk python3 busybox mount umount losetup fallocate blkdiscard mountpoint blockdev dmesg setpriv getconf)
copy $(find "$ROOT/usr/lib/udev" -name zvol_id -printf '/usr/lib/udev/%f ')
copy $(cd "$ROOT" && ls usr/lib/x86_64-linux-gnu/libgcc_s.so.1 | sed 's#^#/#')      # dlopen()ed by pthread_exit
if [ ! -e "$IRD/usr/bin/awk" ]; then ln -s gawk "$IRD/usr/bin/awk"; fi
ln -sf bash "$IRD/usr/bin/sh"
if [ -d "$ROOT/usr/lib/locale/C.utf8" ]; then mkdir -p "$IRD/usr/lib/locale"; cp -a "$ROOT/usr/lib/locale/C.utf8" "$IRD/usr/lib/locale/"; fi

# python3: the standard library without unused parts. Compiled files keep their times, so that the guest need not
# compile again.
py=$(cd "$ROOT/usr/lib" && ls -d python3.[0-9]* | sort -V | tail -n 1)
rm -f "$IRD/usr/lib/$py"
cp -a "$ROOT/usr/lib/$py" "$IRD/usr/lib/"
(cd "$IRD/usr/lib/$py" && rm -rf test idlelib lib2to3 pydoc_data distutils ensurepip tkinter turtledemo unittest \
   asyncio multiprocessing concurrent xml xmlrpc wsgiref sqlite3 curses dbm email http html venv config-* \
   __pycache__/{pydoc,turtle,doctest,typing}.* lib-dynload/{_sqlite3,_curses*,_dbm,_gdbm,readline,_tkinter,_ssl,_asyncio,_test*,_xx*,_codecs_*,audioop}*)
for so in "$IRD/usr/lib/$py"/lib-dynload/*.so; do copy "${so#"$IRD"}"; done

# kernel modules in load order, uncompressed
mkdir -p "$IRD/modules"; : > "$IRD/etc/modlist"
for m in virtio_pci virtio_console 9pnet_virtio 9p virtio_blk crc32c_generic crc32c_intel ext4 loop zfs; do
  chroot "$ROOT" modprobe -S "$KVER" --ignore-install --show-depends "$m" 2> /dev/null | awk '$1 == "insmod" { print $2 }' || true
done | awk '!seen[$0]++' | while read -r ko; do
  b=$(basename "$ko"); b=${b%.xz}; b=${b%.zst}; b=${b%.gz}
  case $ko in
    *.xz) xz -dc "$ROOT$ko" ;; *.zst) zstd -qdc "$ROOT$ko" ;; *.gz) gzip -dc "$ROOT$ko" ;; *) cat "$ROOT$ko" ;;
  esac > "$IRD/modules/$b"
  echo "/modules/$b" >> "$IRD/etc/modlist"
done
grep -q /zfs.ko "$IRD/etc/modlist" || die "zfs.ko is not among the modules"

printf 'root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' > "$IRD/etc/passwd"
printf 'root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n' > "$IRD/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files\n' > "$IRD/etc/nsswitch.conf"
ln -s /proc/self/mounts "$IRD/etc/mtab"
cp "$ROOT/etc/mke2fs.conf" "$IRD/etc/" 2> /dev/null || true
cp "$ROOT/etc/ld.so.cache" "$IRD/etc/" 2> /dev/null || true

# PID 1.  Reports over files in /ctl (a 9p share private to run.sh): started, rc.
cat > "$IRD/init" <<'INIT'
#!/usr/bin/busybox sh
/usr/bin/busybox --install -s /bb
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/bb HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm; mount -t devpts pts /dev/pts; ln -sf /proc/self/fd /dev/fd
mount -t tmpfs -o size=80% tmp /tmp; mount -t tmpfs run /run; mount -t tmpfs mnt /mnt
chmod 1777 /tmp
while read -r m; do insmod "$m" || echo "cannot load $m"; done < /etc/modlist
opt=trans=virtio,version=9p2000.L,msize=1048576,cache=none
mount -t 9p -o $opt ctl /ctl || { echo "no control share"; poweroff -f; }
mount -t 9p -o $opt share /share || { echo "no share"; poweroff -f; }
mount -t 9p -o $opt,ro scripts /scripts || { echo "no script directory"; poweroff -f; }
for p in /sys/class/virtio-ports/*; do
  n=$(cat "$p/name"); if [ -n "$n" ]; then ln -sf "/dev/${p##*/}" "/dev/port-$n"; fi
done
i=0; while [ ! -c /dev/zfs ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
cat /sys/module/zfs/version > /ctl/started
cd /tmp
setsid bash /ctl/go > /dev/port-out 2> /dev/port-err < /dev/null
echo $? > /ctl/rc
sync & p=$!     # with a time limit: a stuck pool must not keep the machine running
i=0; while kill -0 $p 2> /dev/null && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
poweroff -f
INIT
chmod 755 "$IRD/init"
(cd "$IRD" && find . -print0 | cpio --quiet -0 -o -H newc -R 0:0) | zstd -q -T0 -12 > "$DIR/initrd.img.tmp"
mv "$DIR/initrd.img.tmp" "$DIR/initrd.img"
cp "$(real "$ROOT/boot/vmlinuz-$KVER")" "$DIR/vmlinuz"
{ echo "suite $SUITE"; echo "linux $KVER"
  echo "zfs $(chroot "$ROOT" dpkg-query -W -f '${Version}' zfsutils-linux)"; } > "$DIR/version"
(cd "$DIR" && sha256sum vmlinuz initrd.img version > SHA256SUMS)
rm -rf "$IRD"
if [ "$KEEP_ROOT" = 0 ]; then rm -rf "$ROOT"; fi
say "done: $DIR ($(du -shc "$DIR/vmlinuz" "$DIR/initrd.img" | tail -n 1 | cut -f 1) to boot from; $(tr '\n' ' ' < "$DIR/version"))"
