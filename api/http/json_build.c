/* ---- documents ---- */

#include "api/http/json_build.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/result.h"
#include "base/text.h"

static void *json_alloc(void *failed, size_t size) {
    void *p = malloc(size);

    *(bool *)failed |= !p;
    return p;
}

static void *json_realloc(void *failed, void *p, size_t old, size_t size) {
    void *more = realloc(p, size);

    *(bool *)failed |= !more;
    return more;
}

static void json_free(void *failed, void *p) {
    free(p);
}

yyjson_mut_doc *json_doc_new(bool *failed) {
    return yyjson_mut_doc_new(&(yyjson_alc){json_alloc, json_realloc, json_free, failed});
}

yyjson_mut_doc *json_doc_copy(yyjson_doc *from, bool *failed) {
    return yyjson_doc_mut_copy(from, &(yyjson_alc){json_alloc, json_realloc, json_free, failed});
}

int json_doc_seal(yyjson_mut_doc *doc, yyjson_mut_val *root, yyjson_doc **out) {
    if (!root || *(const bool *)doc->alc.ctx)
        return -ENOMEM;
    *out = yyjson_mut_val_imut_copy(root, NULL);
    return enomem_unless(*out);
}

/* ---- values ---- */

struct maker {
    yyjson_mut_doc *doc;
    /* the rest of the shape */
    const char *at;
    yyjson_mut_val *const *args;
    size_t n_args;
};

/* Moves behind blanks and commas. Returns false at the bracket @end, behind which it moves, too. */
static bool has_next(struct maker *m, char end) {
    m->at += strspn(m->at, ", ");
    assert(*m->at);
    bool ends = *m->at == end;
    m->at += ends;
    return !ends;
}

static yyjson_mut_val *json_make_value(struct maker *m);

static yyjson_mut_val *make_object(struct maker *m) {
    yyjson_mut_val *o = yyjson_mut_obj(m->doc);

    while (has_next(m, '}')) {
        size_t n = strcspn(m->at, ":");
        yyjson_mut_val *key = yyjson_mut_strncpy(m->doc, m->at, n);

        m->at += n + 1;
        yyjson_mut_obj_add(o, key, json_make_value(m));
    }
    return o;
}

static yyjson_mut_val *make_array(struct maker *m) {
    yyjson_mut_val *list = yyjson_mut_arr(m->doc);

    while (has_next(m, ']'))
        yyjson_mut_arr_append(list, json_make_value(m));
    return list;
}

/* Makes a text between single quotes, which has no escapes. */
static yyjson_mut_val *make_text(struct maker *m) {
    const char *text = m->at;
    size_t n = strcspn(text, "'");

    m->at += n + 1;
    return yyjson_mut_strncpy(m->doc, text, n);
}

/* Makes true, false, or a whole number. */
static yyjson_mut_val *make_word(struct maker *m) {
    const char *word = m->at;

    m->at += strcspn(word, ", ]}");
    if (*word == 't' || *word == 'f')
        return yyjson_mut_bool(m->doc, *word == 't');
    assert(*word >= '0' && *word <= '9');
    return yyjson_mut_uint(m->doc, strtoul(word, NULL, 10));
}

static yyjson_mut_val *json_make_value(struct maker *m) {
    m->at += strspn(m->at, " ");
    switch (*m->at++) {
    case '{':
        return make_object(m);
    case '[':
        return make_array(m);
    case '%':
        assert(m->n_args > 0);
        m->n_args--;
        return *m->args++;
    case '\'':
        return make_text(m);
    default:
        m->at--;
        return make_word(m);
    }
}

yyjson_mut_val *json_make_of(yyjson_mut_doc *doc, const char *shape, yyjson_mut_val *const *args,
                             size_t n_args) {
    struct maker m = {doc, shape, args, n_args};
    yyjson_mut_val *v = json_make_value(&m);

    assert(!*m.at && m.n_args == 0);
    return v;
}

yyjson_mut_val *json_constant(yyjson_mut_doc *doc, const char *shape) {
    return json_make_of(doc, shape, NULL, 0);
}

void json_put_copy(yyjson_mut_doc *doc, yyjson_mut_val *object, const char *key, yyjson_val *v) {
    yyjson_mut_obj_add_val(doc, object, key, yyjson_val_mut_copy(doc, v));
}

yyjson_mut_val *json_copy_of(yyjson_mut_doc *doc, yyjson_val *from, const char *key) {
    return yyjson_val_mut_copy(doc, yyjson_obj_get(from, key));
}

yyjson_mut_val *json_text_of(yyjson_mut_doc *doc, const struct buf *b) {
    return yyjson_mut_strncpy(doc, text_or(b->data, ""), b->len);
}
