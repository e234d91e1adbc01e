#pragma once

/*
 * template - the chat-template language: the part of Jinja that models' templates use, rendering
 * byte for byte what jinja2 renders (docs/design/chat-templates.md). No access to anything but the
 * variables passed in; every render has fuel and an output limit.
 *
 * Strings that come from the variables are marked, and keep the mark through filters and
 * concatenation, so that the tokenizer never takes user text for a special token: the result lists
 * the byte ranges of user text.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "text/tokenizer.h"

struct template;

/* Most evaluation steps of a rendering without messages; template_fuel() adds to them. */
#define TEMPLATE_FUEL 5000000u
#define TEMPLATE_FUEL_MAX 300000000u
#define TEMPLATE_DEPTH 64u /* most levels of nested expressions, blocks and macro calls */

/* Bytes [begin, end) of the content of one message that the caller wrote, although they are in a
 * variable. */
struct template_trust {
    uint32_t message;
    size_t begin, end;
};

struct template_opts {
    /* most steps; 0: template_fuel() of the variables */
    uint64_t fuel;
    /* NULL, or the counter to which the steps are added: all of `fuel` if it was spent */
    uint64_t *steps;
    /* most bytes of the prompt; 0: 16 MiB */
    size_t max_output;
    /* result of strftime_now(): seconds, UTC */
    int64_t now_unix;
    /* sorted, disjoint ranges */
    const struct template_trust *trust;
    size_t n_trust;
};

/* A prompt that template_render() writes; zeroed at first. */
struct rendered {
    struct buf text;
    /* sorted, disjoint ranges of user text */
    struct text_range *user;
    size_t n_user;
};

/* Parses @source, which is copied. Returns 0, -ENOMEM, or for a syntax error -EINVAL with line and
 * reason in @err. The template is immutable, so any thread may render it. */
int template_new(struct template **out, const char *source, size_t len, struct err *err);
struct template *template_free(struct template *t);
DEFINE_FREEP(struct template, template)

/* Returns the steps that a rendering of @vars may take: TEMPLATE_FUEL, more for each message, tool
 * and byte of text, and at most TEMPLATE_FUEL_MAX. */
uint64_t template_fuel(yyjson_val *vars);

/* Renders with the members of the object @vars as variables. All strings in it count as text of a
 * user, except those under the top-level keys bos_token, eos_token, pad_token and unk_token, the
 * role names, and the ranges of opts->trust. Returns 0, or with @err (400, line and reason)
 *
 *   -EINVAL  the template is wrong, or refuses these messages (raise_exception: its words, exact);
 *   -E2BIG   the rendering would pass a limit (steps, memory, bytes of text): these messages are
 *            too many or too long for it, and fewer or shorter ones may pass;
 *   -ENOMEM  the system has no memory, @err is not set.
 *
 * Calls job_pause() (base/jobs.h), so that it fails in an abandoned job, whose error has no
 * meaning. */
int template_render(const struct template *t, yyjson_val *vars, const struct template_opts *opts,
                    struct rendered *out, struct err *err);
void rendered_deinit(struct rendered *r); /* accepts a zeroed one */

/* Returns whether the source mentions variable @name anywhere (tools, enable_thinking, ...). */
bool template_uses(const struct template *t, const char *name);

/* ---- templates by name (template/named.c) ---- */

/* Returns the source of the template @name, or NULL. Static storage. */
const char *template_named(const char *name);

/* Returns the name of template number @i, or NULL after the last one. */
const char *template_name(size_t i);

/* Name of the template for model files without a template. */
#define TEMPLATE_DEFAULT "chatml"
