/*
 * A string that is written bare: up to a marker that begins with '<', without quotes or escapes.
 *
 * The generated text must not contain the marker, or the parser would end the string there. The
 * node for free text takes care of that; where the schema asks for more, '<' itself is kept out:
 *
 *      enum, const     these texts
 *      minLength       as many characters (a '<' only before one that cannot go on with the
 *                      marker), then free text
 *      maxLength       characters other than '<'
 *      pattern         the pattern with '<' taken out of its classes (narrow)
 *
 * `format` is an annotation here. A schema that cannot be written so is refused.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "api/toolcall/force.h"
#include "api/toolcall/parser.h"
#include "base/json_read.h"
#include "base/buf.h"
#include "base/try.h"

#define UNION_DEPTH 8
#define UNION_STEPS 2000
#define LENGTH_MAX 100000

static bool is_annotation(yyjson_val *key) {
    static const char *const names[] = {"type",
                                        "description",
                                        "title",
                                        "default",
                                        "examples",
                                        "$comment",
                                        "readOnly",
                                        "writeOnly",
                                        "deprecated",
                                        "nullable",
                                        "format",
                                        "$schema",
                                        "$defs",
                                        "definitions",
                                        "$id",
                                        "example",
                                        "additionalProperties"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (yyjson_equals_str(key, names[i]))
            return true;
    return false;
}

int force_alone(struct force *f, yyjson_val *schema, const char *keyword) {
    bool constants = strcmp(keyword, "enum") == 0 || strcmp(keyword, "const") == 0;

    JSON_MEMBERS(key, v, schema) {
        if (!yyjson_equals_str(key, keyword) &&
            (!is_annotation(key) || (!constants && yyjson_equals_str(key, "type"))))
            return force_refuse(f, "\"%.40s\" beside \"%s\"", or_empty(json_cstr(key)), keyword);
    }
    return 0;
}

/* Follows references. Keywords beside a $ref are not examined, so they may only be annotations. */
int force_resolve(struct force *f, yyjson_val *root, yyjson_val *schema, yyjson_val **out) {
    yyjson_val *s = schema;

    for (int depth = 0; yyjson_obj_get(s, "$ref") && depth < UNION_DEPTH; depth++) {
        const char *ref = json_cstr(yyjson_obj_get(s, "$ref"));
        TRY(force_alone(f, s, "$ref"));
        s = ref && *ref == '#' ? yyjson_ptr_get(root, ref + 1) : NULL;
    }
    *out = s;
    return s && !yyjson_obj_get(s, "$ref") ? 0 : force_refuse(f, "a reference without a target");
}

static bool text_rules(yyjson_val *root, yyjson_val *schema, int depth, int *steps) {
    yyjson_val *s = value_resolve(root, schema);

    if (!s || depth == UNION_DEPTH || --*steps < 0)
        return true;
    JSON_MEMBERS(key, v, s) {
        bool is_union = yyjson_equals_str(key, "anyOf") || yyjson_equals_str(key, "oneOf");

        if (!is_union && !is_annotation(key))
            return true;
        JSON_EACH(item, is_union ? v : NULL) {
            if (text_rules(root, item, depth + 1, steps))
                return true;
        }
    }
    return false;
}

bool value_has_text_rules(yyjson_val *root, yyjson_val *schema) {
    int steps = UNION_STEPS;

    return text_rules(root, schema, 0, &steps);
}

/* ---- patterns without '<' ---- */

/* Reads one character of a class, or an escape that stands for several (*set). Returns false for an
 * escape that is not understood here. */
static bool class_char(const char **at, unsigned *c, bool *set) {
    const unsigned char *p = (const unsigned char *)*at;

    *set = false;
    if (*p != '\\') {
        *c = *p;
        *at += 1;
        return *p;
    }
    *c = p[1] == 'n' ? '\n' : p[1] == 't' ? '\t' : p[1] == 'r' ? '\r' : p[1];
    *set = p[1] && strchr("sdw", p[1]);
    *at += 2;
    return p[1] && !strchr("SDWxucbfvk0pP", p[1]);
}

/* Copies a class, [..], with '<' taken out. Returns false if that is not possible. */
static bool narrow_class(const char **at, struct buf *out) {
    const char *p = *at + 1;
    bool negated = *p == '^';

    p += negated;
    if (*p == ']')
        return false;
    buf_add_str(out, negated ? "[^" : "[");
    while (*p != ']') {
        const char *from = p;
        unsigned lo, hi;
        bool set, high_set = false;

        if (!class_char(&p, &lo, &set))
            return false;
        hi = lo;
        if (!set && *p == '-' && p[1] != ']' && (p++, !class_char(&p, &hi, &high_set)))
            return false;
        if (high_set || hi < lo)
            return false;
        if (negated || set || lo > '<' || hi < '<') {
            buf_add(out, from, (size_t)(p - from));
            continue;
        }
        if (lo >= 0x80 || *from == '\\')
            return false;
        if (lo < '<')
            buf_printf(out, "\\x%02X-;", lo);
        if (hi > '<') { /* the end of the range may have several bytes */
            const char *dash = strchr(from + 1, '-');

            buf_printf(out, "=-%.*s", (int)(p - dash - 1), dash + 1);
        }
    }
    buf_add_str(out, negated ? "<]" : "]");
    *at = p + 1;
    return true;
}

static bool narrow_escape(const char **at, struct buf *out) {
    char c = (*at)[1];

    if (!c || strchr("xucbBkpP0123456789<", c))
        return false;
    if (c == 'S' || c == 'D' || c == 'W')
        buf_printf(out, "[^\\%c<]", c - 'A' + 'a');
    else
        buf_add(out, *at, 2);
    *at += 2;
    return true;
}

/* Writes @pattern as a regular expression of a whole text without '<'. Returns false if that is not
 * possible. */
static bool narrow(const char *pattern, struct buf *out) {
    size_t len = strlen(pattern);
    bool begins = *pattern == '^', ends = len && pattern[len - 1] == '$';
    const char *p = pattern + begins, *end = pattern + len - ends;
    int depth = 0;

    if (ends && len > 1 && pattern[len - 2] == '\\')
        return false;
    buf_add_str(out, begins ? "(?:" : "[^<]*(?:");
    while (p < end) {
        if (*p == '[') {
            if (!narrow_class(&p, out))
                return false;
        } else if (*p == '\\') {
            if (!narrow_escape(&p, out))
                return false;
        } else if (*p == '.') {
            buf_add_str(out, "[^<\\n\\r]");
            p++;
        } else if (strchr("<^$", *p) || (*p == '|' && depth == 0 && (begins || ends))) {
            return false;
        } else {
            depth += (*p == '(') - (*p == ')');
            buf_add_char(out, *p++);
        }
    }
    buf_add_str(out, ends ? ")" : ")[^<]*");
    return p == end && depth == 0;
}

/* ---- strings ---- */

static int pattern_text(struct force *f, yyjson_val *s, yyjson_mut_val **out) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    const char *pattern = json_cstr(yyjson_obj_get(s, "pattern"));

    if (yyjson_obj_get(s, "minLength") || yyjson_obj_get(s, "maxLength"))
        return force_refuse(f, "\"pattern\" beside \"minLength\" or \"maxLength\"");
    if (!pattern || !narrow(pattern, &b))
        return force_refuse(
            f,
            "the pattern \"%.40s\" (it can have characters other than '<', classes, "
            "groups, '^' at its beginning and '$' at its end)",
            or_empty(pattern));
    *out = ir_text(f->n, "regex", b.data);
    return 0;
}

static int counted_text(struct force *f, yyjson_val *s, const char *stop, yyjson_mut_val **out) {
    yyjson_val *lo = yyjson_obj_get(s, "minLength"), *hi = yyjson_obj_get(s, "maxLength");
    int64_t min = 0, max = LENGTH_MAX;
    char regex[96];

    if ((lo && !json_whole(lo, &min)) || (hi && !json_whole(hi, &max)) || min < 0 || min > max ||
        max > LENGTH_MAX)
        return force_refuse(
            f, "a minLength or maxLength that is no whole number up to %d, or out of order,",
            LENGTH_MAX);
    if (hi) {
        snprintf(regex, sizeof(regex), "[^<]{%u,%u}", (unsigned)min, (unsigned)max);
        *out = ir_text(f->n, "regex", regex);
        return 0;
    }
    *out = ir_text(f->n, "free_text", stop);
    if (!min)
        return 0;
    snprintf(regex, sizeof(regex), "(?:[^<]|<+[^<%s%c]){%u}", strchr("\\]^-", stop[1]) ? "\\" : "",
             stop[1], (unsigned)min);
    *out = ir_make(f->n, "{sequence:[{regex:%}, %]}", ir_str(f->n, regex), *out);
    return 0;
}

/* Makes the node of a choice of the @n strings from @v on. */
static int constant_text(struct force *f, yyjson_val *v, size_t n, const char *stop,
                         yyjson_mut_val **out) {
    yyjson_mut_val *texts = yyjson_mut_arr(f->n->doc);

    for (size_t i = 0; i < n; i++, v = json_next(v)) {
        if (!json_cstr(v) || strstr(json_cstr(v), stop))
            return force_refuse(f, "a constant other than a string without \"%s\"", stop);
        yyjson_mut_arr_add_val(texts, ir_value(f->n, v));
    }
    *out = ir_of(f->n, "choice", texts);
    return n ? 0 : force_refuse(f, "an empty enum");
}

static int text_at(struct force *f, yyjson_val *root, yyjson_val *schema, const char *stop,
                   int depth, yyjson_mut_val **out);

/* Makes the node of a union. A oneOf must list constants: other texts could match two of its
 * schemas. */
static int union_text(struct force *f, yyjson_val *root, yyjson_val *s, const char *stop, int depth,
                      yyjson_mut_val **out) {
    static const char *const never[] = {"enum", "const", "pattern", "minLength", "maxLength"};
    yyjson_val *any = yyjson_obj_get(s, "anyOf"), *one = yyjson_obj_get(s, "oneOf");
    yyjson_mut_val *text = NULL;
    size_t n_used = 0;

    for (size_t i = 0; i < ARRAY_SIZE(never); i++)
        if (yyjson_obj_get(s, never[i]))
            return force_refuse(f, "\"%s\" beside anyOf or oneOf", never[i]);
    if (any && one)
        return force_refuse(f, "anyOf beside oneOf");
    *out = ir_list(f->n, "either");
    JSON_EACH(item, any ? any : one) {
        yyjson_val *is = value_resolve(root, item);
        unsigned types = value_schema_types(root, item);

        if (types && !(types & VALUE_STRING))
            continue; /* this schema accepts no string */
        TRY(text_at(f, root, item, stop, depth + 1, &text));
        if (one && !yyjson_obj_get(is, "const") && !yyjson_obj_get(is, "enum"))
            return force_refuse(f, "oneOf of strings that are not constants");
        ir_add(f->n, *out, text);
        n_used++;
    }
    return n_used ? 0 : force_refuse(f, "an anyOf without strings");
}

static int text_at(struct force *f, yyjson_val *root, yyjson_val *schema, const char *stop,
                   int depth, yyjson_mut_val **out) {
    static const char *const never[] = {"not", "if"}, *const alone[] = {"allOf", "const", "enum"};
    yyjson_val *s = NULL, *v;

    TRY(f->n->failed ? -ENOMEM : force_resolve(f, root, schema, &s));
    assert(depth <= UNION_DEPTH);
    if (depth == UNION_DEPTH)
        return force_refuse(f, "nesting of more than %d levels", UNION_DEPTH);
    for (size_t i = 0; i < ARRAY_SIZE(never); i++)
        if (yyjson_obj_get(s, never[i]))
            return force_refuse(f, "\"%s\"", never[i]);
    for (size_t i = 0; i < ARRAY_SIZE(alone); i++)
        if (yyjson_obj_get(s, alone[i]))
            TRY(force_alone(f, s, alone[i]));
    if ((v = yyjson_obj_get(s, "allOf"))) /* the way to put a description beside a reference */
        return yyjson_arr_size(v) == 1
                   ? text_at(f, root, yyjson_arr_get_first(v), stop, depth + 1, out)
                   : force_refuse(f, "allOf of several schemas");
    if (yyjson_obj_get(s, "anyOf") || yyjson_obj_get(s, "oneOf"))
        return union_text(f, root, s, stop, depth, out);
    if ((v = yyjson_obj_get(s, "const")))
        return constant_text(f, v, 1, stop, out);
    if ((v = yyjson_obj_get(s, "enum")))
        return constant_text(f, yyjson_arr_get_first(v), yyjson_arr_size(v), stop, out);
    return yyjson_obj_get(s, "pattern") ? pattern_text(f, s, out) : counted_text(f, s, stop, out);
}

int force_text(struct force *f, yyjson_val *root, yyjson_val *schema, const char *stop,
               yyjson_mut_val **out) {
    assert(stop[0] == '<' && stop[1]);
    return text_at(f, root, schema, stop, 0, out);
}
