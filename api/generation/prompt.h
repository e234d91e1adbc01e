#pragma once

/* prompt - the data of prompt_job.h: a request's body and the prompts made of it. */

#include "api/api.h"
#include "api/generation/gen_request.h"
#include "api/limits/auth.h"
#include "api/toolcall/toolcall.h"
#include "base/jobs.h"
#include "base/list.h"
#include "base/quota.h"
#include "text/template.h"
#include "text/tokenizer.h"

struct echo;
struct endpoint;
struct model;
struct picture_seen;
struct tenant;

/* One prompt of a request; its texts are in the body, in the rendering or in the arena. */
struct prompt {
    const char *text; /* NULL: given as ids */
    size_t len;
    const struct text_range *user;
    size_t n_user;
    const char *query; /* the query of a pair, whose document is `text`; or NULL */
    size_t query_len;
    struct tokens tokens;
    /* Pictures among the tokens, and the entries of the table for them; in request.arena. */
    struct submit_picture *pictures;
    struct picture_seen **seen;
    uint32_t n_pictures;
    struct echo *echo; /* texts of the prompt's tokens, to be echoed; or NULL */
};

/*
 * Invariants (check_job() in prompt_job.c): pooled implies running, and then the job is the
 * thread's until its end is delivered; waits implies running and not pooled, and that it counts in
 * api.n_waiting; abandoned: `done` is the only function that is called; prepared implies
 * translated, and translated that the body is freed.
 */
struct prompt_job {
    struct job job; /* on the pool */
    struct gen_env *env;
    struct model *model;         /* the model that the request names */
    const struct tenant *tenant; /* charged for the request */
    /* Copied when the job begins: a reload changes the tenant while the pool has the job. */
    char isolation_name[AUTH_ISOLATION_NAME];
    const struct endpoint *endpoint;
    void *state; /* state of the endpoint, or NULL */
    struct buf body;
    struct quota_charge charge; /* for body */
    size_t body_len;            /* length of the body */
    size_t n_kept;              /* bytes that this job adds to api.kept_bytes */
    struct gen_request request;
    struct rendered rendered; /* the rendered chat */
    struct prompt *prompts;   /* in request.arena */
    uint32_t n_prompts, max_tokens;
    uint32_t context; /* in tokens; a prompt of this length is refused (writer.c) */
    uint64_t steps;   /* steps of all renderings of the request */
    bool chat;        /* the prompt is made of messages */
    bool many;        /* the prompts were the entries of an array */
    bool parses;      /* the output is split according to `parse` */
    struct toolcall_opts parse;
    struct buf text; /* text of request.tokens, if given */
    struct err err;
    int result; /* 0, -ENOMEM, or -EINVAL with err */
    /* runs on the loop: returns -EAGAIN, with nothing changed, if the work takes long */
    bool quick;
    bool translated; /* the request was read, and the body freed */
    bool prepared;   /* the prompts are tokens */
    bool goes_on;    /* endpoint.again is called when the output has ended; the body is kept */
    bool running, pooled, abandoned;
    void (*done)(struct prompt_job *job);
    /* Called on the thread where the request becomes ready; or NULL. */
    void (*write)(struct prompt_job *job);

    /* model_wait.c */
    bool computes;       /* the worker is needed, not only the tokenizer */
    bool streams;        /* the body asks for a stream; known where the job has to wait */
    bool waits;          /* on the loop's thread: waits for its model, or for a scan that may find
                          * it */
    struct list waiting; /* with `waits`, or `rescan` is in its list */
    struct api_rescan rescan;
    int64_t waits_since_ns;
    char *wanted;      /* the name of the model in the body; NULL: none */
    uint8_t n_lookups; /* lookups of that name; their number is limited */
    uint32_t retry_ms; /* with an error: when it may be tried again; 0: not said */
    void (*go_on)(struct prompt_job *job);
    void (*on_wait)(struct prompt_job *job); /* called now and then while a stream waits; or NULL */
};
