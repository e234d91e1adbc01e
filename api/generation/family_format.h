#pragma once

/*
 * family_format - the format of tool calls that a template shows its model. A small conversation
 * with a tool and a call of it is rendered, with the variables of the request: what the template
 * writes there decides, not what stands in its comments or in branches that are not taken. Only a
 * template whose rendering shows no known marker is looked at as a source. The same conversations
 * show which tokens end a turn, and others the markers of reasoning.
 */

#include <pthread.h>

#include "api/toolcall/toolcall.h"
#include "text/template.h"

#define FAMILY_KWARGS_KEPT 32u  /* sets of variables whose formats are kept */
#define FAMILY_KWARGS_MAX 1024u /* bytes of a set that is kept, as JSON */

#define FAMILY_ENDS_MAX 2u

/* Formats by the variables of requests. Any thread may use them. */
struct family_formats {
    pthread_mutex_t lock;
    struct family_formats_row {
        char *kwargs;
        const struct toolcall_format *format;
    } rows[FAMILY_KWARGS_KEPT];
    uint32_t n, oldest;
};

/* Returns the variable from which the template reads the list of tools, `tools` or SmolLM3's
 * `xml_tools`; NULL if it reads none. */
const char *family_tools_variable(const struct template *t);
/* Returns the source of a template without its comments; "" without memory. */
struct buf family_source(const char *source, size_t len);
/* Returns the format that @t shows with the variables @kwargs (an object, or NULL); @source: its
 * source without comments. NULL: none is known. */
const struct toolcall_format *family_find_format(const struct template *t, const struct buf *source,
                                                 yyjson_val *kwargs);

/* Returns the markers of reasoning that @t writes: where it begins an answer, around the reasoning
 * of an earlier message, or by which it takes that out of a content; if it shows none, those that
 * its source has. NULL: none. */
const struct toolcall_reasoning *family_find_reasoning(const struct template *t,
                                                       const struct buf *source);

/* Fills @ends with the tokens with which @t or @f ends an assistant's turn, an answer or a call,
 * that are no ends for the vocabulary. Returns their number. */
uint32_t family_find_ends(const struct template *t, const struct tokenizer *tokenizer,
                          const struct toolcall_format *f, const struct toolcall_reasoning *r,
                          int32_t ends[FAMILY_ENDS_MAX]);

/* Makes an empty table of formats that were found. */
void family_formats_init(struct family_formats *f);
/* Frees the texts that the table keeps. */
void family_formats_deinit(struct family_formats *f);
/* Gets the format that was found for @kwargs, a JSON text. Returns false if none is kept. */
bool family_formats_get(struct family_formats *f, const char *kwargs,
                        const struct toolcall_format **out);
/* Keeps the format for @kwargs, in the place of the oldest one if there are too many. */
void family_formats_insert(struct family_formats *f, const char *kwargs,
                           const struct toolcall_format *format);
