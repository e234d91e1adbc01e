#pragma once

/*
 * content - the content of a chat's message while a dialect gathers it: text, and pictures between
 * texts.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "base/lib_types.h"

/* Types of parts that are texts. */
#define CONTENT_TEXTS "text input_text output_text summary_text reasoning_text refusal"

/* Returns the text of @part, a string; NULL: it is a part of another type, or has no text. Clients
 * leave out the type, or send the text itself. */
yyjson_val *content_text(yyjson_val *part);
/* Returns true for a tool's output that is data: neither a text, nor parts, nor nothing at all. */
bool content_is_data(yyjson_val *output);
/* Adds JSON with a space behind each comma and colon, as models write it, so that earlier output is
 * found in the prefix cache. */
int content_add_json(struct buf *out, yyjson_val *v);
/* Returns true for an entry among parts that is no part, or a text part without a string. */
bool content_is_odd(yyjson_val *part);
/* Returns true for a part of a tool's output that is data: of no type that services define, and
 * without a picture, a sound, a file or other bytes in it. */
bool content_is_record(yyjson_val *part);
/* Adds such an entry or part: as JSON, or as nothing if it should have a text and has none. This is
 * for what a tool or a model said: refusing it would end the conversation. */
int content_add_odd(struct buf *out, yyjson_val *part);

/* Zeroed but for text.max. */
struct content {
    /* behind the last picture */
    struct buf text;
    /* parts before that text; NULL: no picture yet */
    yyjson_mut_val *parts;
};

void content_deinit(struct content *c); /* accepts a zeroed one */
/* Adds a picture, as a part of @doc that picture_parts.h reads: @data is a data URI or base64, NULL
 * where the client has given none; @detail may be NULL; @place is what errors call it. */
void content_add_picture(struct content *c, yyjson_mut_doc *doc, yyjson_val *data,
                         yyjson_val *detail, const char *place);
/* Adds a file, which no model reads: messages.h decides whether it is refused. */
void content_add_file(struct content *c, yyjson_mut_doc *doc, const char *place);
/* Returns a string, or an array where there are pictures, and empties @c. NULL: no memory. */
yyjson_mut_val *content_finish(struct content *c, yyjson_mut_doc *doc);
