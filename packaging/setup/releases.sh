# shellcheck shell=bash
# Sourced by the scripts of packaging/: the Linux releases for which packages are made.

# apt-get with lists and downloads of its own in FOLDER, for the sources in FILE (*.sources where its lines are "Types:"
# and so on); this machine's stay as they are.
apt_apart() { # FOLDER FILE ARCHITECTURE ARGUMENT...
    local folder=$1 sources=$2 architecture=$3
    shift 3
    mkdir -p "$folder"/{lists,cache/archives}/partial
    apt-get -qq -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=/dev/null \
        -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" \
        -o Dir::State::Lists="$folder/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$folder/cache" \
        -o APT::Sandbox::User=root "$@"
}

# The sources of Debian 13, from the mirror that this machine uses.
trixie_sources() {
    sed -E 's/\bbookworm\b/trixie/g; s/^Suites: trixie .*/Suites: trixie/' /etc/apt/sources.list.d/debian.sources
}

# The line of apt's sources.
release_source() { # RELEASE
    case $1 in
        noble) echo "deb http://archive.ubuntu.com/ubuntu $1 main universe" ;;
        *) echo "deb http://deb.debian.org/debian $1 main" ;;
    esac
}

# The keys of Ubuntu's archive, which Debian 12 does not have: from a package of Debian 13, which apt verifies.
ubuntu_keyring() { # FOLDER: prints the file
    local keys=$1/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ -e "$keys" ] || unpack_ubuntu_keyring "$1" >&2 || return 1
    echo "$keys"
}
unpack_ubuntu_keyring() ( # FOLDER
    mkdir -p "$1" && cd "$1" || return 1
    trixie_sources >trixie.sources
    apt_apart "$PWD/apt" "$PWD/trixie.sources" amd64 update &&
        apt_apart "$PWD/apt" "$PWD/trixie.sources" amd64 download ubuntu-keyring &&
        dpkg-deb -x ubuntu-keyring_*.deb . &&
        rm -r apt
)

# The option with which mmdebstrap verifies a release, where this machine does not have the keys.
release_keyring() { # RELEASE FOLDER
    local file
    [ "$1" = noble ] || return 0
    file=$(ubuntu_keyring "$2") && echo "--keyring=$file"
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
