#pragma once

/*
 * bench_replay - reads recorded requests, which are computed again with the recorded tokens.
 *
 * A transcript is JSON: {"requests": [{"prompt": P, "output": O, "prediction": Q}, ...]}, or one
 * such request alone. P and O, and the optional Q, are arrays of token ids, or text, which is
 * tokenised with the model file's vocabulary (special tokens are recognised; BOS precedes the
 * prompt if the vocabulary demands it).
 */

#include "base/gguf.h"
#include "text/tokenizer.h"

struct replay_request {
    /* prompt and output */
    struct tokens token;
    uint32_t n_prompt;
    /* the prediction of the output that the request carries; n 0: none */
    struct tokens prediction;
};

struct replay {
    struct replay_request *request;
    uint32_t n;
    /* number of tokens of the longest request */
    uint32_t longest;
};

#define REPLAY_REQUESTS_MAX 100000u
#define REPLAY_TOKENS_MAX (1u << 24) /* most tokens of a request */

/* Reads the requests of file @path; ids must be below @n_vocab. Returns 0, -errno or -EINVAL with
 * @err naming the request. */
int replay_read(struct replay *out, const char *path, const struct gguf *model, struct err *err);
void replay_deinit(struct replay *r);
