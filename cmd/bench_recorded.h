#pragma once

/*
 * bench_recorded - public traces of agents, as sessions of requests: those of Weka's
 * kv-cache-tester, which InferenceX and AIPerf replay (one JSON object a session: "requests" of the
 * types n, s and subagent, times in seconds, "hash_ids" of blocks of "block_size" tokens), and
 * Mooncake's (JSON lines: "timestamp" in ms or "delay", "input_length", "output_length", "hash_ids"
 * of blocks of 512 tokens, "session_id" in AIPerf's form). A file has any number of objects, so
 * that traces can be joined.
 *
 * A trace has no text, only names of blocks: equal names become equal tokens. A name counts in its
 * session of Weka's, and in all of a Mooncake trace.
 */

#include <stdbool.h>
#include "base/err.h"

#define RECORDED_NONE UINT32_MAX
#define RECORDED_TURNS_MAX (1u << 22)
#define RECORDED_TOKENS_MAX (1u << 24) /* of a prompt, and of an answer */
#define RECORDED_DEPTH_MAX 8u          /* of sub-agents below sub-agents */

/* A request; n_out 0: none, the session ends with sub-agents. */
struct recorded_turn {
    double pause_s; /* from the answer before it */
    uint32_t n_in, n_out, block_tokens;
    uint32_t first_block, n_blocks; /* of recorded.block */
    uint32_t subs; /* first of the sub-agents that begin in the pause and end before the turn */
    uint32_t next; /* turn of the session */
};

/* @start_s: from the begin of the replay, of a sub-agent from its parent's answer. */
struct recorded_session {
    double start_s;
    uint64_t id;   /* hash of the session_id; 0: none */
    double last_s; /* when its last turn was sent, in the trace's time; negative: not known */
    uint32_t first, last; /* turns */
    uint32_t next_sub;    /* sub-agent of the same turn */
    bool is_sub;
};

/* Lists end with RECORDED_NONE. */
struct recorded {
    struct recorded_session *session;
    struct recorded_turn *turn;
    uint64_t *block; /* names */
    uint32_t n_sessions, n_turns, n_blocks, cap_sessions, cap_turns, cap_blocks;
};

/* Returns true if @text begins like such a trace. */
bool recorded_is(const char *text, size_t len);
/* 0; -EINVAL with @err: the text is no trace or a part of it is wrong; -ENOMEM. */
int recorded_read(struct recorded *out, const char *text, size_t len, struct err *err);
void recorded_deinit(struct recorded *r); /* accepts a zeroed one */
