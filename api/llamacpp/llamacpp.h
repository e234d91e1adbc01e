#pragma once

/*
 * llamacpp - the parts of llama-server's dialect: /completion and /infill (input.c reads their
 * bodies, answer.c writes their answers), and the state of the server for clients (llamacpp.c).
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/lib_types.h"

struct err;
struct exchange;
struct gen_env;
struct json;
struct piece;
struct prompt_job;
struct writer;

/* Form of the answer that a /completion asks for; prompt_job.state. */
struct llamacpp_completion {
    /* token ids in a whole answer; streams always have them */
    bool return_tokens;
    /* an array of the wanted members; NULL: all */
    yyjson_doc *fields;
};

#define MEDIA_MARKER 32 /* bytes of a marker with its NUL */

/* Writes the marker of a picture in a prompt_string. It is random for each process, so that no text
 * has it by chance. */
void llamacpp_marker(const struct gen_env *env, char out[MEDIA_MARKER]);
/* endpoint.open and endpoint.close */
int llamacpp_open(struct prompt_job *job, struct exchange *x, struct writer *w);
void llamacpp_close(struct prompt_job *job);
/* endpoint.translate: reads the completion or infill that @body asks for; takes @body over. */
int llamacpp_translate(struct prompt_job *job, yyjson_doc *body, struct err *err);
/* The endpoint of /infill. */
extern const struct endpoint llamacpp_infill;

/* endpoint.begin, alive, piece, whole */
void llamacpp_begin(struct writer *w);
void llamacpp_alive(struct writer *w);
void llamacpp_piece(struct writer *w, const struct piece *p);
void llamacpp_whole(struct json *j, struct writer *w);
