#pragma once

/* ask - a request in one of the dialects, its right answer, and the check of an answer. */

#include "base/buf.h"
#include "tests/front_sim/model.h"

enum dialect_kind {
    ASK_CHAT,
    ASK_COMPLETIONS,
    ASK_MESSAGES,
    ASK_OLLAMA_CHAT,
    ASK_OLLAMA_GENERATE,
    ASK_LLAMACPP,
    ASK_RESPONSES,
    ASK_DIALECTS,
    ASK_PAGE = ASK_DIALECTS, /* a GET of something: any answer of status 200 */
    ASK_KINDS
};

struct ask {
    uint32_t number, model;
    enum dialect_kind kind;
    bool stream, chunked, closes;
    uint32_t max_tokens;
    char stop[3];              /* the stop string; "": none */
    char *prompt;              /* what the user wrote */
    const char *path, *method; /* of ASK_PAGE */
    const char *key;           /* of the tenant; NULL: none */
    struct expected right;
};

/* A random one to one of @n_models. */
void ask_make(struct ask *a, uint32_t number, uint32_t n_models, const char *key);
void ask_free(struct ask *a);
/* Appends the request. */
void ask_write(const struct ask *a, struct buf *out);

/* An answer as it came. */
struct answer {
    int status;
    bool retry_after, is_stream;
    bool cut;         /* the connection ended before the answer did */
    const char *body; /* without chunks, ended by NUL */
    size_t len;
};

enum verdict { ANSWER_RIGHT, ANSWER_ERROR, ANSWER_CUT };

/* Breaks a rule where the answer is wrong. ANSWER_ERROR: it is an error in the form that is
 * documented, of *status, also inside of a stream. */
enum verdict ask_check(const struct ask *a, const struct answer *r, int *status);
