#pragma once

/*
 * endpoint - the half of a dialect that knows what a request means; the other half, how it is
 * spoken, is struct dialect (api/http/dialect.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct exchange;
struct json;
struct piece;
struct prompt_job;
struct writer;
struct yyjson_doc;
struct yyjson_val;

/* Form in which later requests of a conversation repeat an endpoint's answers; for prewarm.h. */
enum repeats {
    REPEATS_NOTHING, /* there is no conversation */
    REPEATS_TEXT,    /* one text, and calls with their arguments as text */
    REPEATS_PARTS,   /* each text as a part; reasoning comes back */
    REPEATS_BLOCKS,  /* text blocks, and calls with their arguments as objects */
};

/*
 * One path of a dialect that generates, or that tells what would be generated from: how its body
 * becomes the canonical request (struct gen_request) and how the output becomes its answer. An
 * endpoint that only looks things up needs @translate and @write; one that generates @translate,
 * id_prefix, begin, piece, end and whole. The others may be NULL.
 *
 *      open ── translate ──┬── begin ── (piece* ── round)* ── piece* ── end   a stream
 *                          ├── whole                      a whole answer
 *                          └── rename ── fail             an error, at any time
 */
struct endpoint {
    /* Before the body is worked on: makes @job->state, if there is to be any. @w NULL: a lookup.
     * Returns 0 or -ENOMEM. @close frees the state. */
    int (*open)(struct prompt_job *job, struct exchange *x, struct writer *w);
    void (*close)(struct prompt_job *job);
    /* Reads @body, which it takes over, into @job->request. On any thread. Returns 0, -ENOMEM, or
     * an error that names the field; with @job->quick also -EAGAIN, where it takes longer than the
     * loop has time for: it comes again on the pool, with the body parsed anew. */
    int (*translate)(struct prompt_job *job, struct yyjson_doc *body, struct err *err);
    /* Puts an error about a field of the canonical request into the dialect's words. May come twice
     * for the same error. */
    void (*rename)(struct err *err);
    /* A 400 about a prompt of @n tokens, which leaves no room in @context. */
    int (*too_long)(const char *field, size_t n, uint32_t context, struct err *err);

    /* Writes the answer of a lookup, which needs no generation. On any thread. */
    void (*write)(struct json *j, const struct prompt_job *job);
    /* The request is known to be right and waits for its admission next: may give the connection of
     * its exchange away. On the loop's thread. Returns 0, or a negative errno with @err. */
    int (*prepared)(struct writer *w, struct err *err);

    const char *id_prefix;   /* prefix of the answer's id */
    uint32_t default_tokens; /* max_tokens when not given; 0: the service's default */
    enum repeats repeats;
    bool tells_prompt; /* answers have the text of the prompt in them */
    bool tells_body;   /* a whole answer has parts of the request's body in it */
    bool parsed;       /* the output always goes through the output parser; there is one choice */
    const void *form;  /* data of the endpoint's own functions */

    /* Only where job->goes_on is set in translate(): the answer may have several rounds, each of
     * which is a choice. Returns true if @again is to be called for the output, which has ended. */
    bool (*asks)(const struct writer *w);
    /* Sets *@messages to those of the next round; NULL: the answer is complete, as it is where
     * job->goes_on is false. They stay with @job->state. On the pool. Returns 0 or a negative
     * errno. */
    int (*again)(struct prompt_job *job, struct yyjson_val **messages);
    void (*round)(struct writer *w); /* a stream for which again() was called */

    void (*begin)(struct writer *w); /* after the head */
    void (*piece)(struct writer *w, const struct piece *p);
    void (*end)(struct writer *w); /* everything was written */
    /* The whole answer; all generations are done. On the pool where it tells of many tokens, or
     * of a large body: then it only reads. */
    void (*whole)(struct json *j, struct writer *w);
    /* The answer fails with @err. Returns true if the error has been written to the stream. */
    bool (*fail)(struct writer *w, const struct err *err);
    void (*alive)(struct writer *w); /* instead of the dialect's keepalive */
};
