#pragma once

/*
 * work - a request's prompts on their way to token ids: rendered by the chat template, tokenised. Small
 * ones at once, long ones on libuv's thread pool, since both take time that other clients should not
 * wait for. While `running` the request must stay; the loop's thread does not touch it.
 */

#include <uv.h>
#include "api/request.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct prompt {
    const char *text; /* NULL: given as ids */
    size_t len;
    const struct text_range *user;
    size_t n_user;
    struct tokens tokens;
};

struct work {
    uv_work_t uv;
    struct api *api;
    struct request r;
    struct rendered rendered; /* of a chat */
    struct prompt *prompts;   /* in r.arena */
    uint32_t n_prompts, max_tokens;
    struct err err;
    int result; /* 0, -ENOMEM, or -EINVAL with err */
    bool running;
    void (*done)(struct work *w);
};

/* Parses the body and finds its prompts. Errors as request_parse(). */
int work_init(struct work *w, struct api *a, enum request_kind kind, const char *body, size_t len,
              struct err *err);
void work_deinit(struct work *w);
/* Calls @done on the loop's thread, at once or later. */
void work_start(struct work *w, void (*done)(struct work *w));
