#pragma once

/*
 * custom - OpenAI's custom tools, which take a text instead of JSON. Templates and the forms in
 * which models write calls know functions only: a custom tool is presented to the model as a
 * function with one string, `input`, and a call is returned to the client as a custom call. Its
 * text may have to follow a grammar.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/lib_types.h"

struct gen_request;

/* Returns the custom tool in an entry of a chat's `tools`; NULL: the entry is of another kind. */
yyjson_val *custom_tool(yyjson_val *tool);
/* Checks tools[@i]. Returns 0, or a 400 that names the field. */
int custom_check(yyjson_val *tool, size_t i, struct err *err);
/* Returns the kind of syntax that the tool's text must follow, "regex" or "lark", and its source in
 * *@text; NULL: any text is valid. */
const char *custom_syntax(yyjson_val *custom, yyjson_val **text);
/* Returns the entry of `tools` that the model gets. NULL: no memory. */
yyjson_mut_val *custom_as_function(yyjson_mut_doc *doc, yyjson_val *custom);
/* Returns true if @name is one of the request's custom tools. */
bool custom_is(const struct gen_request *r, const char *name);

/* Text of a call, decoded incrementally from {"input": "..."}. */
struct custom_text {
    struct buf text;
    /* bytes of the arguments that have been read */
    size_t at;
    /* custom.c */
    uint8_t state;
    /* first half of a surrogate pair, or 0; an escape being read */
    uint32_t high, unit;
    /* bytes of text that were sent */
    size_t n_sent;
};

/* Decodes further arguments, of which @len bytes have arrived. */
int custom_read(struct custom_text *t, const char *args, size_t len);
/* Returns true if the arguments are not such an object and contain no text. */
bool custom_is_other(const struct custom_text *t);
/* Writes the text of a call whose arguments are complete to @out. */
int custom_whole(const char *args, size_t len, struct buf *out);
