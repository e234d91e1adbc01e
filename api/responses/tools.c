/*
 * Templates and tool-call formats know functions with JSON arguments. Tools of other kinds are
 * shown to the model as functions, and a call of one is returned to the client in its original
 * kind:
 *
 *      custom (freeform): one argument `input`, the text (custom.h).
 *      namespace: its tools, each by "namespace__name".
 *      shell, local_shell, apply_patch and tool_search, where the client runs them: native.c.
 *
 * Items bring tools, too: those of additional_tools are shown with the others; those that a search
 * of the client's has found are described in its result and can be called from then on, so that the
 * prompt before it stays as it was and in the cache. A tool that is known already is not added
 * again.
 *
 * Tools that would run at the service (web_search, ...) are left out: models do not miss them, and
 * agents send them to every service.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/messages.h"
#include "api/generation/tool_forms.h"
#include "api/generation/tool_text.h"
#include "api/responses/build.h"
#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"

#define ITEM_TOOLS_MAX 4096u /* limit of tools in items: each is searched for among all */

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

/* Copies the members of a function, or of a custom tool in a chat's form, except its name. */
static int put_members(struct responses_build *b, yyjson_val *tool, bool custom, const char *place,
                       yyjson_mut_val *to) {
    static const char *const keys[2][4] = {{"description", "parameters", "strict"},
                                           {"description", "format"}};
    const char *must, *wrong = custom ? NULL : messages_wrong_member(tool, &must);

    if (wrong)
        return refuse_tool(b, place, wrong, must);
    for (const char *const *key = keys[custom]; *key; key++) {
        yyjson_val *v = json_given(tool, *key);

        if (strcmp(*key, "parameters") == 0)
            v = tool_forms_schema(tool);
        if (strcmp(*key, "parameters") == 0 && tool_forms_has_no_parameters(v))
            continue;
        if (!yyjson_equals_str(v, ""))
            json_put_copy(b->doc, to, *key, v);
    }
    return 0;
}

/* Adds @t to the tools among which the tool of a call is searched for. */
static int remember_tool(struct responses_build *b, const struct responses_tool *t) {
    struct responses *rs = b->rs;

    if (rs->n_tools == REQUEST_TOOLS_MAX)
        return responses_refuse(b, "tools", "must have at most 1024 tools");
    if (rs->n_tools == b->tools_cap) {
        uint32_t cap = MAX(2 * b->tools_cap, 16u);
        struct responses_tool *v = arena_alloc_array(&rs->arena, cap, sizeof(*v));

        if (!v)
            return -ENOMEM;
        if (rs->n_tools)
            memcpy(v, rs->tools, rs->n_tools * sizeof(*v));
        rs->tools = v;
        b->tools_cap = cap;
    }
    rs->tools[rs->n_tools++] = *t;
    return 0;
}

/* Describes function @f of tool @o, which a search has found, in the search's result. */
static int responses_describe(struct responses_build *b, yyjson_mut_val *o, yyjson_mut_val *f) {
    if (b->found->len)
        TRY(buf_add_char(b->found, '\n'));
    yyjson_mut_obj_add_bool(b->doc, o, "defer_loading", true);
    return tool_text_write(b->doc, f, b->found);
}

/* Adds the name of a tool that is known already to the result of the search that found it again. */
static int mention(struct responses_build *b, const char *name) {
    if (!b->found)
        return 0;
    if (b->found->len)
        TRY(buf_add_char(b->found, '\n'));
    return buf_add_str(b->found, name);
}

static int make_tool(struct responses_build *b, yyjson_val *tool, yyjson_val *ns,
                     struct responses_tool *t) {
    yyjson_val *name = yyjson_obj_get(tool_forms_members(tool), "name");

    *t = (struct responses_tool){.name = responses_flat_name(b, ns, name),
                                 .custom = tool_forms_is_custom(tool)};
    if (ns) {
        t->ns = arena_strndup(&b->rs->arena, json_text(ns), json_len(ns));
        t->own = arena_strndup(&b->rs->arena, json_text(name), json_len(name));
    }
    return enomem_unless(t->name && (!ns || (t->ns && t->own)));
}

/* Adds one function or custom tool. @place: "tools[i]". */
static int responses_add_function(struct responses_build *b, yyjson_val *tool, yyjson_val *ns,
                                  const char *place) {
    yyjson_val *members = tool_forms_members(tool), *name = yyjson_obj_get(members, "name");
    struct responses_tool t;

    if (!json_is_name(name, REQUEST_NAME_MAX) || json_len(name) + json_len(ns) > REQUEST_NAME_MAX)
        return refuse_tool(b, place, "name", "must be a string of 1 to 256 bytes without NUL");
    TRY(make_tool(b, tool, ns, &t));
    if (b->in_item && responses_find_tool(b->rs, t.name))
        return mention(b, t.name);
    yyjson_mut_val *f = json_make(b->doc, "{name:%}", yyjson_mut_strcpy(b->doc, t.name));
    yyjson_mut_val *o = json_make(
        b->doc, t.custom ? "{type:'custom', custom:%}" : "{type:'function', function:%}", f);
    yyjson_mut_arr_append(b->tools, o);
    TRY(remember_tool(b, &t));
    TRY(put_members(b, members, t.custom, place, f));
    if (!b->found)
        return 0;
    return responses_describe(b, o, f);
}

/* Adds a native tool. The description and parameters of its client, if there are any, replace those
 * of native.c. */
static int add_native(struct responses_build *b, yyjson_val *tool, const char *place,
                      const struct responses_native *n) {
    struct responses_tool t = {.name = n->type, .native = n};
    yyjson_mut_val *f = json_make(b->doc, "{name:%}", yyjson_mut_strcpy(b->doc, n->type));

    if (b->in_item && responses_find_tool(b->rs, n->type))
        return mention(b, n->type);
    yyjson_mut_arr_append(b->tools, json_make(b->doc, "{type:'function', function:%}", f));
    TRY(remember_tool(b, &t));
    TRY(put_members(b, tool, false, place, f));
    if (!yyjson_mut_obj_get(f, "description"))
        yyjson_mut_obj_add_str(b->doc, f, "description", n->about);
    if (!yyjson_mut_obj_get(f, "parameters"))
        yyjson_mut_obj_add_val(b->doc, f, "parameters", json_constant(b->doc, n->schema));
    return 0;
}

static int add_namespace(struct responses_build *b, yyjson_val *space, const char *place) {
    yyjson_val *name = yyjson_obj_get(space, "name"), *tools = yyjson_obj_get(space, "tools");
    char inner[64];

    if (!json_is_name(name, REQUEST_NAME_MAX))
        return refuse_tool(b, place, "name", "must be a string of 1 to 256 bytes without NUL");
    if (!yyjson_is_arr(tools))
        return refuse_tool(b, place, "tools", "must be an array");
    JSON_EACH_AT(i, tool, tools) {
        snprintf(inner, sizeof(inner), "%.30s.tools[%zu]", place, i);
        if (tool_forms_is_own(tool))
            TRY(responses_add_function(b, tool, name, inner));
    }
    return 0;
}

/* Counts the functions in @tools, those in namespaces included. */
static size_t responses_count(yyjson_val *tools) {
    size_t n = 0;

    JSON_EACH(tool, tools) {
        n += 1 + yyjson_arr_size(yyjson_obj_get(tool, "tools"));
    }
    return n;
}

/* Adds @tool, the one at @place. */
static int responses_add_tool(struct responses_build *b, yyjson_val *tool, const char *place) {
    const struct responses_native *native = responses_native_tool(tool);
    yyjson_val *type = yyjson_obj_get(tool, "type");

    if (tool_forms_is_own(tool))
        return responses_add_function(b, tool, NULL, place);
    if (!yyjson_is_str(type))
        return refuse_tool(b, place, "type", "must be a string");
    if (yyjson_equals_str(type, "namespace"))
        return add_namespace(b, tool, place);
    if (native)
        return add_native(b, tool, place, native);
    /* A hosted tool keeps its place, so that tools[i] of the chat is tools[i] of the request. */
    if (!b->in_item)
        yyjson_mut_arr_append(b->tools, json_constant(b->doc, "{type:'hosted'}"));
    return 0;
}

int responses_tools(struct responses_build *b, yyjson_val *tools) {
    char place[40];

    b->tools = yyjson_mut_arr(b->doc);
    if (responses_count(tools) > REQUEST_TOOLS_MAX)
        return responses_refuse(b, "tools", "must have at most 1024 tools");
    JSON_EACH_AT(i, tool, tools) {
        snprintf(place, sizeof(place), "tools[%zu]", i);
        TRY(responses_add_tool(b, tool, place));
    }
    return 0;
}

int responses_item_tools(struct responses_build *b, yyjson_val *tools, struct buf *found) {
    char place[40];
    int r = 0;

    assert(!b->in_item && !b->found);
    if (!yyjson_is_arr(tools))
        return responses_refuse_item(b, ".tools", "must be an array");
    b->n_item_tools += responses_count(tools);
    if (b->n_item_tools > ITEM_TOOLS_MAX)
        return responses_refuse_item(b, ".tools",
                                     "exceeds the number of tools that items may bring");
    b->in_item = true;
    b->found = found;
    JSON_EACH_AT(i, tool, tools) {
        snprintf(place, sizeof(place), "input[%zu].tools[%zu]", b->i, i);
        if ((r = responses_add_tool(b, tool, place)) < 0)
            break;
    }
    b->in_item = false;
    b->found = NULL;
    return r;
}

void responses_tools_end(struct responses_build *b, yyjson_mut_val *root) {
    if (b->rs->n_tools)
        yyjson_mut_obj_add_val(b->doc, root, "tools", b->tools);
}

/* Returns the choice {"type": .., "name": ..}, or the type of a native tool, in a chat's form. */
static yyjson_mut_val *responses_named_choice(struct responses_build *b, yyjson_val *choice) {
    const struct responses_native *n = responses_native_tool(choice);
    yyjson_val *name = yyjson_obj_get(tool_forms_members(choice), "name");
    const char *flat = NULL;

    if (n)
        flat = n->type;
    else if (json_cstr(name))
        flat = responses_flat_name(b, yyjson_obj_get(choice, "namespace"), name);
    b->failed |= !flat;
    return json_make(b->doc, "{type:'function', function:{name:%}}",
                     yyjson_mut_strcpy(b->doc, flat));
}

static int put_allowed(struct responses_build *b, yyjson_val *choice, yyjson_mut_val *root) {
    yyjson_val *tools = yyjson_obj_get(choice, "tools"), *mode = yyjson_obj_get(choice, "mode");
    yyjson_mut_val *list = yyjson_mut_arr(b->doc);

    if (!yyjson_is_arr(tools))
        return responses_refuse(b, "tool_choice.tools", "must be an array");
    JSON_EACH(tool, tools) {
        yyjson_val *name = yyjson_obj_get(tool_forms_members(tool), "name");
        bool function = tool_forms_is_own(tool) || !json_cstr(yyjson_obj_get(tool, "type"));

        if (function && !json_cstr(name))
            return responses_refuse(b, "tool_choice.tools",
                                    "must be functions with a name without NUL, or other tools");
        if (!function && !responses_native_tool(tool))
            continue; /* a hosted one, which is left out */
        yyjson_mut_arr_append(list, responses_named_choice(b, tool));
    }
    if (yyjson_arr_size(tools) > 0 && yyjson_mut_arr_size(list) == 0)
        return 0;
    yyjson_mut_obj_add_val(b->doc, root, "tool_choice",
                           json_make(b->doc,
                                     "{type:'allowed_tools', allowed_tools:{mode:%, tools:%}}",
                                     yyjson_val_mut_copy(b->doc, mode), list));
    return 0;
}

int responses_tool_choice(struct responses_build *b, yyjson_val *choice, yyjson_mut_val *root) {
    bool native = responses_native_tool(choice);
    bool mode = !yyjson_is_obj(choice) || json_has(choice, "type", "auto none required any");
    bool function = tool_forms_is_own(choice) || json_has(choice, "type", "tool");

    if (json_has(choice, "type", "allowed_tools"))
        return put_allowed(b, choice, root);
    if (!mode && !function && !json_cstr(yyjson_obj_get(choice, "type")))
        return responses_refuse(b, "tool_choice.type", "must be a string without NUL");
    if (!mode && !native && !function)
        return 0; /* a hosted tool, which is left out like its definition */
    if (function && !json_cstr(yyjson_obj_get(tool_forms_members(choice), "name")))
        return responses_refuse(b, "tool_choice.name", "must be a string without NUL");
    if (!mode)
        yyjson_mut_obj_add_val(b->doc, root, "tool_choice", responses_named_choice(b, choice));
    else
        json_put_copy(b->doc, root, "tool_choice", choice);
    return 0;
}
