#pragma once

/*
 * bench_sse - parses the output of a server: server-sent events in chunks of any length, and
 * OpenAI's chunks and responses.
 */

#include <stdbool.h>

#include "base/buf.h"

#define SSE_EVENT_MAX ((size_t)16 << 20) /* most bytes of one event */

/* State between two chunks: `line` is the beginning of a line, `data` the data of the event so far,
 * empty unless has_data. */
struct sse {
    struct buf line, data;
    /* a LF that comes now belongs to the CR before it */
    bool after_cr;
    bool has_data;
};

void sse_init(struct sse *s);   /* called at the beginning of a stream */
void sse_deinit(struct sse *s); /* accepts a zeroed one */

/* Calls @event with the data of each event that @bytes complete. Returns 0, -ENOMEM, -EMSGSIZE, or
 * what @event returned when it was not 0. */
int sse_feed(struct sse *s, const char *bytes, size_t n,
             int (*event)(void *ctx, const char *data, size_t len), void *ctx);

/* Content of one chunk of a stream, or of a whole response. Numbers are -1 if absent. */
struct openai_part {
    /* number of bytes of text added to the buffer */
    size_t n_text;
    /* a finish_reason was present */
    bool finished;
    int64_t prompt_tokens, cached_tokens, output_tokens;
    /* the server's error message, or "" */
    char error[160];
};

/* Parses @json and adds the text of all choices (content, reasoning, text, names and arguments of
 * tool calls) to @text. Returns 0, -ENOMEM, -EMSGSIZE, or -EBADMSG if @json is no JSON object. */
int openai_parse(const char *json, size_t len, struct buf *text, struct openai_part *out);

/* Copies UTF-8 for printing: cuts at @size between characters, and replaces control characters by
 * spaces. */
void openai_copy_text(char *out, size_t size, const char *text);
