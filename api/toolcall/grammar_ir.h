#pragma once

/*
 * grammar_ir - writes the nodes of a grammar (grammar/constraint.h). Failures are sticky: a node
 * that cannot be made is NULL, and the caller checks once at the end.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/http/json_build.h"
#include "base/lib_types.h"

#define NODES_MAX 500000u /* JSON values in all */

/* Document in which the nodes are made. */
struct nodes {
    /* of json_doc_new(&failed) */
    yyjson_mut_doc *doc;
    /* no memory, or: */
    bool failed;
    /* more than NODES_MAX */
    bool too_large;
    /* approximate number of values made */
    uint32_t n_made;
};

/* Makes the nodes of a shape of json_make(), without '{' in its texts. */
#define ir_make(n, shape, ...) (ir_spend(n, shape) ? json_make((n)->doc, shape, __VA_ARGS__) : NULL)
/* Counts the values of @shape. Returns false if there are too many nodes, or no memory. */
bool ir_spend(struct nodes *n, const char *shape);
/* Returns a copy of @text. */
yyjson_mut_val *ir_str(struct nodes *n, const char *text);
/* Makes {KEY: v}; @key is not copied, @v is consumed. */
yyjson_mut_val *ir_of(struct nodes *n, const char *key, yyjson_mut_val *v);
/* Makes {"literal": text}, {"regex": text} or {"free_text": text}; @text is copied. */
yyjson_mut_val *ir_text(struct nodes *n, const char *key, const char *text);
/* Makes {"json_schema": schema, "any_format": true, "param": param}: @schema is consumed; refusals
 * name @param, which may be NULL. */
yyjson_mut_val *ir_json(struct nodes *n, yyjson_mut_val *schema, const char *param);
/* Makes the node of a tool's arguments: unlike ir_json(), a schema without additionalProperties
 * allows only declared members. */
yyjson_mut_val *ir_arguments(struct nodes *n, yyjson_mut_val *schema, const char *param);
/* Make {"sequence": []} or {"either": []}, and add an item to it; @item is consumed. */
yyjson_mut_val *ir_list(struct nodes *n, const char *key);
void ir_add(struct nodes *n, yyjson_mut_val *list, yyjson_mut_val *item);
/* Repeats @what @min to @max (0: no limit) times; @what and @separator (may be NULL) are
 * consumed. */
yyjson_mut_val *ir_repeat(struct nodes *n, yyjson_mut_val *what, yyjson_mut_val *separator,
                          uint32_t min, uint32_t max);
yyjson_mut_val *ir_optional(struct nodes *n, yyjson_mut_val *what); /* @what, used up, or nothing */
/* Make {"members": []}, and a member, which ir_add() adds to it. @before and @value are consumed,
 * @key is copied. */
yyjson_mut_val *ir_members(struct nodes *n, yyjson_mut_val *before);
yyjson_mut_val *ir_member(struct nodes *n, const char *key, yyjson_mut_val *value, bool optional);
/* Copies a schema or a list of constants. */
yyjson_mut_val *ir_value(struct nodes *n, yyjson_val *v);
