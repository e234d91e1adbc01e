#include "api/generation/output_spec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/custom.h"
#include "api/generation/schema_types.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/try.h"

static int output_unsupported(const char *param, const char *why, struct err *err) {
    return err_set_code(err, 400, "unsupported_parameter", param, "%s %s.", param, why);
}

/* ---- the form of the text ---- */

/* Sets the form of the output. @kind is the key of a node (grammar/constraint.h). A second form is
 * refused, because it would contradict the first. */
static int set_form(struct gen_request *r, const char *kind, const char *param, yyjson_val *v,
                    struct err *err) {
    assert(!r->input.form.kind == !r->input.form.param);
    if (r->input.form.kind)
        return err_set_code(err, 400, "invalid_value", param, "%s and %s cannot be given together.",
                            param, r->input.form.param);
    r->input.form.kind = kind;
    r->input.form.param = param;
    r->input.form.value = v;
    return 0;
}

static int output_set_schema(struct gen_request *r, const char *param, yyjson_val *v,
                             struct err *err) {
    if (!yyjson_is_obj(v) && !yyjson_is_bool(v))
        return json_refuse(err, param, "must be a JSON schema");
    schema_types_spell(v);
    return set_form(r, "json_schema", param, v, err);
}

/* Sets a schema that is given as JSON or as a string of JSON. */
static int set_schema_or_text(struct gen_request *r, const char *param, yyjson_val *v,
                              struct err *err) {
    if (!yyjson_is_str(v))
        return output_set_schema(r, param, v, err);
    if (r->input.form.doc)
        return set_form(r, "json_schema", param, v, err); /* refuses it */
    yyjson_doc *doc;

    if (json_parse(&doc, json_text(v), json_len(v), 0) == -ENOMEM)
        return -ENOMEM;
    int result = output_set_schema(r, param, yyjson_doc_get_root(doc), err);

    assert(result < 0 || yyjson_doc_get_root(doc) == r->input.form.value);
    if (result == 0)
        r->input.form.doc = doc;
    else
        yyjson_doc_free(doc);
    return result;
}

static int output_set_string(struct gen_request *r, const char *kind, const char *param,
                             yyjson_val *v, struct err *err) {
    if (!json_is_name(v, SIZE_MAX))
        return json_refuse(err, param, "must be a string that is not empty, without NUL");
    return set_form(r, kind, param, v, err);
}

/* Sets a grammar. Its syntax is GBNF if it has a "::=", else Lark, as in vLLM. */
static int set_grammar(struct gen_request *r, const char *param, yyjson_val *v, struct err *err) {
    bool gbnf = json_cstr(v) && strstr(json_cstr(v), "::=");

    return output_set_string(r, gbnf ? "ebnf" : "lark", param, v, err);
}

static int set_choice(struct gen_request *r, const char *param, yyjson_val *v, struct err *err) {
    bool right = yyjson_is_arr(v) && yyjson_arr_size(v);

    JSON_EACH(item, v) {
        right = right && yyjson_is_str(item);
    }
    if (right)
        return set_form(r, "choice", param, v, err);
    return json_refuse(err, param, "must be an array of at least one string");
}

static int set_object(struct gen_request *r, const char *param, yyjson_val *v, struct err *err) {
    if (!yyjson_is_bool(v))
        return json_refuse(err, param, "must be a boolean");
    if (!yyjson_get_bool(v))
        return 0;
    return set_form(r, "json_object", param, v, err);
}

READER(output_spec_response_format) {
    yyjson_val *type = yyjson_obj_get(v, "type"), *inner = json_given(v, "json_schema");
    /* Other APIs put the members of json_schema beside the type. */
    yyjson_val *from = inner ? inner : v, *name = json_given(from, "name");
    yyjson_val *strict = json_given(from, "strict"), *schema = json_given(from, "schema");
    bool object = json_is(type, "json_object json");

    if (!schema && object) /* as in Hugging Face's text-generation-inference */
        schema = json_given(v, "value");
    if (!yyjson_is_obj(v))
        return json_refuse(err, "response_format", "must be an object with a type");
    if (yyjson_equals_str(type, "text"))
        return 0;
    r->input.response_format = v;
    if (object && !schema)
        return set_form(r, "json_object", "response_format", type, err);
    if (!object && !yyjson_equals_str(type, "json_schema"))
        return json_refuse(err, "response_format.type",
                           "must be \"text\", \"json_object\" or \"json_schema\"");
    if (inner && !yyjson_is_obj(inner))
        return json_refuse(err, "response_format.json_schema", "must be an object");
    if (name && !yyjson_is_str(name))
        return json_refuse(err, "response_format.json_schema.name", "must be a string");
    if (strict && !yyjson_is_bool(strict))
        return json_refuse(err, "response_format.json_schema.strict", "must be a boolean");
    if (!schema && name) /* a name alone asks for any JSON */
        return set_form(r, "json_object", "response_format", type, err);
    return output_set_schema(r, "response_format.json_schema.schema", schema, err);
}

READER(output_spec_structured) {
    yyjson_val *s, *compact = json_given(v, "disable_any_whitespace");
    yyjson_val *any_order = json_given(v, "any_order");

    if (!yyjson_is_obj(v))
        return json_refuse(err, "structured_outputs", "must be an object");
    if (json_given(v, "structural_tag"))
        return output_unsupported("structured_outputs.structural_tag", "is not supported", err);
    if (json_given(v, "whitespace_pattern"))
        return output_unsupported("structured_outputs.whitespace_pattern", "is not supported", err);
    if (compact && !yyjson_is_bool(compact))
        return json_refuse(err, "structured_outputs.disable_any_whitespace", "must be a boolean");
    if (any_order && !yyjson_is_bool(any_order))
        return json_refuse(err, "structured_outputs.any_order", "must be a boolean");
    r->input.form.compact = yyjson_get_bool(compact);
    r->input.form.any_order = yyjson_get_bool(any_order);
    if ((s = json_given(v, "json")))
        TRY(set_schema_or_text(r, "structured_outputs.json", s, err));
    if ((s = json_given(v, "json_object")))
        TRY(set_object(r, "structured_outputs.json_object", s, err));
    if ((s = json_given(v, "regex")))
        TRY(output_set_string(r, "regex", "structured_outputs.regex", s, err));
    if ((s = json_given(v, "choice")))
        TRY(set_choice(r, "structured_outputs.choice", s, err));
    if ((s = json_given(v, "grammar")))
        TRY(set_grammar(r, "structured_outputs.grammar", s, err));
    return 0;
}

READER(output_spec_guided) {
    const char *field = f->name;

    if (strcmp(field, "guided_json") == 0 || strcmp(field, "json_schema") == 0)
        return set_schema_or_text(r, field, v, err);
    if (strcmp(field, "guided_choice") == 0)
        return set_choice(r, field, v, err);
    if (strcmp(field, "guided_json_object") == 0)
        return set_object(r, field, v, err);
    if (yyjson_is_str(v) && json_len(v) == 0)
        return 0;
    if (strcmp(field, "guided_regex") == 0 || strcmp(field, "regex") == 0)
        return output_set_string(r, "regex", field, v, err);
    return set_grammar(r, field, v, err);
}

/* ---- tools ---- */

/* Returns the name of {"type": "function", "function": {"name": ..}}, of the same with "custom", or
 * of a flat form, {"type": "function", "name": ..} or the Messages API's {"type": "tool", "name":
 * ..}; a type of function may be missing. NULL for any other form. */
static yyjson_val *function_name(yyjson_val *v) {
    yyjson_val *type = json_given(v, "type");
    yyjson_val *f = yyjson_obj_get(v, type ? json_cstr(type) : "function");
    yyjson_val *name = yyjson_obj_get(f ? f : v, "name");

    if (type && !json_is(type, "function custom tool"))
        return NULL;
    if (!json_cstr(name))
        return NULL;
    return name;
}

static int set_allowed(struct gen_request *r, yyjson_val *v, struct err *err) {
    yyjson_val *inner = json_given(v, "allowed_tools");
    yyjson_val *mode = json_given(inner ? inner : v, "mode");

    r->input.choice.allowed = yyjson_obj_get(inner ? inner : v, "tools");
    if (!mode || yyjson_equals_str(mode, "auto"))
        r->input.choice.mode = TOOLS_AUTO;
    else if (yyjson_equals_str(mode, "required"))
        r->input.choice.mode = TOOLS_REQUIRED;
    else
        return json_refuse(err, "tool_choice.allowed_tools.mode",
                           "must be \"auto\" or \"required\"");
    if (!yyjson_is_arr(r->input.choice.allowed) || yyjson_arr_size(r->input.choice.allowed) == 0 ||
        yyjson_arr_size(r->input.choice.allowed) > REQUEST_TOOLS_MAX)
        return json_refuse(err, "tool_choice.allowed_tools.tools",
                           "must be an array of 1 to 1024 tools");
    JSON_EACH_AT(i, item, r->input.choice.allowed) {
        char param[64];

        snprintf(param, sizeof(param), "tool_choice.allowed_tools.tools[%zu]", i);
        if (!function_name(item))
            return json_refuse(err, param, "must be a function with a name");
    }
    return 0;
}

/* Reads the name of a mode, also Mistral's "any", or {"type": NAME} as in the Messages API. Returns
 * false for any other value. */
static bool read_mode(struct gen_request *r, yyjson_val *v) {
    static const struct {
        const char *name;
        uint8_t mode;
    } modes[] = {{"auto", TOOLS_AUTO},
                 {"none", TOOLS_NONE},
                 {"required", TOOLS_REQUIRED},
                 {"any", TOOLS_REQUIRED}};
    yyjson_val *name = yyjson_is_obj(v) ? yyjson_obj_get(v, "type") : v;

    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        if (!yyjson_equals_str(name, modes[i].name))
            continue;
        r->input.choice.mode = modes[i].mode;
        r->input.no_tools = modes[i].mode == TOOLS_NONE;
        return true;
    }
    return false;
}

READER(output_spec_tool_choice) {
    yyjson_val *type = yyjson_obj_get(v, "type");

    if (read_mode(r, v))
        return 0;
    if (yyjson_equals_str(type, "allowed_tools"))
        return set_allowed(r, v, err);
    if (yyjson_is_str(type) && !json_is(type, "function custom tool"))
        return output_unsupported("tool_choice", "can name only functions and custom tools", err);
    r->input.choice.function = function_name(v);
    r->input.choice.mode = TOOLS_REQUIRED;
    if (r->input.choice.function)
        return 0;
    return json_refuse(err, "tool_choice",
                       "must be \"none\", \"auto\", \"required\", a function, or allowed_tools");
}

/* Returns true for a tool that a service would run itself. */
static bool output_is_hosted(yyjson_val *tool) {
    yyjson_val *type = yyjson_obj_get(tool, "type");

    return yyjson_is_str(type) && !json_is(type, "function custom");
}

yyjson_val *output_spec_function(yyjson_val *tool) {
    yyjson_val *custom = custom_tool(tool);

    if (custom)
        return custom;
    if (output_is_hosted(tool))
        return NULL;
    return yyjson_obj_get(tool, "function");
}

static bool output_is_offered(const struct gen_request *r, yyjson_val *name) {
    JSON_EACH(tool, r->input.tools) {
        yyjson_val *have = yyjson_obj_get(output_spec_function(tool), "name");

        if (yyjson_is_str(have) && yyjson_equals(have, name))
            return true;
    }
    return false;
}

static int output_unknown(const char *param, yyjson_val *name, struct err *err) {
    assert(json_cstr(name)); /* function_name() */
    return err_set_code(err, 400, "invalid_value", param,
                        "%s names the function '%.100s', which is not in tools.", param,
                        json_cstr(name));
}

int output_spec_check(const struct gen_request *r, struct err *err) {
    const struct gen_request_choice *c = &r->input.choice;
    size_t any = 0;

    if (c->function && !output_is_offered(r, c->function))
        return output_unknown("tool_choice", c->function, err);
    JSON_EACH_AT(i, item, c->allowed) {
        char param[64];

        snprintf(param, sizeof(param), "tool_choice.allowed_tools.tools[%zu]", i);
        if (!output_is_offered(r, function_name(item)))
            return output_unknown(param, function_name(item), err);
    }
    JSON_EACH(item, r->input.tools) {
        any += !output_is_hosted(item);
    }
    if (c->mode != TOOLS_REQUIRED || any)
        return 0;
    if (!json_is_empty(r->input.tools))
        return json_refuse(err, "tool_choice",
                           "needs at least one function in tools: tools of a service, such as a "
                           "web search, do not run here");
    return json_refuse(err, "tool_choice", "needs at least one function in tools");
}

bool output_spec_tool(const struct gen_request *r, const char *name) {
    if (r->input.choice.function)
        return yyjson_equals_str(r->input.choice.function, name);
    JSON_EACH(item, r->input.choice.allowed) {
        if (yyjson_equals_str(function_name(item), name))
            return true;
    }
    return !r->input.choice.allowed;
}
