#include "api/toolcall/grammar_ir.h"

#include <assert.h>

#include "base/json_value.h"

/* Counts @more values that are to be made. Returns false if they are too many. */
static bool spend(struct nodes *n, size_t more) {
    if (more > NODES_MAX - n->n_made)
        n->failed = n->too_large = true;
    else
        n->n_made += (uint32_t)more;
    return !n->failed;
}

bool ir_spend(struct nodes *n, const char *shape) {
    size_t more = 0;

    for (; *shape; shape++)
        more += *shape == '{' ? 2 : 0;
    return spend(n, more);
}

yyjson_mut_val *ir_str(struct nodes *n, const char *text) {
    return yyjson_mut_strcpy(n->doc, text);
}

yyjson_mut_val *ir_of(struct nodes *n, const char *key, yyjson_mut_val *v) {
    yyjson_mut_val *o = spend(n, 2) ? yyjson_mut_obj(n->doc) : NULL;

    yyjson_mut_obj_add_val(n->doc, o, key, v);
    return o;
}

yyjson_mut_val *ir_text(struct nodes *n, const char *key, const char *text) {
    return ir_of(n, key, yyjson_mut_strcpy(n->doc, text));
}

yyjson_mut_val *ir_json(struct nodes *n, yyjson_mut_val *schema, const char *param) {
    yyjson_mut_val *o = ir_of(n, "json_schema", schema);

    yyjson_mut_obj_add_val(n->doc, o, "param", ir_str(n, param));
    yyjson_mut_obj_add_bool(n->doc, o, "any_format", true);
    return o;
}

yyjson_mut_val *ir_arguments(struct nodes *n, yyjson_mut_val *schema, const char *param) {
    yyjson_mut_val *o = ir_json(n, schema, param);

    yyjson_mut_obj_add_bool(n->doc, o, "declared_only", true);
    return o;
}

yyjson_mut_val *ir_list(struct nodes *n, const char *key) {
    return ir_of(n, key, yyjson_mut_arr(n->doc));
}

void ir_add(struct nodes *n, yyjson_mut_val *list, yyjson_mut_val *item) {
    yyjson_mut_obj_iter it;

    if (n->failed || !item || !list) {
        n->failed = true;
        return;
    }
    yyjson_mut_obj_iter_init(list, &it);
    yyjson_mut_val *array = yyjson_mut_obj_iter_get_val(yyjson_mut_obj_iter_next(&it));

    assert(yyjson_mut_is_arr(array));
    yyjson_mut_arr_append(array, item);
}

yyjson_mut_val *ir_repeat(struct nodes *n, yyjson_mut_val *what, yyjson_mut_val *separator,
                          uint32_t min, uint32_t max) {
    return ir_make(n, "{repeat:%, separator:%, min:%, max:%}", what, separator,
                   yyjson_mut_uint(n->doc, min), max ? yyjson_mut_uint(n->doc, max) : NULL);
}

yyjson_mut_val *ir_optional(struct nodes *n, yyjson_mut_val *what) {
    return ir_repeat(n, what, NULL, 0, 1);
}

yyjson_mut_val *ir_members(struct nodes *n, yyjson_mut_val *before) {
    yyjson_mut_val *o = ir_list(n, "members");

    yyjson_mut_obj_add_val(n->doc, o, "before", before);
    return o;
}

yyjson_mut_val *ir_member(struct nodes *n, const char *key, yyjson_mut_val *value, bool optional) {
    return ir_make(n, "{key:%, value:%, optional:%}", ir_str(n, key), value,
                   yyjson_mut_bool(n->doc, optional));
}

yyjson_mut_val *ir_value(struct nodes *n, yyjson_val *v) {
    /* yyjson stores the values below a value between it and its neighbour. */
    size_t size = yyjson_is_ctn(v) ? (size_t)(json_next(v) - v) : 1;

    if (!spend(n, size))
        return NULL;
    return yyjson_val_mut_copy(n->doc, v);
}
