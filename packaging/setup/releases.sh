# shellcheck shell=bash
# Sourced by the scripts of packaging/: the Linux releases for which packages are made.

# The line of apt's sources. Ubuntu's key is not among the packages of Debian 12 (ubuntu-keyring since Debian 13):
# WEFT_UBUNTU_KEYRING names it. Without it the tree is not verified.
release_source() { # RELEASE
    case $1 in
        noble)
            local option=" [trusted=yes]"
            [ -z "${WEFT_UBUNTU_KEYRING:-}" ] || option=""
            echo "deb$option http://archive.ubuntu.com/ubuntu $1 main universe"
            ;;
        *) echo "deb http://deb.debian.org/debian $1 main" ;;
    esac
}

# What a package's version ends with: all can lie in one folder, and an upgrade of the system takes the newer one.
release_suffix() { # RELEASE
    case $1 in
        bookworm) echo '~deb12' ;;
        trixie) echo '~deb13' ;;
        noble) echo '~ubuntu24.04' ;;
    esac
}

# The archive of a commit knows its commit (weftd --version); with changes that are not committed, the tree is taken.
source_archive() { # FILE
    if [ -z "$(git status --porcelain)" ]; then
        git archive --format=tar.gz -o "$1" HEAD
    else
        git ls-files -co --exclude-standard | tar -czf "$1" -T -
    fi
}
