#pragma once

/*
 * logprobs - the log probabilities of an output's messages. The parser reports only the length of
 * the content after each token; here each token gets its place in the content, so that each message
 * has the entries of its own text. Entries are written once, as JSON, and collected in blobs, which
 * all events and the response refer to.
 */

#include "base/splices.h"

struct gen;
struct json;
struct writer;

struct logprob_entry {
    /* end of its token in text[OUTPUT_CONTENT] */
    size_t end;
    /* end of the entry in the text */
    size_t at;
};

/* Invariant: entries are in the order of both their members. */
struct logprobs {
    /* parts of the text, which are whole blobs */
    struct splices sealed;
    /* its end. The text: entries, separated by commas */
    struct buf json;
    struct logprob_entry *entry;
    uint32_t n, cap;
    /* output tokens */
    uint32_t seen;
    /* behind the last token that has an entry */
    uint32_t next;
    /* bytes of content that have been released */
    size_t told;
    /* entries that were sent in the stream's deltas */
    uint32_t sent;
};

void logprobs_init(struct logprobs *l);   /* empty */
void logprobs_deinit(struct logprobs *l); /* accepts a zeroed one */
/* Adds the tokens that @w's generation has counted since the last call, up to those that release
 * byte @end of the content. Returns 0 or -errno. */
int logprobs_update(struct logprobs *l, const struct writer *w, const struct gen *g, size_t end);
/* Makes a blob of what is in none yet: the entries will be sent again. Returns 0 or -ENOMEM. */
int logprobs_seal(struct logprobs *l);
size_t logprobs_bytes(const struct logprobs *l); /* memory of the text */
/* Returns the number of entries whose tokens end at or before byte @end of the content. */
uint32_t logprobs_until(const struct logprobs *l, size_t end);
/* Writes the member "logprobs": a list of the entries [from, to). */
void logprobs_put(struct json *j, const struct logprobs *l, uint32_t from, uint32_t to);
