#pragma once

/*
 * force - the parts of toolcall_force(): the arguments in the syntax of each form. Schemas that a
 * form cannot enforce get -EINVAL with the place in the schema; a node is returned only with 0.
 */

#include "api/toolcall/toolcall.h"
#include "base/err.h"

struct force {
    struct nodes *n;
    const struct toolcall_shape *shape;
    const struct toolcall_tool *tool; /* the tool that is being written */
    const char *prop; /* property of the tool that is being written, for error messages; or NULL */
    const char *name_end; /* text that follows a trigger behind the name; or NULL */
    char stop[64];        /* ends a bare value */
    struct err *err;
};

/* Returns @schema after resolving references inside @root; NULL: a reference has no target. */
yyjson_val *value_resolve(yyjson_val *root, yyjson_val *schema);
/* Returns the types that the schema allows (VALUE_..); 0: it names none. */
unsigned value_schema_types(yyjson_val *root, yyjson_val *schema);

/* Returns true if the schema restricts a string beyond its type. */
bool value_has_text_rules(yyjson_val *root, yyjson_val *schema);

/* Follows the references of @schema; one with rules beside the reference is refused. */
int force_resolve(struct force *f, yyjson_val *root, yyjson_val *schema, yyjson_val **out);

/* Refuses rules beside @keyword, which is the only one that is read; a type is allowed beside
 * constants. */
int force_alone(struct force *f, yyjson_val *schema, const char *keyword);

/* Returns @s, or "" if it is NULL. */
static inline const char *or_empty(const char *s) {
    return s ? s : "";
}

/* Sets the error "WHAT is not supported", with its place and a remedy. Returns -EINVAL. */
int force_refuse(struct force *f, const char *what, ...) PRINTF(2, 3);
/* Checks an object whose members this form spells itself. Returns 0, or an error for keywords that
 * the form cannot enforce. */
int force_check_object(struct force *f, yyjson_val *schema);
/* Sets *out to the checked schema of all arguments, NULL if there are none. */
int force_root(struct force *f, yyjson_val **out);
bool force_is_required(yyjson_val *schema, yyjson_val *key);
/* Adds a piece of a shape and fills its placeholders. @type: for {type}, or NULL. */
void force_piece(struct force *f, yyjson_mut_val *list, const char *piece, yyjson_mut_val *type);

/* Makes the node of a value in JSON. */
int force_json(struct force *f, yyjson_val *root, yyjson_val *schema, yyjson_mut_val **out);
/* force_text.c: makes the node of a string without quotes, up to @stop, which begins with '<'. */
int force_text(struct force *f, yyjson_val *root, yyjson_val *schema, const char *stop,
               yyjson_mut_val **out);
/* A member of an object, with its key. */
struct force_member {
    yyjson_mut_val *what;
    bool required;
};
/* force_members.c: makes the node of the members @item, each optional or not, with @separator
 * between present ones. */
int force_members(struct force *f, const struct force_member *item, size_t n, const char *separator,
                  yyjson_mut_val **out);

/* Sets the text that ends a bare value between tags. */
void force_set_stop(struct force *f);
#define FORCE_GEMMA_QUOTE "<|\"|>"

/* Make the node of all arguments of f->tool. */
int force_tagged(struct force *f, yyjson_mut_val **out);
int force_python(struct force *f, yyjson_mut_val **out);
int force_gemma(struct force *f, yyjson_mut_val **out);
