#pragma once

/*
 * bench_replay - recorded requests, computed again with the recorded tokens.
 *
 * A transcript is JSON: {"requests": [{"prompt": P, "output": O, "prediction": Q}, ...]}, or one
 * such request alone. P and O, and Q where there is one, are arrays of token ids, or text, which
 * the model file's vocabulary cuts (special tokens recognised; BOS before the prompt where the
 * vocabulary asks for it).
 */

#include "base/gguf.h"
#include "text/tokenizer.h"

struct replay_request {
    struct tokens token; /* prompt and output */
    uint32_t n_prompt;
    struct tokens prediction; /* the predicted output that the request carries; n 0: none */
};

struct replay {
    struct replay_request *request;
    uint32_t n;
    uint32_t longest; /* tokens of a request */
};

#define REPLAY_REQUESTS_MAX 100000u
#define REPLAY_TOKENS_MAX (1u << 24) /* tokens of the longest request */

/* Ids must be below @n_vocab. Returns 0, -errno or -EINVAL with @err naming the request. */
int replay_read(struct replay *out, const char *path, const struct gguf *model, struct err *err);
void replay_deinit(struct replay *r);
