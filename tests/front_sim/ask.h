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
    /* GET of a page: any answer of status 200 is right */
    ASK_PAGE = ASK_DIALECTS,
    ASK_KINDS
};

struct ask {
    uint32_t number, model;
    enum dialect_kind kind;
    bool stream, chunked, closes;
    uint32_t max_tokens;
    /* stop string; "": none */
    char stop[3];
    /* text of the user */
    char *prompt;
    /* of an ASK_PAGE */
    const char *path, *method;
    /* key of the tenant; NULL: none */
    const char *key;
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
    /* the connection ended before the answer */
    bool cut;
    /* body without chunks, ended by NUL */
    const char *body;
    size_t len;
};

enum verdict { ANSWER_RIGHT, ANSWER_ERROR, ANSWER_CUT };

/* Checks an answer and breaks a rule if it is wrong. ANSWER_ERROR: it is an error in the documented
 * form with *status, also inside a stream. */
enum verdict ask_check(const struct ask *a, const struct answer *r, int *status);
