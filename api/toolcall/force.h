#pragma once

/*
 * force - the parts of toolcall_force(): arguments as each form writes them. What a form cannot
 * hold is -EINVAL with the place in the schema; a node is only returned with 0.
 */

#include "api/toolcall/toolcall.h"
#include "base/err.h"

struct force {
    struct nodes *n;
    const struct toolcall_shape *shape;
    const struct toolcall_tool *tool; /* the tool that is being written */
    const char *prop; /* property of the tool that is being written, for error messages; or NULL */
    const char *name_end; /* text that follows a trigger that stands behind the name; or NULL */
    char stop[64];        /* ends a bare value */
    struct err *err;
};

/* The schema that @schema is, behind references inside @root; NULL: one leads nowhere. */
yyjson_val *value_resolve(yyjson_val *root, yyjson_val *schema);
/* Types that it allows (VALUE_..), 0: it does not say. */
unsigned value_schema_types(yyjson_val *root, yyjson_val *schema);

/* Returns true if the schema restricts a string beyond its type. */
bool value_has_text_rules(yyjson_val *root, yyjson_val *schema);

/* Follows the references of @schema; one with rules beside the reference is refused. */
int force_resolve(struct force *f, yyjson_val *root, yyjson_val *schema, yyjson_val **out);

/* Refuses rules beside @keyword, which alone is looked at; beside constants a type may stand. */
int force_alone(struct force *f, yyjson_val *schema, const char *keyword);

/* Returns @s, or "" where it is NULL. */
static inline const char *or_empty(const char *s) {
    return s ? s : "";
}

/* "WHAT is not supported", with its place and the way out: -EINVAL. */
int force_refuse(struct force *f, const char *what, ...) PRINTF(2, 3);
/* Checks an object whose members this form spells itself. Returns 0, or an error for keywords that
 * the form cannot hold. */
int force_check_object(struct force *f, yyjson_val *schema);
/* Sets *out to the checked schema of all arguments, NULL if there are none. */
int force_root(struct force *f, yyjson_val **out);
bool force_is_required(yyjson_val *schema, yyjson_val *key);
/* A piece of a shape, with its places. @type: for {type}, or NULL. */
void force_piece(struct force *f, yyjson_mut_val *list, const char *piece, yyjson_mut_val *type);

/* A value as JSON. */
int force_json(struct force *f, yyjson_val *root, yyjson_val *schema, yyjson_mut_val **out);
/* force_text.c: a string without quotes, up to @stop, which begins with '<'. */
int force_text(struct force *f, yyjson_val *root, yyjson_val *schema, const char *stop,
               yyjson_mut_val **out);
/* A member of an object, with its key. */
struct force_member {
    yyjson_mut_val *what;
    bool required;
};
/* force_members.c: @item, each optional or not, with @separator between those that are there. */
int force_members(struct force *f, const struct force_member *item, size_t n, const char *separator,
                  yyjson_mut_val **out);

/* Sets the text that ends a bare value between tags. */
void force_set_stop(struct force *f);
#define FORCE_GEMMA_QUOTE "<|\"|>"

/* Make the node of all arguments of f->tool. */
int force_tagged(struct force *f, yyjson_mut_val **out);
int force_python(struct force *f, yyjson_mut_val **out);
int force_gemma(struct force *f, yyjson_mut_val **out);
