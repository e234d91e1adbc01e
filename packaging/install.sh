#!/bin/sh
# Installs weft from a folder of release files: an address (http, https, file) or a local folder.
#   curl -fsSL BASE/install.sh | sh -s -- BASE
#   sh install.sh FOLDER
# It goes to /usr/local as root and to ~/.local otherwise. Nothing outside that folder is changed.
set -eu

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
usage() {
    cat >&2 <<'TXT'
usage: install.sh [--prefix FOLDER] BASE       BASE: the address or folder with the release's files
       install.sh [--prefix FOLDER] --uninstall
TXT
    exit 64
}

default_prefix() {
    if [ "$(id -u)" = 0 ]; then
        echo /usr/local
    else
        [ -n "${HOME:-}" ] || fail "HOME is not set: give --prefix FOLDER"
        echo "$HOME/.local"
    fi
}

# Names the processor as the release's files do.
machine() {
    [ "$(uname -s)" = Linux ] || fail "weft runs on Linux; this is $(uname -s)"
    case $(uname -m) in
        x86_64) echo x86_64 ;;
        aarch64 | arm64) echo aarch64 ;;
        *) fail "there are no programs for $(uname -m), only for x86-64 and ARM (aarch64)" ;;
    esac
}

# The programs need glibc 2.28: getconf names the C library where it is glibc, and ldd where getconf is missing.
check_libc() {
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1 | head -n 1) || libc=""
    case $libc in
        *musl*) fail "this system's C library is musl (Alpine?); the programs need glibc: use the container image" ;;
    esac
    number=$(printf '%s\n' "$libc" | sed -n 's/.*[^0-9]\(2\.[0-9][0-9]*\).*/\1/p')
    [ -n "$number" ] || fail "the version of the C library is unknown ($libc); the programs need glibc 2.28 or newer"
    [ "${number#2.}" -ge 28 ] || fail "this system has glibc $number; the programs need 2.28 or newer"
}

fetch() { # NAME: into the work folder
    case $base in
        file://*) cp "${base#file://}/$1" "$work/$1" ;;
        *://*)
            if command -v curl >/dev/null 2>&1; then
                curl -fsSL --retry 3 -o "$work/$1" "$base/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$work/$1" "$base/$1"
            else
                fail "neither curl nor wget is installed"
            fi
            ;;
        *) cp "$base/$1" "$work/$1" ;;
    esac || fail "$base/$1 cannot be read"
}

remove() {
    list=$prefix/share/weft/installed
    [ -e "$list" ] || fail "$prefix has no weft that install.sh installed"
    while read -r file; do rm -f "$prefix/$file"; done <"$list"
    rm -f "$list"
    for folder in share/weft lib/weft; do rmdir "$prefix/$folder" 2>/dev/null || true; done
}

# Copies what was unpacked. A program that runs keeps its old file: the new one takes the name.
copy() {
    (cd "$1" && find . -type f) | sed 's|^\./||' | sort >"$work/list"
    while read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        cp -p "$1/$file" "$prefix/$file.new"
        mv -f "$prefix/$file.new" "$prefix/$file"
    done <"$work/list"
    mkdir -p "$prefix/share/weft"
    cp "$work/list" "$prefix/share/weft/installed"
}

install_weft() {
    machine=$(machine)
    check_libc
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch SHA256SUMS
    archive=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(weft-[0-9A-Za-z.]*-linux-$machine\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS" | head -n 1)
    [ -n "$archive" ] || fail "$base has no programs for $machine"
    say "fetching $archive"
    fetch "$archive"
    (cd "$work" && grep "[ *]$archive\$" SHA256SUMS | sha256sum -c - >/dev/null 2>&1) ||
        fail "$archive is not what SHA256SUMS says: nothing was installed"
    tar -xzf "$work/$archive" -C "$work"
    folder=$work/${archive%.tar.gz}
    "$folder/bin/weftd" --version >/dev/null || fail "weftd does not start on this system: nothing was installed"
    mkdir -p "$prefix" || fail "$prefix cannot be written: use sudo, or --prefix FOLDER"
    [ -w "$prefix" ] || fail "$prefix cannot be written: use sudo, or --prefix FOLDER"
    copy "$folder"
}

tell() {
    say "installed: $("$prefix/bin/weftd" --version | head -n 1) in $prefix"
    command=weftd control=weftctl
    case ":${PATH:-}:" in
        *":$prefix/bin:"*) ;;
        *)
            command=$prefix/bin/weftd control=$prefix/bin/weftctl
            say "$prefix/bin is not in PATH. To add it: export PATH=\"$prefix/bin:\$PATH\""
            ;;
    esac
    say ""
    say "  $control pull hf:Qwen/Qwen3-0.6B-GGUF        # prints the name of the file"
    say "  $command --model hf:Qwen/Qwen3-0.6B-GGUF     # serves http://127.0.0.1:8080"
    say "  $control chat                                # in another terminal"
    say ""
    say "To remove it: sh $prefix/share/weft-install.sh --prefix $prefix --uninstall"
}

main() {
    prefix="" base="" uninstall=no
    while [ $# -gt 0 ]; do
        case $1 in
            --prefix) [ -n "${2:-}" ] || usage; prefix=$2; shift ;;
            --uninstall) uninstall=yes ;;
            -*) usage ;;
            *) [ -z "$base" ] || usage; base=${1%/} ;;
        esac
        shift
    done
    [ -n "$prefix" ] || prefix=$(default_prefix)
    if [ $uninstall = yes ]; then
        remove
        say "removed from $prefix"
        return
    fi
    [ -n "$base" ] || usage
    install_weft
    tell
}

main "$@" # last: a file that arrives cut off does nothing
