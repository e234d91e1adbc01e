/*
 * Writes the calls of a message as a grammar, by the shape of their format. Names and literals come
 * from the format, arguments from the tools' schemas: as JSON where the format writes JSON,
 * otherwise in the spelling of the format (force_tagged.c; grammar/expr/json.c has the others).
 */

#include "api/toolcall/force.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/toolcall/parser.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

void force_point(struct force *f, const char *keyword, const char *name) {
    size_t n;

    if (!f->place)
        return;
    n = (size_t)snprintf(f->place, GRAMMAR_PLACE_MAX, "%s%s%s", keyword ? "/" : "",
                         text_or(keyword, ""), name ? "/" : "");
    for (; name && *name && n + 3 < GRAMMAR_PLACE_MAX; name++) {
        char c = *name;

        if (c == '~' || c == '/') {
            f->place[n++] = '~';
            c = c == '~' ? '0' : '1';
        }
        f->place[n++] = c;
    }
    f->place[n] = 0;
}

int force_refuse(struct force *f, const char *what, ...) {
    char text[200];
    va_list ap;

    va_start(ap, what);
    vsnprintf(text, sizeof(text), what, ap);
    va_end(ap);
    return err_set_code(f->err, 400, "grammar_unsupported", f->tool->param,
                        "%s%s%.48s: %s is not supported by the format of this model's tool calls; "
                        "change the schema, or send the tool without \"strict\"",
                        f->tool->param, f->prop ? ": #/properties/" : "", text_or(f->prop, ""),
                        text);
}

/* ---- pieces of a shape ---- */

enum place { PLACE_ID, PLACE_INDEX, PLACE_TYPE, PLACE_NAME, PLACE_BREAK, PLACES };

static const char *const places[PLACES] = {"{id}", "{index}", "{type}", "{name}", "{nl}"};

static enum place place_at(const char *c) {
    enum place p = 0;

    while (p < PLACES && strncmp(c, places[p], strlen(places[p])) != 0)
        p++;
    return p;
}

static yyjson_mut_val *place_node(struct force *f, enum place p, yyjson_mut_val *type) {
    char id[40];

    switch (p) {
    case PLACE_ID:
        snprintf(id, sizeof(id), "[A-Za-z0-9]{%u}", f->shape->id_len ? f->shape->id_len : 9);
        return ir_text(f->n, "regex", id);
    case PLACE_INDEX:
        return ir_text(f->n, "regex", "0|[1-9][0-9]{0,2}");
    case PLACE_TYPE:
        return type;
    case PLACE_NAME:
        return ir_text(f->n, "literal", f->tool->name);
    default:
        return ir_text(f->n, "regex", "\\n?");
    }
}

void force_piece(struct force *f, yyjson_mut_val *list, const char *piece, yyjson_mut_val *type) {
    for (const char *c = text_or(piece, ""); *c;) {
        enum place p = place_at(c);
        size_t n = p < PLACES ? strlen(places[p]) : 0;

        if (p < PLACES) {
            ir_add(f->n, list, place_node(f, p, type));
            c += n;
            continue;
        }
        while (c[n] && place_at(c + n) == PLACES)
            n++;
        ir_add(f->n, list, ir_of(f->n, "literal", yyjson_mut_strncpy(f->n->doc, c, n)));
        c += n;
    }
}

/* Adds @piece, or a choice of @piece and @also if there is an @also. */
static void put_either(struct force *f, yyjson_mut_val *list, const char *piece, const char *also) {
    yyjson_mut_val *first = also ? ir_list(f->n, "sequence") : list, *second;

    force_piece(f, first, piece, NULL);
    if (!also)
        return;
    second = ir_list(f->n, "sequence");
    force_piece(f, second, also, NULL);
    ir_add(f->n, list, ir_make(f->n, "{either:[%, %]}", first, second));
}

/* ---- arguments as one schema ---- */

bool force_allows_object(yyjson_val *schema) {
    yyjson_val *type = yyjson_obj_get(schema, "type");
    bool found = !type || yyjson_equals_str(type, "object");

    JSON_EACH(one, type) {
        found = found || yyjson_equals_str(one, "object");
    }
    return found;
}

/* Makes the node of all arguments, in JSON or in the notation that @flag names. A schema without a
 * type, or with several, is made that of an object. */
static int whole_args(struct force *f, const char *flag, yyjson_mut_val **out) {
    yyjson_val *schema = f->tool->parameters, *type = yyjson_obj_get(schema, "type");
    bool none = !f->tool->loose && (!schema || yyjson_is_null(schema));
    bool any = f->tool->loose || yyjson_is_true(schema);

    if (none) {
        if (f->shape->args == ARGS_PYTHON)
            *out = ir_list(f->n, "sequence");
        else
            *out = ir_text(f->n, "literal", "{}");
        return 0;
    }
    if (f->tool->loose && !flag) {
        *out = ir_of(f->n, "json_object", yyjson_mut_true(f->n->doc));
        return 0;
    }
    if (!any && !yyjson_is_obj(schema))
        return force_refuse(f, "a schema that does not describe an object");
    if (!any && !force_allows_object(schema))
        return force_refuse(f, "a type other than \"object\"");
    yyjson_mut_val *copy;

    if (any)
        copy = yyjson_mut_obj(f->n->doc);
    else
        copy = ir_value(f->n, schema);

    if (any || !yyjson_equals_str(type, "object"))
        yyjson_mut_obj_put(copy, yyjson_mut_str(f->n->doc, "type"),
                           yyjson_mut_str(f->n->doc, "object"));
    *out = ir_arguments(f->n, copy, f->tool->param);
    if (flag)
        yyjson_mut_obj_add_bool(f->n->doc, *out, flag, true);
    if (f->shape->args == ARGS_PYTHON)
        yyjson_mut_obj_add_bool(f->n->doc, *out, "python", true);
    return 0;
}

/* ---- a custom tool's argument ---- */

/* Makes the node of a custom tool's text, @quoted: inside a JSON string; else up to @stop, which
 * the tool's own grammar must avoid. */
static yyjson_mut_val *text_node(struct force *f, bool quoted, const char *stop) {
    yyjson_mut_val *v;

    assert(quoted || stop);
    if (!f->tool->syntax && !quoted)
        return ir_text(f->n, "free_text", stop);
    if (!f->tool->syntax)
        v = ir_text(f->n, "regex", "[\\s\\S]*");
    else
        v = ir_of(f->n, f->tool->syntax, ir_value(f->n, f->tool->text));
    yyjson_mut_obj_add_strcpy(f->n->doc, v, "param", f->tool->param);
    if (quoted)
        yyjson_mut_obj_add_bool(f->n->doc, v, "quoted", true);
    return v;
}

static yyjson_mut_val *text_args(struct force *f) {
    static const struct {
        const char *kind, *before, *behind;
    } rows[] = {
        [ARGS_JSON] = {"regex", "\\{[ \\n]{0,4}\"input\": ?\"", "\"[ \\n]{0,4}\\}"},
        [ARGS_PYTHON] = {"regex", "input=\"", "\""},
        [ARGS_GEMMA] = {"literal", "{input:" FORCE_GEMMA_QUOTE, FORCE_GEMMA_QUOTE "}"},
    };
    enum toolcall_args form = f->shape->args;

    if (form != ARGS_TAGGED)
        return ir_make(f->n, "{sequence:[%, %, %]}",
                       ir_text(f->n, rows[form].kind, rows[form].before),
                       text_node(f, form != ARGS_GEMMA, FORCE_GEMMA_QUOTE),
                       ir_text(f->n, rows[form].kind, rows[form].behind));
    yyjson_mut_val *list = ir_list(f->n, "sequence");
    force_set_stop(f);
    force_piece(f, list, f->shape->key_begin, NULL);
    ir_add(f->n, list, ir_text(f->n, "literal", "input"));
    force_piece(f, list, f->shape->key_end, NULL);
    ir_add(f->n, list, text_node(f, false, f->stop));
    force_piece(f, list, f->shape->value_end, NULL);
    return list;
}

static int force_put_args(struct force *f, yyjson_mut_val *list) {
    yyjson_mut_val *args = NULL;
    int r;

    if (f->tool->takes_text && !f->tool->loose) {
        ir_add(f->n, list, text_args(f));
        return 0;
    }
    switch (f->shape->args) {
    case ARGS_TAGGED:
        r = force_tagged(f, &args);
        break;
    case ARGS_PYTHON:
        r = whole_args(f, "call", &args);
        break;
    case ARGS_GEMMA:
        r = whole_args(f, "gemma", &args);
        break;
    default:
        r = whole_args(f, NULL, &args);
    }
    if (r == 0)
        ir_add(f->n, list, args);
    return r;
}

/* ---- calls ---- */

/* Returns the characters that a name that does not stand in a JSON string cannot have: those at
 * which the parser's TC_NAME ends (is_bad() in states.c), unless the format says others. */
static const char *name_stops(const struct toolcall_shape *s) {
    return text_or(s->name_stops, " <>{}()[]\"'`,;");
}

/* Returns true if the name stands in a JSON string, where it may have any characters. */
static bool name_is_json(const struct toolcall_shape *s) {
    return s->args == ARGS_JSON && s->name_end && *s->name_end == '"';
}

int toolcall_spell_name(const struct toolcall_shape *s, const char *name, size_t len,
                        struct buf *out) {
    if (name_is_json(s))
        return scan_escape(out, name, len);
    return buf_add(out, name, len);
}

bool toolcall_can_carry(const struct toolcall_format *f, const char *name) {
    const char *end = text_or(f->shape.name_end, "");
    size_t n = strlen(name);
    bool found = false;

    if (n == 0 || n > TOOLCALL_NAME_MAX)
        return false;
    if (name_is_json(&f->shape))
        return true;
    for (size_t i = 0; i < n; i++)
        found = found || (unsigned char)name[i] < 0x20 || name[i] == *end;
    return !found && !strpbrk(name, name_stops(&f->shape));
}

/* Refuses the name of the tool. The tool's param is that of its schema
 * ("tools[2].function.parameters"); the name is a member beside the schema. */
static int force_refuse_name(struct force *f) {
    const char *param = f->tool->param, *dot = strrchr(param, '.');
    char name[64];

    snprintf(name, sizeof(name), "%.*sname", dot ? (int)(dot - param) + 1 : 0, param);
    bool json = name_is_json(f->shape);

    return err_set_code(f->err, 400, "grammar_unsupported", name,
                        "%s: calls of the function \"%.80s\" cannot be forced; a name needs 1 to "
                        "%u bytes%s%s%.1s",
                        name, f->tool->name, TOOLCALL_NAME_MAX,
                        json ? "" : ", in this model's calls without control characters and ",
                        json ? "" : name_stops(f->shape),
                        json ? "" : text_or(f->shape->name_end, ""));
}

/* Makes the node of the name of the tool. */
static yyjson_mut_val *name_node(struct force *f) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    f->n->failed |= toolcall_spell_name(f->shape, f->tool->name, strlen(f->tool->name), &text) < 0;
    return ir_of(f->n, "literal", yyjson_mut_strncpy(f->n->doc, text_or(text.data, ""), text.len));
}

/* Adds a choice of NAME name_end ARGUMENTS for each tool. */
static int force_put_tools(struct force *f, const struct toolcall_force *o, yyjson_mut_val *list) {
    yyjson_mut_val *either = ir_list(f->n, "either");
    int r = 0;

    for (uint32_t i = 0; i < o->n_tools && r == 0 && !f->n->failed; i++) {
        yyjson_mut_val *one = ir_list(f->n, "sequence");

        f->tool = &o->tools[i];
        f->prop = NULL;
        if (!toolcall_can_carry(o->format, f->tool->name))
            return force_refuse_name(f);
        if (f->name_end) {
            force_piece(f, one, f->name_end, NULL);
        } else {
            ir_add(f->n, one, name_node(f));
            put_either(f, one, f->shape->name_end, f->shape->name_end_also);
        }
        r = force_put_args(f, one);
        ir_add(f->n, either, one);
    }
    ir_add(f->n, list, either);
    return r;
}

const char *toolcall_after(const struct toolcall_format *f, size_t i) {
    const char *begin = f->shape.section_begin ? f->shape.section_begin : f->shape.call_begin;

    if (f->force_after[0]) {
        if (i >= ARRAY_SIZE(f->force_after))
            return NULL;
        return f->force_after[i];
    }
    for (size_t k = 0; i == 0 && k < ARRAY_SIZE(f->triggers) && f->triggers[k]; k++)
        if (begin && strstr(begin, f->triggers[k]))
            return f->triggers[k];
    return NULL;
}

bool toolcall_start(const struct toolcall_format *f, const char *name, char *out, size_t size,
                    bool *held) {
    CLEANUP(buf_deinit) struct buf spelled = {.max = UINT32_MAX};
    const char *begin = text_or(f->shape.section_begin, f->shape.call_begin);
    int n = -1;

    *held = f->bare;
    if (f->bare && toolcall_spell_name(&f->shape, name, strlen(name), &spelled) == 0)
        n = snprintf(out, size, "%s%s%s", begin, text_or(spelled.data, ""), f->shape.name_end);
    else if (f->start_after)
        n = snprintf(out, size, "%s", f->start_after);
    if (n <= 0 || (size_t)n >= size)
        return false;
    /* Half of a vocabulary begins with a blank and would cross the end of each tool's trigger. */
    while (*held && out[n - 1] == ' ')
        out[--n] = 0;
    return true;
}

/* Returns the part of @piece behind the trigger. */
static const char *rest_of(const struct toolcall_format *f, const char *piece) {
    const char *trigger = toolcall_after(f, 0);
    const char *at = trigger && piece ? strstr(piece, trigger) : NULL;

    if (!at)
        return piece;
    return at + strlen(trigger);
}

/* Adds one call, with @begin before its name. */
static int force_put_call(struct force *f, const struct toolcall_force *o, const char *begin,
                          yyjson_mut_val *list) {
    put_either(f, list, begin,
               o->after && begin != f->shape->call_begin ? NULL : f->shape->call_begin_also);

    TRY(force_put_tools(f, o, list));
    force_piece(f, list, f->shape->call_end, NULL);
    return 0;
}

/* Adds all calls of a section, or of the message. */
static int force_put_calls(struct force *f, const struct toolcall_force *o, yyjson_mut_val *list) {
    const struct toolcall_shape *s = f->shape;
    uint32_t max = o->max_calls ? o->max_calls : TOOLCALL_CALLS_MAX;
    yyjson_mut_val *call = ir_list(f->n, "sequence"), *separator = NULL;
    TRY(force_put_call(f, o, s->call_begin, call));
    if (s->separator) {
        separator = ir_list(f->n, "sequence");
        force_piece(f, separator, s->separator, NULL);
    }
    ir_add(f->n, list, ir_repeat(f->n, call, separator, 1, max));
    return 0;
}

int toolcall_force(yyjson_mut_val **out, struct nodes *n, const struct toolcall_force *o,
                   struct err *err) {
    struct force f = {.n = n, .shape = &o->format->shape, .err = err, .place = o->place};
    const struct toolcall_shape *s = f.shape;
    bool section = s->section_begin;
    int r;

    assert(o->n_tools > 0 && (section || s->call_begin));
    assert(!o->after || toolcall_after(o->format, 0)); /* a trigger must exist to come after it */
    n->n_made = 0;
    n->too_large = n->failed = false;
    yyjson_mut_val *all = ir_list(n, "sequence");

    if (section) {
        force_piece(&f, all, o->after ? rest_of(o->format, s->section_begin) : s->section_begin,
                    NULL);
        r = force_put_calls(&f, o, all);
        if (r == 0)
            force_piece(&f, all, s->section_end, NULL);
    } else if (o->after && rest_of(o->format, s->call_begin) != s->call_begin) {
        /* Each further call has its own trigger. */
        r = force_put_call(&f, o, rest_of(o->format, s->call_begin), all);
    } else if (o->after && rest_of(o->format, s->name_end) != s->name_end) {
        f.name_end = rest_of(o->format, s->name_end);
        r = force_put_call(&f, o, NULL, all);
    } else {
        r = force_put_calls(&f, o, all);
    }
    if (n->too_large && (r == 0 || r == -ENOMEM))
        r = err_set_code(err, 400, "grammar_too_complex", o->n_tools > 1 ? NULL : f.tool->param,
                         "the grammar of the tools has more than %u values", NODES_MAX);
    TRY(r);
    if (n->failed)
        return -ENOMEM;
    *out = all;
    return 0;
}
