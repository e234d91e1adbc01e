#include "api/generation/schema_types.h"

#include <strings.h>

#include "api/http/json.h"
#include "base/json_read.h"
#include "base/util.h"

static void spell_type(yyjson_val *type) {
    static const char *const types[] = {"object",  "array",   "string", "number",
                                        "integer", "boolean", "null"};
    const char *name = json_cstr(type);

    for (size_t i = 0; name && i < ARRAY_SIZE(types); i++) {
        if (strcasecmp(name, types[i]) == 0)
            yyjson_set_str(type, types[i]);
    }
}

/* Goes through @v, a schema, or with @is_map an object with schemas, whose keys are names. Values
 * that a schema only shows or compares are left as they are. */
static void spell_in(yyjson_val *v, bool is_map, unsigned depth) {
    static const char maps[] =
        "properties patternProperties $defs definitions dependentSchemas dependencies";
    static const char values[] = "const default enum example examples";

    if (depth == 0)
        return;
    JSON_EACH(item, v) spell_in(item, false, depth - 1);
    JSON_MEMBERS(key, value, v) {
        bool type = !is_map && json_is(key, "type");

        if (!is_map && json_is(key, values))
            continue;
        if (type)
            spell_type(value);
        JSON_EACH(one, type ? value : NULL) spell_type(one);
        spell_in(value, !is_map && json_is(key, maps), depth - 1);
    }
}

void schema_types_spell(yyjson_val *schema) {
    spell_in(schema, false, JSON_DEPTH);
}
