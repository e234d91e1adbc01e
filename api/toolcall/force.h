#pragma once

/*
 * force - the parts of toolcall_force(): the arguments in the syntax of each form. Schemas that a
 * form cannot enforce get -EINVAL with the place in the schema; a node is returned only with 0.
 */

#include "api/toolcall/toolcall.h"
#include "base/err.h"
#include "grammar/grammar.h"

struct force {
    struct nodes *n;
    const struct toolcall_shape *shape;
    /* the tool that is being written */
    const struct toolcall_tool *tool;
    /* property of the tool that is being written, for error messages; or NULL */
    const char *prop;
    /* text that follows a trigger behind the name; or NULL */
    const char *name_end;
    /* ends a bare value */
    char stop[64];
    struct err *err;
    /* of GRAMMAR_PLACE_MAX bytes, or NULL: JSON pointer for the next refusal */
    char *place;
};

/* Returns @schema after resolving references inside @root; NULL: a reference has no target. */
yyjson_val *value_resolve(yyjson_val *root, yyjson_val *schema);
/* Returns the types that the schema allows (VALUE_..); 0: it names none. */
unsigned value_schema_types(yyjson_val *root, yyjson_val *schema);

/* Returns true if the schema restricts a string beyond its type. */
bool value_has_text_rules(yyjson_val *root, yyjson_val *schema);

/* Names the place that the next refusal is about: /@keyword/@name; NULL: left out. */
void force_point(struct force *f, const char *keyword, const char *name);
/* Sets the error "WHAT is not supported", with its place and a remedy. Returns -EINVAL. */
int force_refuse(struct force *f, const char *what, ...) PRINTF(2, 3);
/* Returns true if an object fits the type of @schema: there is none, or it is "object", alone or in
 * a list. */
bool force_allows_object(yyjson_val *schema);
/* Adds a piece of a shape and fills its placeholders. @type: for {type}, or NULL. */
void force_piece(struct force *f, yyjson_mut_val *list, const char *piece, yyjson_mut_val *type);

/* Sets the text that ends a bare value between tags. */
void force_set_stop(struct force *f);
#define FORCE_GEMMA_QUOTE "<|\"|>"

/* Makes the node of all arguments of f->tool between tags. */
int force_tagged(struct force *f, yyjson_mut_val **out);
