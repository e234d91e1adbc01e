# shellcheck shell=bash
# Sourced by the scripts here: shows on stderr that something long is going on. On a terminal one line is drawn again
# every second, elsewhere a line is added now and then.

progress_dir=$(mktemp -d)
progress_log=$progress_dir/log
progress_pid=""
# A dumb terminal shows the sequences that draw a line again.
progress_draws=no
[ ! -t 2 ] || [ "${TERM:-}" = dumb ] || progress_draws=yes
progress_drawn=$progress_dir/drawn

progress_stop() {
    [ -n "$progress_pid" ] || return 0
    kill "$progress_pid" 2>/dev/null || true
    wait "$progress_pid" 2>/dev/null || true
    progress_pid=""
    [ ! -e "$progress_drawn" ] || printf '\r\033[K' >&2
    rm -f "$progress_drawn"
}

progress_exit() {
    progress_stop
    rm -rf "$progress_dir"
}
trap progress_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# How far the command is, from its output: "[3/40]" of ninja, "dlstatus:1:40.5:..." of apt.
progress_of_log() {
    [ ! -s "$progress_log" ] || tail -n 1 "$progress_log" 2>/dev/null | sed -nE \
        -e 's/^\[([0-9]+\/[0-9]+)\].*/\1/p' \
        -e 's/^dlstatus:[^:]*:([0-9]+).*/downloading \1 %/p' \
        -e 's/^pmstatus:[^:]*:([0-9]+).*/installing \1 %/p'
}

# "12/40" of HOW_FAR with the time that the rest will take at the speed so far, once a tenth is done; others unchanged.
progress_left() { # SECONDS
    awk -F/ -v t="$1" '/^[0-9]+\/[0-9]+$/ && $1 * 10 >= $2 && $1 < $2 { printf "%s, about %d s left\n", $0, t * ($2 - $1) / $1 + 0.5; next } { print }'
}

progress_tick() {
    local what=$1 how_far=$2 start=$SECONDS next=10 t
    trap - EXIT
    while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        t=$((SECONDS - start))
        if [ $progress_draws = yes ]; then
            touch "$progress_drawn"
            printf '\r\033[K%s: %s%d s' "$what" "$($how_far | progress_left $t | sed 's/$/, /')" $t >&2
        elif [ $t -ge $next ]; then
            printf '%s: %s%d s\n' "$what" "$($how_far | progress_left $t | sed 's/$/, /')" $t >&2
            next=$((t + 10))
        fi
    done
}

# progress WHAT HOW_FAR COMMAND...: runs the command; its output goes to $progress_log. HOW_FAR is a function that says
# in a few words how far it is. Returns the command's status and leaves it to the caller to tell what went wrong.
progress() {
    local what=$1 how_far=$2 status=0 start=$SECONDS
    shift 2
    : >"$progress_log"
    [ $progress_draws = yes ] || echo "$what" >&2
    progress_tick "$what" "$how_far" &
    progress_pid=$!
    "$@" >"$progress_log" 2>&1 || status=$?
    progress_stop
    [ $status != 130 ] || exit 130 # Ctrl-C
    [ $status != 0 ] || [ $progress_draws = no ] || [ $((SECONDS - start)) -lt 1 ] || echo "$what: $((SECONDS - start)) s" >&2
    return $status
}
