#pragma once

/*
 * search - hosted tool search, which Anthropic's API runs for its clients.
 *
 * The model calls a search tool like any other. Its call and its result are blocks of the answer,
 * and the model continues the same answer, with the found tools described in the result
 * (endpoint.again). A client that sends these blocks back gets the same prompt.
 */

#include <stdbool.h>

#include "api/anthropic/input.h"
#include "api/generation/writer.h"

struct exchange;
struct gen;
struct json;
struct prompt_job;

/* job->state of a Messages request. */
struct search {
    struct writer *writer;
    /* longest cache_control */
    enum cache_wish cache;
    /* the request has this search, and deferred tools */
    bool offered[TOOL_SEARCH_KINDS];
    /* Messages body with the rounds so far; NULL: no search */
    yyjson_doc *body;
    /* chat made of `body` after the first round; or NULL */
    yyjson_doc *chat;
    /* [n_results] "content" of the result of each search */
    struct buf *results;
    /* n_rounds: generations whose searches were run */
    uint32_t n_results, n_rounds;
};

/* endpoint.open and .close */
int search_open(struct prompt_job *job, struct exchange *x, struct writer *w);
void search_close(struct prompt_job *job);
/* If a search is offered, takes @body over for further rounds and returns true. */
bool search_begin_state(struct prompt_job *job, const bool offered[TOOL_SEARCH_KINDS],
                        yyjson_doc *body);

/* Returns the longest cache_control of the request. */
static inline enum cache_wish search_cache_wish(const struct writer *w) {
    return ((const struct search *)w->job.state)->cache;
}

/* Returns true if @call is a search that is run here. */
bool search_is_call(const struct writer *w, const struct output_call *call);
/* Returns true if the output of @g has a call that the client runs. */
bool search_has_other_call(const struct writer *w, const struct gen *g);
/* Returns the number of searches that were run. */
uint32_t search_n_run(const struct writer *w);
/* Writes the blocks with the results of round @i (choice @i), each by @put; nothing where its
 * searches were not run. */
void search_put_results(const struct writer *w, uint32_t i,
                        void (*put)(void *to, const struct output_call *call,
                                    const struct buf *content),
                        void *to);

/* endpoint.asks and .again. @put_blocks writes the content of the answer's round @i. */
bool search_asks(const struct writer *w);
int search_again(struct prompt_job *job, yyjson_val **messages,
                 void (*put_blocks)(struct json *j, const struct writer *w, uint32_t i));
