/*
 * bench_toolcalls VOCABULARY.gguf [FORMAT] < names: reads names of files, one a line, each
 * {"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}. Each schema of an object is the
 * parameters of a tool: for every format of calls the forced call is compiled, and the valid
 * instances, written as calls of that format, are read token by token. Writes a line for each
 * format: tools compiled, refused, calls that fit, and those that do not, with the first of them.
 *
 * Members of an instance are put in the order of the schema first, as calls are forced.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/toolcall/grammar_ir.h"
#include "api/toolcall/toolcall.h"
#include "base/buf.h"
#include "grammar/constraint.h"
#include "text/tokenizer.h"

#define FORMATS_MAX 64

struct counts {
    uint32_t n_compiled, n_refused, n_fit, n_unfit;
    /* that was refused or did not fit */
    char first[400];
};

static const struct tokenizer *tokens;
static const struct grammar_vocab *vocab;

/* @v with the members that @schema declares first, in its order. */
static yyjson_mut_val *in_order(yyjson_mut_doc *d, yyjson_val *v, yyjson_val *schema) {
    yyjson_val *declared = yyjson_obj_get(schema, "properties"), *key, *item, *sub;
    yyjson_mut_val *out;
    size_t i, n;

    if (yyjson_is_arr(v)) {
        out = yyjson_mut_arr(d);
        sub = yyjson_obj_get(schema, "items");
        yyjson_arr_foreach(v, i, n, item) yyjson_mut_arr_append(out, in_order(d, item, sub));
        return out;
    }
    if (!yyjson_is_obj(v))
        return yyjson_val_mut_copy(d, v);
    out = yyjson_mut_obj(d);
    yyjson_obj_foreach(declared, i, n, key, sub) {
        item = yyjson_obj_getn(v, yyjson_get_str(key), yyjson_get_len(key));
        if (item)
            yyjson_mut_obj_add(out, yyjson_val_mut_copy(d, key), in_order(d, item, sub));
    }
    yyjson_obj_foreach(v, i, n, key, item) {
        if (!yyjson_obj_getn(declared, yyjson_get_str(key), yyjson_get_len(key)))
            yyjson_mut_obj_add(out, yyjson_val_mut_copy(d, key), in_order(d, item, NULL));
    }
    return out;
}

static int force(struct constraint **out, const struct toolcall_format *f, yyjson_val *schema,
                 struct err *err) {
    struct toolcall_tool tool = {.name = "tool", .parameters = schema, .param = "tools"};
    struct toolcall_force o = {.format = f, .tools = &tool, .n_tools = 1, .max_calls = 1};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root = NULL;
    size_t len;
    int r = toolcall_force(&root, &n, &o, err);
    char *text = r == 0 ? yyjson_mut_val_write(root, 0, &len) : NULL;

    if (r == 0)
        r = text ? constraint_new(out, vocab, text, len, NULL, 0, NULL, err) : -ENOMEM;
    free(text);
    yyjson_mut_doc_free(n.doc);
    return r;
}

/* Whether the call with @data as arguments, as @f writes it, fits. */
static bool fits(const struct constraint *c, const struct toolcall_format *f, yyjson_val *data,
                 yyjson_val *schema, struct buf *text) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *calls = yyjson_mut_arr(d), *call = yyjson_mut_arr_add_obj(d, calls),
                   *function = yyjson_mut_obj_add_obj(d, call, "function");
    struct toolcall_marks own = {0};
    struct tokens ids = {0};

    yyjson_mut_obj_add_str(d, function, "name", "tool");
    yyjson_mut_obj_add_val(d, function, "arguments", in_order(d, data, schema));
    bool ok =
        toolcall_write_calls(f, calls, text, &own) == 0 &&
        tokenizer_encode(tokens, text->data, text->len, TOKENIZE_SPECIAL, NULL, 0, &ids) == 0 &&
        constraint_state_new(&s, c) == 0;

    for (size_t i = 0; ok && i < ids.n; i++)
        ok = constraint_accept(s, ids.id[i]) == 0;
    ok = ok && constraint_can_end(s);
    tokens_deinit(&ids);
    free(own.v);
    yyjson_mut_doc_free(d);
    return ok;
}

static void note(struct counts *n, const char *name, const char *what, size_t len) {
    if (*n->first == '\0')
        snprintf(n->first, sizeof(n->first), "%.80s: %.*s", name, (int)MIN(len, (size_t)300), what);
}

static void run_format(struct counts *n, const struct toolcall_format *f, const char *name,
                       yyjson_val *root) {
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    yyjson_val *schema = yyjson_obj_get(root, "schema"), *test;
    struct err err = {0};
    size_t i, max;

    if (force(&c, f, schema, &err) < 0) {
        n->n_refused++;
        note(n, name, err.message, strlen(err.message));
        return;
    }
    n->n_compiled++;
    yyjson_arr_foreach(yyjson_obj_get(root, "tests"), i, max, test) {
        struct buf text;

        if (!yyjson_get_bool(yyjson_obj_get(test, "valid")) || !toolcall_can_write(f))
            continue;
        buf_init(&text, 16u << 20);
        if (fits(c, f, yyjson_obj_get(test, "data"), schema, &text)) {
            n->n_fit++;
        } else {
            n->n_unfit++;
            note(n, name, text.data ? text.data : "", text.len);
        }
        buf_deinit(&text);
    }
}

int main(int argc, char **argv) {
    static char name[4096];
    static struct counts counts[FORMATS_MAX];
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct err err = {0};

    if (argc < 2 || gguf_open(&file, argv[1], &err) < 0 || tokenizer_new(&t, file, &err) < 0 ||
        grammar_vocab_of(&v, t) < 0) {
        fprintf(stderr, "usage: bench_toolcalls VOCABULARY.gguf [FORMAT] < names %s\n",
                err.message);
        return 1;
    }
    tokens = t;
    vocab = v;
    while (fgets(name, sizeof(name), stdin)) {
        name[strcspn(name, "\n")] = '\0';
        yyjson_doc *doc = yyjson_read_file(name, 0, NULL, NULL);
        yyjson_val *root = yyjson_doc_get_root(doc);
        const char *type = yyjson_get_str(yyjson_obj_get(yyjson_obj_get(root, "schema"), "type"));

        for (size_t i = 0; toolcall_at(i) && i < FORMATS_MAX && type && !strcmp(type, "object");
             i++)
            if (argc < 3 || strcmp(toolcall_at(i)->name, argv[2]) == 0)
                run_format(&counts[i], toolcall_at(i),
                           strrchr(name, '/') ? strrchr(name, '/') : name, root);
        yyjson_doc_free(doc);
    }
    for (size_t i = 0; toolcall_at(i) && i < FORMATS_MAX; i++)
        printf("%-16s compiled %u refused %u, calls that fit %u, that do not %u%s %s\n",
               toolcall_at(i)->name, counts[i].n_compiled, counts[i].n_refused, counts[i].n_fit,
               counts[i].n_unfit, toolcall_can_write(toolcall_at(i)) ? "" : " (not written)",
               counts[i].first);
    return 0;
}
