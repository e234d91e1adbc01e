#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "api/generation/messages.h"
#include "api/http/json.h"
#include "api/responses/build.h"

/*
 * Templates and tool-call formats know functions with JSON arguments. Tools of other kinds are
 * shown to the model as functions, and a call of one is returned to the client in its original
 * kind:
 *
 *      custom (freeform): one argument `input`, the text (custom.h).
 *      namespace: its tools, each by "namespace__name".
 *      shell, local_shell, apply_patch, where the client runs them: native.c.
 *
 * Tools that would run at the service (web_search, ...) are left out: models do not miss them, and
 * agents send them to every service.
 */

static int refuse_tool(const struct responses_build *b, const char *place, const char *field,
                       const char *must) {
    char param[64];

    snprintf(param, sizeof(param), "%.40s.%.20s", place, field);
    return responses_refuse(b, param, must);
}

const char *responses_flat_name(struct responses_build *b, yyjson_val *ns, yyjson_val *name) {
    const char *space = json_cstr(ns), *own = json_cstr(name);
    size_t n = space ? strlen(space) : 0, size = n + strlen(own) + 3;
    char *out;

    if (!n)
        return arena_strndup(&b->rs->arena, own, strlen(own));
    bool ends = n >= 2 && strcmp(space + n - 2, "__") == 0;
    if ((out = arena_alloc(&b->rs->arena, size)))
        snprintf(out, size, "%s%s%s", space, ends ? "" : "__", own);
    return out;
}

const struct responses_tool *responses_find_tool(const struct responses *rs, const char *name) {
    for (uint32_t i = 0; i < rs->n_tools; i++)
        if (strcmp(rs->tools[i].name, name) == 0)
            return &rs->tools[i];
    return NULL;
}

static yyjson_mut_val *schema_of(struct responses_build *b, const char *text) {
    yyjson_doc *doc = yyjson_read(text, strlen(text), 0);
    yyjson_mut_val *v = doc ? yyjson_val_mut_copy(b->doc, yyjson_doc_get_root(doc)) : NULL;

    yyjson_doc_free(doc);
    return v;
}

/* The members of a function, or of a chat's custom tool but for its name. */
static int put_members(struct responses_build *b, yyjson_val *tool, bool custom, const char *place,
                       yyjson_mut_val *to) {
    static const char *const keys[2][4] = {{"description", "parameters", "strict"},
                                           {"description", "format"}};
    char must[40];
    const char *type, *wrong = custom ? NULL : messages_wrong_member(tool, &type);
    int r = 0;

    if (wrong) {
        snprintf(must, sizeof(must), "must be %s", type);
        return refuse_tool(b, place, wrong, must);
    }
    for (const char *const *key = keys[custom]; *key && r == 0; key++) {
        yyjson_val *v = yyjson_obj_get(tool, *key);

        if (v && !yyjson_is_null(v) && !yyjson_equals_str(v, ""))
            r = responses_put_value(b, to, *key, yyjson_val_mut_copy(b->doc, v));
    }
    return r;
}

/* Adds one function or custom tool. @place: "tools[i]". */
static int add_function(struct responses_build *b, yyjson_val *tool, yyjson_val *ns,
                        const char *place, yyjson_mut_val *list) {
    struct responses_tool *t = &b->rs->tools[b->rs->n_tools];
    yyjson_val *name = yyjson_obj_get(tool, "name");
    yyjson_mut_val *o, *f = yyjson_mut_obj(b->doc);
    bool custom = yyjson_equals_str(yyjson_obj_get(tool, "type"), "custom");
    const char *type = custom ? "custom" : "function";

    if (!json_is_name(name, REQUEST_NAME_MAX) || json_len(name) + json_len(ns) > REQUEST_NAME_MAX)
        return refuse_tool(b, place, "name", "must be a string of 1 to 256 bytes without NUL");
    t->name = responses_flat_name(b, ns, name);
    t->custom = custom;
    if (ns) {
        t->ns = arena_strndup(&b->rs->arena, json_text(ns), json_len(ns));
        t->own = arena_strndup(&b->rs->arena, json_text(name), json_len(name));
    }
    if (!t->name || (ns && (!t->ns || !t->own)) || !(o = yyjson_mut_arr_add_obj(b->doc, list)) ||
        !yyjson_mut_obj_add_str(b->doc, o, "type", type) ||
        !yyjson_mut_obj_add_str(b->doc, f, "name", t->name))
        return -ENOMEM;
    b->rs->n_tools++;
    int r = put_members(b, tool, custom, place, f);
    return r < 0 ? r : responses_put_value(b, o, type, f);
}

static int add_native(struct responses_build *b, const struct responses_native *n,
                      yyjson_mut_val *list) {
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(b->doc, list), *f = yyjson_mut_obj(b->doc);

    b->rs->tools[b->rs->n_tools++] = (struct responses_tool){.name = n->type, .native = n};
    if (!o || !yyjson_mut_obj_add_str(b->doc, o, "type", "function") ||
        !yyjson_mut_obj_add_str(b->doc, f, "name", n->type) ||
        !yyjson_mut_obj_add_str(b->doc, f, "description", n->about) ||
        responses_put_value(b, f, "parameters", schema_of(b, n->schema)) < 0)
        return -ENOMEM;
    return responses_put_value(b, o, "function", f);
}

static bool is_function(yyjson_val *tool) {
    yyjson_val *type = yyjson_obj_get(tool, "type");

    return yyjson_equals_str(type, "function") || yyjson_equals_str(type, "custom");
}

static int add_namespace(struct responses_build *b, yyjson_val *space, const char *place,
                         yyjson_mut_val *list) {
    yyjson_val *name = yyjson_obj_get(space, "name"), *tools = yyjson_obj_get(space, "tools"),
               *tool;
    char inner[64];
    size_t i, n;

    if (!json_is_name(name, REQUEST_NAME_MAX))
        return refuse_tool(b, place, "name", "must be a string of 1 to 256 bytes without NUL");
    if (!yyjson_is_arr(tools))
        return refuse_tool(b, place, "tools", "must be an array");
    yyjson_arr_foreach(tools, i, n, tool) {
        snprintf(inner, sizeof(inner), "%.30s.tools[%zu]", place, i);
        int r = is_function(tool) ? add_function(b, tool, name, inner, list) : 0;

        if (r < 0)
            return r;
    }
    return 0;
}

/* Functions in @tools, those in namespaces included. */
static size_t count(yyjson_val *tools) {
    size_t i, max, n = 0;
    yyjson_val *tool;

    yyjson_arr_foreach(tools, i, max, tool) n += 1 + yyjson_arr_size(yyjson_obj_get(tool, "tools"));
    return n;
}

int responses_tools(struct responses_build *b, yyjson_val *tools, yyjson_mut_val *root) {
    yyjson_mut_val *list = yyjson_mut_arr(b->doc);
    size_t n = count(tools), i, max;
    yyjson_val *tool;
    char place[40];

    if (!tools)
        return 0;
    if (n > REQUEST_TOOLS_MAX)
        return responses_refuse(b, "tools", "must have at most 1024 tools");
    b->rs->tools = arena_alloc_array(&b->rs->arena, n + 1, sizeof(*b->rs->tools));
    if (!list || !b->rs->tools)
        return -ENOMEM;
    yyjson_arr_foreach(tools, i, max, tool) {
        yyjson_val *type = yyjson_obj_get(tool, "type");
        int r = 0;

        snprintf(place, sizeof(place), "tools[%zu]", i);
        if (!yyjson_is_str(type))
            return refuse_tool(b, place, "type", "must be a string");
        if (is_function(tool))
            r = add_function(b, tool, NULL, place, list);
        else if (yyjson_equals_str(type, "namespace"))
            r = add_namespace(b, tool, place, list);
        else if (responses_native_tool(tool))
            r = add_native(b, responses_native_tool(tool), list);
        else if (!yyjson_mut_arr_append(list, yyjson_mut_obj(b->doc)) ||
                 !yyjson_mut_obj_add_str(b->doc, yyjson_mut_arr_get_last(list), "type", "hosted"))
            r = -ENOMEM; /* so that a chat's tools[i] is ours */
        if (r < 0)
            return r;
    }
    return b->rs->n_tools ? responses_put_value(b, root, "tools", list) : 0;
}

/* {"type": .., "name": ..}, or just the type of a native tool, as a chat says it. */
static yyjson_mut_val *named(struct responses_build *b, yyjson_val *choice) {
    const struct responses_native *n = responses_native_tool(choice);
    yyjson_val *name = yyjson_obj_get(choice, "name");
    yyjson_mut_val *o = yyjson_mut_obj(b->doc), *f = yyjson_mut_obj(b->doc);
    const char *flat = n ? n->type
                       : json_cstr(name)
                           ? responses_flat_name(b, yyjson_obj_get(choice, "namespace"), name)
                           : NULL;

    return flat && yyjson_mut_obj_add_str(b->doc, o, "type", "function") &&
                   yyjson_mut_obj_add_str(b->doc, f, "name", flat) &&
                   yyjson_mut_obj_add_val(b->doc, o, "function", f)
               ? o
               : NULL;
}

static int put_allowed(struct responses_build *b, yyjson_val *choice, yyjson_mut_val *root) {
    yyjson_val *tools = yyjson_obj_get(choice, "tools"), *mode = yyjson_obj_get(choice, "mode"),
               *tool;
    yyjson_mut_val *o = yyjson_mut_obj(b->doc), *list = yyjson_mut_arr(b->doc), *v;
    size_t i, n;

    if (!yyjson_is_arr(tools))
        return responses_refuse(b, "tool_choice.tools", "must be an array");
    yyjson_arr_foreach(tools, i, n, tool) {
        bool named_one = is_function(tool) && json_cstr(yyjson_obj_get(tool, "name"));

        if (!named_one && !responses_native_tool(tool))
            return responses_refuse(b, "tool_choice.tools",
                                    "must be functions with a name without NUL");
        if (!(v = named(b, tool)) || !yyjson_mut_arr_append(list, v))
            return -ENOMEM;
    }
    yyjson_mut_val *inner = yyjson_mut_obj(b->doc);
    if (mode && responses_put_value(b, inner, "mode", yyjson_val_mut_copy(b->doc, mode)) < 0)
        return -ENOMEM;
    if (!yyjson_mut_obj_add_str(b->doc, o, "type", "allowed_tools") ||
        !yyjson_mut_obj_add_val(b->doc, inner, "tools", list) ||
        !yyjson_mut_obj_add_val(b->doc, o, "allowed_tools", inner))
        return -ENOMEM;
    return responses_put_value(b, root, "tool_choice", o);
}

int responses_tool_choice(struct responses_build *b, yyjson_val *choice, yyjson_mut_val *root) {
    bool native = responses_native_tool(choice);

    if (yyjson_equals_str(yyjson_obj_get(choice, "type"), "allowed_tools"))
        return put_allowed(b, choice, root);
    if (yyjson_is_obj(choice) && !native && !is_function(choice))
        return responses_refuse(b, "tool_choice.type",
                                "must be a function, a custom tool or allowed_tools");
    if (yyjson_is_obj(choice) && !native && !json_cstr(yyjson_obj_get(choice, "name")))
        return responses_refuse(b, "tool_choice.name", "must be a string without NUL");
    return responses_put_value(b, root, "tool_choice",
                               yyjson_is_obj(choice) ? named(b, choice)
                                                     : yyjson_val_mut_copy(b->doc, choice));
}
