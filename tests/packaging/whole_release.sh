#!/usr/bin/env bash
# packaging/release --quick of the last commit as a whole, and what it made in use: the checksums hold, install.sh and
# the programs work on this machine and on Debian 11, podman runs the image, and systemd the units. Exit status 77 where
# a tool is missing. usage: whole_release.sh SOURCE
set -euo pipefail
for tool in mmdebstrap patchelf podman systemd-nspawn git; do
    command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "skipped: only root may make trees"; exit 77; }
grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release || { echo "skipped: this is not Debian 12"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone -q "$1" "$work/clone"
cp -r "$1/.deps" "$work/clone/.deps"
cd "$work/clone"
packaging/release --quick --work "$work/made" "$work/out"
(cd "$work/out" && sha256sum -c --strict SHA256SUMS)
ls "$work"/out/weft-*-linux-x86_64.tar.gz "$work"/out/weft_*~deb12_amd64.deb "$work"/out/weft-*-image-amd64.tar
packaging/check-release "$work/out" bullseye podman
packaging/check-systemd "$work/out" bookworm
