#pragma once

/*
 * endpoint - the part of a dialect that handles the meaning of a request; struct dialect
 * (api/http/dialect.h) handles paths, heads and framing.
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
    /* there is no conversation */
    REPEATS_NOTHING,
    /* one text, and calls with their arguments as text */
    REPEATS_TEXT,
    /* each text as a part; reasoning comes back */
    REPEATS_PARTS,
    /* text blocks, and calls whose arguments are objects */
    REPEATS_BLOCKS,
};

/*
 * One path of a dialect that generates, or that looks up the prompt of a generation: the functions
 * that make the canonical request (struct gen_request) of its body and the answer of the output. An
 * endpoint for lookups needs @translate and @write; one that generates needs @translate, id_prefix
 * and whole, and piece if a request may ask for a stream. The other members may be NULL.
 *
 *      open ── translate ──┬── begin ── (piece* ── round)* ── piece* ── end   a stream
 *                          ├── whole                      a whole answer
 *                          └── rename ── fail             an error, at any time
 */
struct endpoint {
    /* Called before the body is read: makes @job->state if the endpoint has any. @w NULL: a lookup.
     * Returns 0 or -ENOMEM. @close frees the state. */
    int (*open)(struct prompt_job *job, struct exchange *x, struct writer *w);
    void (*close)(struct prompt_job *job);
    /* Reads @body, which it takes over, into @job->request. On any thread. Returns 0, -ENOMEM, or
     * an error that names the field; with @job->quick also -EAGAIN if it would take too long for
     * the loop: it is then called again on the pool, with the body parsed anew. */
    int (*translate)(struct prompt_job *job, struct yyjson_doc *body, struct err *err);
    /* Rewrites an error about a field of the canonical request in the dialect's terms. May be
     * called twice for the same error. */
    void (*rename)(struct err *err);
    /* Makes the 400 for a prompt of @n tokens, which leaves no room in @context. */
    int (*too_long)(const char *field, size_t n, uint32_t context, struct err *err);

    /* Writes the answer of a lookup, which needs no generation. On any thread. */
    void (*write)(struct json *j, const struct prompt_job *job);
    /* Called when the request is valid, before it waits for admission: may take over the connection
     * of its exchange. On the loop's thread. Returns 0, or a negative errno with @err. */
    int (*prepared)(struct writer *w, struct err *err);

    /* prefix of the answer's id */
    const char *id_prefix;
    /* max_tokens when not given; 0: the service's default */
    uint32_t default_tokens;
    enum repeats repeats;
    /* reasoning may stay in the content, if the client wants that */
    bool inlines_reasoning;
    /* answers contain the text of the prompt */
    bool tells_prompt;
    /* answers have calls whole, never the beginning of one */
    bool whole_calls;
    /* an answer is a stream unless the body says otherwise */
    bool streams_unasked;
    /* the output always goes through the output parser; there is one choice */
    bool parsed;
    /* data of the endpoint's own functions */
    const void *form;

    /* Only if translate() sets job->goes_on: the answer may have several rounds, each of which is a
     * choice. Returns true if @again must be called for the output, which has ended. */
    bool (*asks)(const struct writer *w);
    /* Sets *@messages to the messages of the next round, which @job->state owns; NULL: the answer
     * is complete, as without job->goes_on. On the pool. Returns 0 or a negative errno. */
    int (*again)(struct prompt_job *job, struct yyjson_val **messages);
    /* a stream for which again() was called */
    void (*round)(struct writer *w);

    /* after the head */
    void (*begin)(struct writer *w);
    void (*piece)(struct writer *w, const struct piece *p);
    /* everything was written */
    void (*end)(struct writer *w);
    /* Writes the whole answer when all generations are done. Runs on the pool if the answer has
     * many tokens or a large body; it then only reads (Responses' also gives what it kept to the
     * store, which has a lock), and not the exchange, whose client may leave meanwhile. */
    void (*whole)(struct json *j, struct writer *w);
    /* Called when the answer fails with @err. Returns true if it has written the error to the
     * stream. */
    bool (*fail)(struct writer *w, const struct err *err);
    /* instead of the dialect's keepalive */
    void (*alive)(struct writer *w);
};
