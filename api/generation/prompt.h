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
    /* NULL: given as ids */
    const char *text;
    size_t len;
    const struct text_range *user;
    size_t n_user;
    /* the query of a pair, whose document is `text`; or NULL */
    const char *query;
    size_t query_len;
    struct tokens tokens;
    /* Pictures among the tokens, and the entries of the table for them; in request.arena. */
    struct submit_picture *pictures;
    struct picture_seen **seen;
    uint32_t n_pictures;
    /* texts of the prompt's tokens, to be echoed; or NULL */
    struct echo *echo;
};

/*
 * Invariants (check_job() in prompt_job.c): pooled implies running, and then the job is the
 * thread's until its end is delivered; waits implies running and not pooled, and that it counts in
 * api.n_waiting; abandoned: `done` is the only function that is called; prepared implies
 * translated, and translated that the body is freed.
 */
struct prompt_job {
    /* on the pool */
    struct job job;
    struct gen_env *env;
    /* the model that the request names */
    struct model *model;
    /* charged for the request */
    const struct tenant *tenant;
    /* Copied when the job begins: a reload changes the tenant while the pool has the job. */
    char isolation_name[AUTH_ISOLATION_NAME];
    const struct endpoint *endpoint;
    /* state of the endpoint, or NULL */
    void *state;
    struct buf body;
    /* for body */
    struct quota_charge charge;
    /* length of the body */
    size_t body_len;
    /* bytes that this job adds to api.kept_bytes */
    size_t n_kept;
    struct gen_request request;
    /* the rendered chat */
    struct rendered rendered;
    /* in request.arena */
    struct prompt *prompts;
    uint32_t n_prompts, max_tokens;
    /* in tokens; a prompt of this length is refused (writer.c) */
    uint32_t context;
    /* steps of all renderings of the request */
    uint64_t steps;
    /* the prompt is made of messages */
    bool chat;
    /* the prompts were the entries of an array */
    bool many;
    /* the output is split according to `parse` */
    bool parses;
    struct toolcall_opts parse;
    /* text of request.tokens, if given */
    struct buf text;
    struct err err;
    /* 0, -ENOMEM, or -EINVAL with err */
    int result;
    /* runs on the loop: returns -EAGAIN, with nothing changed, if the work takes long */
    bool quick;
    /* the request was read, and the body freed */
    bool translated;
    /* the prompts are tokens */
    bool prepared;
    /* endpoint.again is called when the output has ended; the body is kept */
    bool goes_on;
    bool running, pooled, abandoned;
    void (*done)(struct prompt_job *job);
    /* Called on the thread where the request becomes ready; or NULL. */
    void (*write)(struct prompt_job *job);

    /* model_wait.c */
    /* the worker is needed, not only the tokenizer */
    bool computes;
    /* the body asks for a stream; known where the job has to wait */
    bool streams;
    /* on the loop's thread: waits for its model, or for a scan that may find it */
    bool waits;
    /* with `waits`, or `rescan` is in its list */
    struct list waiting;
    struct api_rescan rescan;
    int64_t waits_since_ns, waits_until_ns;
    /* the name of the model in the body; NULL: none */
    char *wanted;
    /* lookups of that name; their number is limited */
    uint8_t n_lookups;
    /* with an error: when it may be tried again; 0: not said */
    uint32_t retry_ms;
    void (*go_on)(struct prompt_job *job);
    /* called now and then while the job waits; or NULL */
    void (*on_wait)(struct prompt_job *job);
};
