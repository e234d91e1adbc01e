#include "api/generation/custom.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/gen_request.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"

yyjson_val *custom_tool(yyjson_val *tool) {
    yyjson_val *custom = json_given(tool, "custom");

    if (!json_has(tool, "type", "custom"))
        return NULL;
    return custom ? custom : tool;
}

/* Returns the object that holds a custom tool's grammar, or NULL. In a chat it is a member of the
 * format; in the Responses API it is the format itself. */
static yyjson_val *grammar_of(yyjson_val *custom) {
    yyjson_val *format = yyjson_obj_get(custom, "format");
    yyjson_val *inner = yyjson_obj_get(format, "grammar");

    if (!json_has(format, "type", "grammar"))
        return NULL;
    if (inner)
        return inner;
    return format;
}

static int custom_refuse(size_t i, const char *field, const char *must, struct err *err) {
    char param[64];

    snprintf(param, sizeof(param), "tools[%zu].custom.%s", i, field);
    return json_refuse(err, param, must);
}

int custom_check(yyjson_val *tool, size_t i, struct err *err) {
    yyjson_val *custom = custom_tool(tool), *format = json_given(custom, "format");
    yyjson_val *type = yyjson_obj_get(format, "type"), *name = yyjson_obj_get(custom, "name");
    yyjson_val *grammar = grammar_of(custom), *syntax = yyjson_obj_get(grammar, "syntax");
    yyjson_val *text = yyjson_obj_get(grammar, "definition");

    if (!json_is_name(name, REQUEST_NAME_MAX))
        return custom_refuse(i, "name", "must be a string of 1 to 256 bytes without NUL", err);
    if (!format || yyjson_equals_str(type, "text"))
        return 0;
    if (!grammar)
        return custom_refuse(i, "format.type", "must be \"text\" or \"grammar\"", err);
    if (!json_is(syntax, "lark regex"))
        return custom_refuse(i, "format.syntax", "must be \"lark\" or \"regex\"", err);
    if (json_is_name(text, SIZE_MAX))
        return 0;
    return custom_refuse(i, "format.definition", "must be a string that is not empty, without NUL",
                         err);
}

const char *custom_syntax(yyjson_val *custom, yyjson_val **text) {
    yyjson_val *grammar = grammar_of(custom);

    *text = yyjson_obj_get(grammar, "definition");
    if (!grammar)
        return NULL;
    if (json_has(grammar, "syntax", "lark"))
        return "lark";
    return "regex";
}

/* Writes the description that the model sees. It contains the grammar, so that the model follows
 * it. */
static int custom_describe(yyjson_val *custom, struct buf *out) {
    yyjson_val *about = yyjson_obj_get(custom, "description"), *text = NULL;
    const char *syntax = custom_syntax(custom, &text);

    if (yyjson_is_str(about) && json_add_text(out, about) < 0)
        return -ENOMEM;
    if (!syntax)
        return 0;
    return buf_printf(out, "%sThe input must follow this grammar (%s):\n%s", out->len ? "\n\n" : "",
                      syntax, json_cstr(text));
}

yyjson_mut_val *custom_as_function(yyjson_mut_doc *doc, yyjson_val *custom) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    if (custom_describe(custom, &text) < 0)
        return NULL;
    return json_make(
        doc,
        "{type:'function', function:{name:%, description:%, parameters:{type:'object', "
        "properties:{input:{type:'string'}}, required:['input'], "
        "additionalProperties:false}}}",
        json_copy_of(doc, custom, "name"), text.len ? json_text_of(doc, &text) : NULL);
}

bool custom_is(const struct gen_request *r, const char *name) {
    for (uint32_t i = 0; i < r->made.n_customs; i++)
        if (strcmp(r->made.customs[i], name) == 0)
            return true;
    return false;
}

/* ---- text of a call while it arrives ---- */

/*
 *      START ─{"input":"─> TEXT ─"─> END      TEXT ─\─> ESCAPE ─> TEXT, or ─u─> HEX (4) ─> TEXT
 *
 * Arguments that begin in another way lead to OTHER: the text stays empty until the call is
 * complete.
 */
enum { TEXT_START, TEXT_TEXT, TEXT_ESCAPE, TEXT_HEX, TEXT_END = TEXT_HEX + 4, TEXT_OTHER };

/* Returns the length of the opening {"input":" with its white space; 0 while it is incomplete,
 * SIZE_MAX if the arguments begin in another way. */
static size_t opening(const char *s, size_t len) {
    static const char want[] = "{\"input\":\"";
    size_t i = 0;

    for (const char *w = want; *w; w++) {
        bool in_key = w > want + 1 && w < want + 8;

        while (!in_key && i < len && strchr(" \t\r\n", s[i]) && s[i])
            i++;
        if (i == len)
            return 0;
        if (s[i++] != *w)
            return SIZE_MAX;
    }
    return i;
}

static int add_code(struct custom_text *t, uint32_t c) {
    char u[4];
    size_t n = 0;

    if (c < 0x80) {
        u[n++] = (char)c;
    } else if (c < 0x800) {
        u[n++] = (char)(0xC0 | c >> 6);
    } else if (c < 0x10000) {
        u[n++] = (char)(0xE0 | c >> 12);
        u[n++] = (char)(0x80 | (c >> 6 & 63));
    } else {
        u[n++] = (char)(0xF0 | c >> 18);
        u[n++] = (char)(0x80 | (c >> 12 & 63));
        u[n++] = (char)(0x80 | (c >> 6 & 63));
    }
    if (c >= 0x80)
        u[n++] = (char)(0x80 | (c & 63));
    return buf_add(&t->text, u, n);
}

/* Adds the UTF-16 unit of an escape; a high surrogate is kept until the low one arrives. The parser
 * of tool calls lets no unpaired surrogate through. */
static int custom_add_unit(struct custom_text *t, uint32_t u) {
    if (u >= 0xD800 && u < 0xDC00) {
        t->high = u;
        return 0;
    }
    if (t->high && u >= 0xDC00 && u < 0xE000)
        u = 0x10000 + ((t->high - 0xD800) << 10) + (u - 0xDC00);
    t->high = 0;
    t->unit = 0;
    return add_code(t, u);
}

static int read_byte(struct custom_text *t, char c) {
    static const char letters[] = "bfnrt", values[] = "\b\f\n\r\t";
    const char *at;

    switch (t->state) {
    case TEXT_TEXT:
        if (c == '\\' || c == '"') {
            t->state = c == '"' ? TEXT_END : TEXT_ESCAPE;
            return 0;
        }
        return buf_add_char(&t->text, c);
    case TEXT_ESCAPE:
        t->state = c == 'u' ? TEXT_HEX : TEXT_TEXT;
        t->unit = 0;
        if (c == 'u')
            return 0;
        at = c ? strchr(letters, c) : NULL;
        return buf_add_char(&t->text, at ? values[at - letters] : c);
    case TEXT_END:
        return 0;
    default: /* TEXT_HEX and the next three */
        t->unit = t->unit << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        if (++t->state < TEXT_END)
            return 0;
        t->state = TEXT_TEXT;
        return custom_add_unit(t, t->unit & 0xFFFF);
    }
}

int custom_read(struct custom_text *t, const char *args, size_t len) {
    int r;

    if (t->state == TEXT_START) {
        size_t n = opening(args, len);

        if (n == 0)
            return 0;
        t->state = n == SIZE_MAX ? TEXT_OTHER : TEXT_TEXT;
        t->at = n == SIZE_MAX ? 0 : n;
    }
    if (t->state == TEXT_OTHER)
        return 0;
    assert(t->state >= TEXT_TEXT && t->state <= TEXT_END && t->at <= len);
    for (; t->at < len; t->at++)
        if ((r = read_byte(t, args[t->at])) != 0)
            return r;
    return 0;
}

bool custom_is_other(const struct custom_text *t) {
    return t->state == TEXT_OTHER;
}

static void custom_text_deinit(struct custom_text *t) {
    buf_deinit(&t->text);
}

/* Extracts the text for a custom tool from {"input": text}, the form that the model was asked for.
 * Arguments in another form are passed on unchanged. */
int custom_whole(const char *args, size_t len, struct buf *out) {
    CLEANUP(custom_text_deinit) struct custom_text t = {.text = {.max = UINT32_MAX}};
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    TRY(custom_read(&t, args, len));
    if (t.text.len)
        return buf_add(out, t.text.data, t.text.len);
    if (json_parse(&doc, args, len, 0) == -ENOMEM)
        return -ENOMEM;
    yyjson_val *v = yyjson_obj_get(yyjson_doc_get_root(doc), "input");
    if (yyjson_is_str(v))
        return json_add_text(out, v);
    return buf_add(out, args, len);
}
