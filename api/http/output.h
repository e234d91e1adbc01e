#pragma once

/*
 * output - the bytes that a connection still has to send: a queue of pieces, of which each is a
 * buffer of its own or a part of a blob that others hold, too. Bytes that are being sent stay where
 * they are until output_consume(), so a piece of which a part was handed out does not grow.
 *
 * Pure: no clock, no input.
 */

#include <stdbool.h>
#include <uv.h>

#include "base/blob.h"
#include "base/list.h"

#define OUTPUT_PIECES 16u /* most parts that are sent in one write */

struct output_piece;

/* Invariants: len is the sum of what the pieces still hold, <= max; charged >= len is the memory
 * that they keep: a piece counts as a whole until its last byte is sent. */
struct output {
    /* output_piece.link, the first to be sent first */
    struct list pieces;
    /* an empty piece with a small buffer, or NULL */
    struct output_piece *idle;
    size_t len, charged, max;
};

/* Initialises an empty output of at most @max bytes. */
void output_init(struct output *o, size_t max);
/* Frees the bytes that are left, and gives the references back. */
void output_deinit(struct output *o);
/* Frees what an output without bytes keeps for the next ones. */
void output_rest(struct output *o);

/* Each of these adds bytes at the end. They return 0, -ENOMEM, or -EMSGSIZE when there would be
 * more than max. */
int output_add(struct output *o, const void *data, size_t len); /* a copy */
/* Adds a reference to @len bytes of @blob; few bytes are copied. */
int output_refer(struct output *o, struct blob *blob, size_t from, size_t len);

/* Lists the first bytes, at most @most, in at most OUTPUT_PIECES parts. Returns the number of
 * parts, and in @n that of bytes. */
unsigned output_first(struct output *o, size_t most, uv_buf_t parts[OUTPUT_PIECES], size_t *n);
/* Removes the first @n bytes. */
void output_consume(struct output *o, size_t n);
/* Removes all but the first @n bytes. */
void output_cut(struct output *o, size_t n);
