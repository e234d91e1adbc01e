#pragma once

/*
 * sessions - remembers data of each session between its requests: one bounded table for all
 * features, each of which owns one part of an entry and writes no other.
 *
 * Clients name sessions, so there may be any number of them. An id can be in SESSIONS_WAYS places;
 * a new session takes the least recently used of these and forgets its data. A forgotten session is
 * like an unknown one: its next request begins a new entry. Id 0 is no session. No pointer to an
 * entry outlives a call: entries are looked up by id each time.
 */

#include <stdint.h>

#define SESSIONS_MAX 1024u
#define SESSIONS_WAYS 8u

/* Kind of a turn's end, as reported by the front. */
enum pause_after { PAUSE_AFTER_ANY, PAUSE_AFTER_CALLS, PAUSE_AFTER_ANSWER, PAUSE_AFTERS };

/* Pauses of a session between turns; owned by pin.c. */
struct pauses {
    /* id of its last turn */
    uint64_t turn;
    /* end of the last turn; 0: a turn runs */
    int64_t ended_ns;
    uint32_t n_tokens;
    /* enum pause_after of the last turn */
    uint8_t end;
    struct pause { /* [end] pauses after it; PAUSE_AFTER_ANY: after every end */
        uint32_t n_ended, n_returned;
        /* 90th percentile of the pauses; 0: not known */
        double long_ms;
    } after[PAUSE_AFTERS];
};

/* Prompt computed for a session's next turn: pages [from, to) of a prompt with these hashes; owned
 * by prewarm.c. */
struct prewarm_done {
    /* [to] owned; NULL: none */
    uint64_t *hash;
    uint32_t from, to;
};

struct session {
    /* mean output in tokens, 0: none yet; owned by queue.c */
    float n_output;
    struct pauses pauses;
    struct prewarm_done done;
};

struct sessions {
    /* 0: free; the places of a session are adjacent */
    uint64_t id[SESSIONS_MAX];
    /* value of n_uses at the last use */
    uint64_t used[SESSIONS_MAX];
    uint64_t n_uses;
    struct session at[SESSIONS_MAX];
};

/* Initialises @s without sessions. */
void sessions_init(struct sessions *s);
/* Frees memory that entries own. */
void sessions_deinit(struct sessions *s);

/* Returns the entry of session @id, or NULL if it is not known or @id is 0. */
struct session *sessions_find(const struct sessions *s, uint64_t id);
/* Returns the entry of session @id and notes its use; the entry of an unknown session is new and
 * all zero. NULL: @id is 0. */
struct session *sessions_use(struct sessions *s, uint64_t id);
