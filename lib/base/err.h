#pragma once

/*
 * err - the text for a client or an operator that accompanies a negative return value. The function
 * that finds the error fills it; its callers pass it on unchanged.
 */

#include "base/util.h"

/* An error; zeroed: none. */
struct err {
    /* HTTP status; 0: not meant for a client */
    int status;
    /* offending field ("messages[3].role"), or "" */
    char param[64];
    /* machine-readable code ("context_length_exceeded"), or "" */
    char code[48];
    /* one sentence, without paths and addresses if status is not 0 */
    char message[400];
    /* For context_length_exceeded: the tokens of the prompt (a lower bound) and of the context. 0
     * where they are unknown, and for every other error. */
    uint32_t n_prompt, n_context;
};

/* Fills @e (may be NULL) and returns -EINVAL, so that `return err_set(...)` ends a function.
 * @param may be NULL. */
int err_set(struct err *e, int status, const char *param, const char *fmt, ...) PRINTF(4, 5);

/* Sets the error like err_set(), with a machine-readable @code. */
int err_set_code(struct err *e, int status, const char *code, const char *param, const char *fmt,
                 ...) PRINTF(5, 6);

/* Adds both numbers to an error context_length_exceeded. Returns -EINVAL. */
int err_add_lengths(struct err *e, size_t n_prompt, uint32_t n_context);

/* Replaces the name of a field, @from, by that of another API, @to: in @param once, in the message
 * up to three times. */
void err_rename(struct err *e, const char *from, const char *to);

/* Appends a part to a list in @note, which has room for @size bytes, after @between unless the list
 * is empty. Cuts off what does not fit. */
void note_add(char *note, size_t size, const char *between, const char *fmt, ...) PRINTF(4, 5);
