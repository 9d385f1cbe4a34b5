#!/usr/bin/env bash
# Builds the Debian package: packaging/build-deb.sh [BINARY]
#
# Without BINARY, one is built (profile "packaged"). The binary in the package is stripped. Its debug information, if it
# has any, is beside the package, as snowmelt.debug. The package is written to target/packages/, and its path is printed
# as the last line. VERSION=1.2.3 sets another version.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
binary=${1:-}

if [ -z "$binary" ]; then
  cargo build --profile packaged --locked -p snowmelt-cli
  binary=$target/packaged/snowmelt
fi
binary=$(realpath "$binary")

tools=$target/tools
if command -v cargo-deb > /dev/null; then deb=cargo-deb
elif [ -x "$tools/bin/cargo-deb" ]; then deb=$tools/bin/cargo-deb
else
  cargo install --quiet --locked --root "$tools" cargo-deb
  deb=$tools/bin/cargo-deb
fi

# Man pages and completions from the program itself, and links to it. Cargo.toml ([package.metadata.deb]) names these
# files, so their place does not depend on CARGO_TARGET_DIR.
stage=$PWD/target/deb
rm -rf "$stage"
mkdir -p "$stage/completions" "$stage/man" "$target/packages"
objcopy --only-keep-debug "$binary" "$target/packages/snowmelt.debug"
objcopy --strip-debug --strip-unneeded --add-gnu-debuglink="$target/packages/snowmelt.debug" "$binary" "$stage/snowmelt"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
HOME=$home "$binary" man "$stage/man"
gzip -9n "$stage/man/"*.1
HOME=$home "$binary" completions bash > "$stage/completions/snowmelt"
HOME=$home "$binary" completions zsh > "$stage/completions/_snowmelt"
HOME=$home "$binary" completions fish > "$stage/completions/snowmelt.fish"
for link in zfs zpool zstream mount.snowmelt mount.fuse.snowmelt; do ln -s /usr/bin/snowmelt "$stage/$link"; done

# Not in target/debian, where cargo-deb removes packages of other versions.
mkdir "$stage/package"
"$deb" deb --quiet --manifest-path crates/cli/Cargo.toml --no-build --no-strip \
  ${VERSION:+--deb-version "$VERSION"} --output "$stage/package/"
package=$(basename "$stage"/package/*.deb)
mv "$stage/package/$package" "$target/packages/$package"
echo "$target/packages/$package"
