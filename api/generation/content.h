#pragma once

/*
 * content - the content of a chat's message while a dialect gathers it: text, and pictures between
 * texts.
 */

#include "base/buf.h"
#include "base/lib_types.h"

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
