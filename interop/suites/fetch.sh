#!/usr/bin/env bash
# Gets the test suites of tools for ZFS into a directory, only from package registries:
#
#   zrepl            its platform tests, from the Go module proxy, built here
#   sanoid           the tests of syncoid, from GitHub, or from the source package of Debian, which has fewer
#   zfs_autobackup   its source distribution, from PyPI
#   rsync            the newest source of rsync in Debian (forky, or RSYNC_RELEASE), with its test programs, built here
#   zts              the test suite of OpenZFS, from Debian's contrib; unpacked, not installed
#
#   fetch.sh DIR [SUITE...]
#
# Environment: SUITE (the Debian release of sanoid's source, trixie), SANOID_SOURCE (an unpacked source of sanoid
# instead).
set -euo pipefail
dir=$1
shift
release=${SUITE:-trixie}
sanoid_commit=8e1d11e0b243de5b9e262f7d0875d4127b263ff2
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
[ $# -gt 0 ] || set -- zrepl syncoid autobackup zts rsync

apt_here() {    # apt_here LINE...: an apt-get that uses only these sources
  apt_work=$dir/apt
  mkdir -p "$apt_work/lists/partial" "$apt_work/cache/archives/partial"
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' 'Identifier: Packages' \
    | awk '$2 == "Debian" && $3 == "main" { print $1; exit }')
  : > "$apt_work/sources"
  local line
  for line in "$@"; do
    set -- $line
    echo "$1 [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:?no Debian mirror: run apt-get update} ${*:2}" \
      >> "$apt_work/sources"
  done
  apt=(apt-get -q -o "Dir::Etc::sourcelist=$apt_work/sources" -o Dir::Etc::sourceparts=/dev/null
       -o "Dir::State::lists=$apt_work/lists" -o "Dir::Cache=$apt_work/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
}

fetch_zrepl() {
  [ -x "$dir/zrepl-platformtest" ] && return
  local module
  export GOPATH=$dir/go GOFLAGS=-modcacherw
  module=$(go mod download -json github.com/zrepl/zrepl@v0.7.0 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  rm -rf "$dir/zrepl"
  cp -r "$module" "$dir/zrepl"
  (cd "$dir/zrepl" && go build -p 1 -o "$dir/zrepl-platformtest" ./internal/platformtest/harness)
}

fetch_syncoid() {
  [ -d "$dir/sanoid/tests/syncoid" ] && return
  rm -rf "$dir/sanoid" "$dir"/sanoid_*
  if [ -n "${SANOID_SOURCE:-}" ]; then
    if [ ! -d "$SANOID_SOURCE/tests/syncoid" ]; then
      echo "fetch.sh: SANOID_SOURCE=$SANOID_SOURCE has no tests/syncoid: name a directory with a source tree of sanoid" >&2
      return 1
    fi
    cp -r "$SANOID_SOURCE" "$dir/sanoid"
    return
  fi
  if git -c init.defaultBranch=main init -q "$dir/sanoid" \
    && git -C "$dir/sanoid" fetch -q --depth 1 https://github.com/jimsalterjrs/sanoid "$sanoid_commit" \
    && git -C "$dir/sanoid" checkout -q FETCH_HEAD; then return; fi
  rm -rf "$dir/sanoid"
  apt_here "deb-src $release main"
  if (cd "$dir" && "${apt[@]}" source --download-only sanoid && dpkg-source --no-check -x sanoid_*.dsc sanoid); then return; fi
  rm -rf "$dir/sanoid" "$dir"/sanoid_*
  cat >&2 << END
fetch.sh: neither GitHub nor the source packages of Debian $release have sanoid's tests for this machine. Get the source of
fetch.sh: sanoid elsewhere (https://github.com/jimsalterjrs/sanoid, commit $sanoid_commit)
fetch.sh: and name it: SANOID_SOURCE=/path/to/sanoid
END
  return 1
}

fetch_autobackup() {
  [ -d "$dir/zfs_autobackup/tests" ] && return
  (cd "$dir" && python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: zfs-autobackup==4.0rc2)
  rm -rf "$dir/zfs_autobackup"
  tar -C "$dir" -xf "$dir/zfs_autobackup-4.0rc2.tar.gz"
  mv "$dir/zfs_autobackup-4.0rc2" "$dir/zfs_autobackup"
  python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --target "$dir/python" \
    colorama unittest2 mock coverage
}

fetch_zts() {
  [ -d "$dir/zts/usr/share/zfs/zfs-tests" ] && return
  apt_here "deb bookworm main contrib"
  mkdir -p "$dir/packages"
  (cd "$dir/packages" && "${apt[@]}" download zfs-test zfsutils-linux libzfs4linux libzpool5linux libnvpair3linux \
    libuutil3linux ksh93u+m attr lsscsi)
  rm -rf "$dir/zts.part"
  local package
  for package in "$dir"/packages/*.deb; do dpkg-deb -x "$package" "$dir/zts.part"; done
  mv "$dir/zts.part" "$dir/zts"
}

fetch_rsync() {
  [ -x "$dir/rsync/tls" ] && return
  apt_here "deb-src ${RSYNC_RELEASE:-forky} main"
  rm -rf "$dir/rsync" "$dir/rsync.part" "$dir"/rsync_*.orig.tar.*
  # Only the upstream source, without Debian's changes.
  (cd "$dir" && "${apt[@]}" source --download-only --tar-only rsync)
  mkdir "$dir/rsync.part"
  tar -C "$dir/rsync.part" --strip-components 1 -xf "$dir"/rsync_*.orig.tar.*
  (
    cd "$dir/rsync.part"
    # Debian's archive does not contain the copies of other libraries.
    mkdir -p zlib popt
    touch zlib/dummy.in popt/dummy.in
    ./configure --disable-md2man --with-included-popt=no --with-included-zlib=no
    make check-progs
  ) > "$dir/rsync.log" 2>&1 || { tail -20 "$dir/rsync.log" >&2; return 1; }
  mv "$dir/rsync.part" "$dir/rsync"
}

# If one suite is no longer available, the others are still fetched.
status=0
for suite in "$@"; do
  # In a separate shell, because errexit has no effect before ||.
  "$BASH" -euo pipefail -c "$(declare -p dir release sanoid_commit); $(declare -f); fetch_$suite" || {
    status=$?; echo "fetch.sh: $suite could not be fetched" >&2; }
done
exit $status
