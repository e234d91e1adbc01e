#pragma once

/* ask - makes a request in one of the dialects with its right answer, and checks answers. */

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
    ASK_PAGE = ASK_DIALECTS, /* GET of a page: any answer of status 200 is right */
    ASK_KINDS
};

struct ask {
    uint32_t number, model;
    enum dialect_kind kind;
    bool stream, chunked, closes;
    uint32_t max_tokens;
    char stop[3];              /* stop string; "": none */
    char *prompt;              /* text of the user */
    const char *path, *method; /* of an ASK_PAGE */
    const char *key;           /* key of the tenant; NULL: none */
    struct expected right;
};

/* Makes a random request for one of @n_models. */
void ask_make(struct ask *a, uint32_t number, uint32_t n_models, const char *key);
void ask_free(struct ask *a);
/* Appends the request. */
void ask_write(const struct ask *a, struct buf *out);

/* An answer as it arrived. */
struct answer {
    int status;
    bool retry_after, is_stream;
    bool cut;         /* the connection ended before the answer */
    const char *body; /* body without chunks, ended by NUL */
    size_t len;
};

enum verdict { ANSWER_RIGHT, ANSWER_ERROR, ANSWER_CUT };

/* Checks an answer and breaks a rule if it is wrong. ANSWER_ERROR: it is an error in the documented
 * form with *status, also inside a stream. */
enum verdict ask_check(const struct ask *a, const struct answer *r, int *status);
