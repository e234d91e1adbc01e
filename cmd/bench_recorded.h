#pragma once

/*
 * bench_recorded - reads public traces of agents as sessions of requests: those of Weka's
 * kv-cache-tester, which InferenceX and AIPerf replay (one JSON object a session: "requests" of the
 * types n, s and subagent, times in seconds, "hash_ids" of blocks of "block_size" tokens), and
 * Mooncake's (JSON lines: "timestamp" in ms or "delay", "input_length", "output_length", "hash_ids"
 * of blocks of 512 tokens, "session_id" in AIPerf's form). A file has any number of objects, so
 * that traces can be joined.
 *
 * A trace has no text, only names of blocks: equal names become equal tokens. A name is valid
 * within its session in Weka's format, and in the whole trace in Mooncake's.
 */

#include <stdbool.h>
#include "base/err.h"

#define RECORDED_NONE UINT32_MAX
#define RECORDED_TURNS_MAX (1u << 22)
#define RECORDED_TOKENS_MAX (1u << 24) /* most tokens of a prompt, and of an answer */
#define RECORDED_DEPTH_MAX 8u          /* most levels of sub-agents */

/* A request. n_out 0: there is none, and the session ends with sub-agents. */
struct recorded_turn {
    double pause_s; /* pause after the previous answer */
    uint32_t n_in, n_out, block_tokens;
    uint32_t first_block, n_blocks; /* index and number of its blocks in recorded.block */
    uint32_t subs; /* first of the sub-agents that begin in the pause and end before the turn */
    uint32_t next; /* next turn of the session */
};

/* A session. @start_s: time from the begin of the replay; for a sub-agent, from its parent's
 * answer. */
struct recorded_session {
    double start_s;
    uint64_t id;          /* hash of the session_id; 0: none */
    double last_s;        /* time of the trace when its last turn was sent; negative: not known */
    uint32_t first, last; /* indices of its turns */
    uint32_t next_sub;    /* next sub-agent of the same turn */
    bool is_sub;
};

/* Sessions and turns; lists end with RECORDED_NONE. */
struct recorded {
    struct recorded_session *session;
    struct recorded_turn *turn;
    uint64_t *block; /* names of blocks */
    uint32_t n_sessions, n_turns, n_blocks, cap_sessions, cap_turns, cap_blocks;
};

/* Returns true if @text begins like a trace in one of these formats. */
bool recorded_is(const char *text, size_t len);
/* Reads a trace. Returns 0; -EINVAL with @err: @text is no trace, or a part of it is wrong;
 * -ENOMEM. */
int recorded_read(struct recorded *out, const char *text, size_t len, struct err *err);
void recorded_deinit(struct recorded *r); /* accepts a zeroed one */
