#!/usr/bin/env bash
# Gets the tools for `interop/run tools`, unmodified, into a directory: sanoid and syncoid of the next Debian release,
# in addition to the installed ones, and zfs_autobackup.
#
#   fetch.sh DIR
#
# Environment: SUITE (trixie).
set -euo pipefail
dir=$1
suite=${SUITE:-trixie}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

if [ ! -x "$dir/sanoid/usr/sbin/syncoid" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  # The mirror from which this machine gets its own packages.
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(COMPONENT)' 'Identifier: Packages' \
    | awk '$2 == "Debian" && $3 == "main" { print $1; exit }')
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:?no Debian mirror: run apt-get update} $suite main" \
    > "$work/sources"
  apt=(apt-get -q -o "Dir::Etc::sourcelist=$work/sources" -o Dir::Etc::sourceparts=/dev/null
       -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$work" && "${apt[@]}" download sanoid)
  dpkg-deb -x "$work"/sanoid_*.deb "$dir/sanoid"
fi

if [ ! -x "$dir/autobackup/bin/zfs-autobackup" ]; then
  python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore \
    --target "$dir/autobackup" zfs-autobackup==3.3
fi
