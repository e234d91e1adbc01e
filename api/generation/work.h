#pragma once

/*
 * work - a request's body on its way to token ids: parsed, rendered by the chat template, tokenised.
 * Small ones at once, large ones on libuv's thread pool, since all of it takes time that other clients
 * should not wait for. While `running` the work must stay; the loop's thread does not touch it.
 */

#include <uv.h>
#include "api/generation/request.h"
#include "api/toolcall/toolcall.h"
#include "base/list.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct exchange;
struct responses;

struct prompt {
    const char *text; /* NULL: given as ids */
    size_t len;
    const struct text_range *user;
    size_t n_user;
    struct tokens tokens;
};

struct work {
    uv_work_t uv;
    struct list link; /* api.huge, while it waits for its turn */
    struct api *api;
    enum request_kind kind;
    struct buf body;
    size_t n_charged; /* of api.body_bytes */
    size_t body_len;  /* what it was */
    size_t n_kept;    /* of api.kept_bytes */
    struct request r;
    struct rendered rendered; /* of a chat */
    struct prompt *prompts;   /* in r.arena */
    uint32_t n_prompts, max_tokens;
    bool chat;   /* the prompt is made of messages */
    bool many;   /* the prompts were the entries of an array */
    bool parses; /* the output is taken apart, as `parse` says */
    struct toolcall_opts parse;
    struct buf text;             /* REQUEST_DETOKENIZE */
    struct responses *responses; /* REQUEST_RESPONSES */
    struct err err;
    int result; /* 0, -ENOMEM, or -EINVAL with err */
    bool prepared, running, huge, abandoned;
    void (*done)(struct work *w);
};

/* Takes the body of @x's request and calls @done on the loop's thread, at once or later. @w is zeroed;
 * it may be freed in @done. */
void work_start(struct work *w, struct exchange *x, enum request_kind kind,
                void (*done)(struct work *w));
/* Nobody wants the result any more. True: it still runs, and `done` will be called. */
bool work_abandon(struct work *w);
/* Where in the body prompt @i is: "messages", "prompt", "input[3]". */
struct work_place {
    char s[32];
};
struct work_place work_place(const struct work *w, uint32_t i);
/* Frees texts and tokens; parameters and stop strings stay. @keep: the body too. */
void work_trim(struct work *w, bool keep);
/* The tokens of @messages, with everything else as in the body, which was kept, and no answer begun. On any thread. 0 or
 * a negative errno. */
int work_again(struct work *w, yyjson_val *messages, struct tokens *out);
void work_deinit(struct work *w);
