#pragma once

/*
 * raw_answer - llama-server's object of a generation: its whole text before reasoning and calls are
 * taken out of it, its prompt, its settings and its times. It is the answer of /completion, and the
 * member __verbose of a chat.
 */

#include <stdbool.h>
#include <stdint.h>

struct api_model;
struct gen_request;
struct json;
struct piece;
struct writer;

struct raw_form {
    /* with the log probabilities, if the request asks for any */
    bool probs;
    /* with the ids of the tokens */
    bool tokens;
    /* with the progress of the prompt */
    bool progress;
    /* with the times also before the end */
    bool timings;
};

/* Writes the object of @p: a piece of a stream, or the whole of its choice. */
void raw_answer_put(struct json *j, const struct writer *w, const struct piece *p,
                    const struct raw_form *form);
/* Implements choices_form.figures for paths of llama-server: writes the times and, if it is asked
 * for, the raw answer. */
void raw_answer_put_figures(struct json *j, const struct writer *w);
/* Writes "generation_settings" of @r; NULL: of a request to @m that gives none. Samplers that are
 * not here have the values that turn them off. */
void raw_answer_put_settings(struct json *j, const struct api_model *m, const struct gen_request *r,
                             uint64_t seed, uint32_t max_new);
