#pragma once

/*
 * prompt_job - a request's body on its way to token ids: parsed, rendered by the chat template, tokenised.
 * Small ones at once, large ones on libuv's thread pool, since all of it takes time that other clients
 * should not wait for. While `running` the work must stay; the loop's thread does not touch it.
 */

#include <uv.h>
#include "api/generation/gen_request.h"
#include "api/toolcall/toolcall.h"
#include "base/list.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct endpoint;
struct exchange;

struct prompt {
    const char *text; /* NULL: given as ids */
    size_t len;
    const struct text_range *user;
    size_t n_user;
    struct tokens tokens;
};

struct prompt_job {
    uv_work_t uv;
    struct list link; /* api.huge, while it waits for its turn */
    struct api *api;
    const struct endpoint *endpoint;
    void *state; /* of the endpoint; or NULL */
    struct buf body;
    size_t n_charged; /* of api.body_bytes */
    size_t body_len;  /* what it was */
    size_t n_kept;    /* of api.kept_bytes */
    struct gen_request request;
    struct rendered rendered; /* of a chat */
    struct prompt *prompts;   /* in r.arena */
    uint32_t n_prompts, max_tokens;
    bool chat;   /* the prompt is made of messages */
    bool many;   /* the prompts were the entries of an array */
    bool parses; /* the output is taken apart, as `parse` says */
    struct toolcall_opts parse;
    struct buf text; /* of request.tokens, if there are any */
    struct err err;
    int result; /* 0, -ENOMEM, or -EINVAL with err */
    bool prepared, running, large, abandoned;
    void (*done)(struct prompt_job *job);
};

/* Takes the body of @x's request and calls @done on the loop's thread, at once or later. @job is zeroed;
 * it may be freed in @done. */
void prompt_job_start(struct prompt_job *job, struct exchange *x, const struct endpoint *endpoint,
                      void (*done)(struct prompt_job *job));
/* Nobody wants the result any more. True: it still runs, and `done` will be called. */
bool prompt_job_abandon(struct prompt_job *job);
/* Where in the body prompt @i is: "messages", "prompt", "input[3]". */
struct prompt_place {
    char s[32];
};
struct prompt_place prompt_place(const struct prompt_job *job, uint32_t i);
/* Frees texts and tokens; parameters and stop strings stay. @keep: the body too. */
void prompt_job_trim(struct prompt_job *job, bool keep);
/* The tokens of @messages, with everything else as in the body, which was kept, and no answer begun. On any thread. 0 or
 * a negative errno. */
int prompt_job_render_again(struct prompt_job *job, yyjson_val *messages, struct tokens *out);
void prompt_job_deinit(struct prompt_job *job);
