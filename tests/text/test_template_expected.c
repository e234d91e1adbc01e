/*
 * Every template of the data set with every conversation, against the renderings of the reference
 * environment. What that has as an alternative for a forgiving environment ("relaxed") is what we
 * do: tools and documents are left out when a case has none.
 */

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "tests/support/test_data.h"
#include "text/template.h"

#define NOW 1768469213 /* 2026-01-15T09:26:53Z, the "now" of the conversations */

static yyjson_doc *read_json(const char *dir, const char *name) {
    char path[512];

    snprintf(path, sizeof(path), "%s/templates/%s", dir, name);
    return yyjson_read_file(path, 0, NULL, NULL);
}

static char *read_text(const char *dir, const char *name, size_t *len) {
    char path[512];
    CLEANUP(freep) char *text = calloc(1, 1 << 18);

    snprintf(path, sizeof(path), "%s/templates/%s", dir, name);
    FILE *f = fopen(path, "rb");

    cr_assert(f && text, "%s cannot be read", path);
    *len = fread(text, 1, 1 << 18, f);
    fclose(f);
    return STEAL(text);
}

/* bos_token and its like: "default", then the first entry whose key is part of the file's name. */
static void add_tokens(yyjson_mut_doc *doc, yyjson_mut_val *vars, yyjson_val *table,
                       const char *name) {
    yyjson_val *chosen = NULL, *key, *val;
    size_t i, n;

    yyjson_obj_foreach(table, i, n, key, val) {
        if (!chosen && strcmp(yyjson_get_str(key), "default") != 0 &&
            strstr(name, yyjson_get_str(key)))
            chosen = val;
    }
    yyjson_val *both[] = {chosen, yyjson_obj_get(table, "default")};

    for (int k = 0; k < 2; k++) {
        yyjson_obj_foreach(both[k], i, n, key, val) {
            if (!yyjson_mut_obj_get(vars, yyjson_get_str(key)))
                yyjson_mut_obj_add_strcpy(doc, vars, yyjson_get_str(key), yyjson_get_str(val));
        }
    }
}

static yyjson_doc *make_vars(yyjson_val *table, yyjson_val *c, const char *name) {
    static const char *const members[] = {"messages", "tools", "add_generation_prompt"};
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *vars = yyjson_mut_obj(doc);
    yyjson_val *key, *val;
    size_t i, n;

    yyjson_mut_doc_set_root(doc, vars);
    add_tokens(doc, vars, table, name);
    for (size_t k = 0; k < ARRAY_SIZE(members); k++) {
        if ((val = yyjson_obj_get(c, members[k])))
            yyjson_mut_obj_add_val(doc, vars, members[k], yyjson_val_mut_copy(doc, val));
    }
    yyjson_obj_foreach(yyjson_obj_get(c, "kwargs"), i, n, key, val)
        yyjson_mut_obj_add_val(doc, vars, yyjson_get_str(key), yyjson_val_mut_copy(doc, val));
    yyjson_doc *out = yyjson_mut_doc_imut_copy(doc, NULL);

    yyjson_mut_doc_free(doc);
    return out;
}

/* The marks are sorted, disjoint and inside the text. */
static void check_marks(const struct rendered *r, const char *name) {
    for (size_t i = 0; i < r->n_user; i++) {
        cr_expect_lt(r->user[i].begin, r->user[i].end, "%s", name);
        cr_expect_leq(r->user[i].end, r->text.len, "%s", name);
        cr_expect(!i || r->user[i - 1].end < r->user[i].begin, "%s", name);
    }
}

static bool check_case(const struct template *t, yyjson_val *vars, yyjson_val *want,
                       const char *name) {
    struct template_opts opts = {.now_unix = NOW};
    struct rendered out = {0};
    struct err err = {0};
    yyjson_val *relaxed = yyjson_obj_get(want, "relaxed");

    want = relaxed ? relaxed : want;
    const char *text = yyjson_get_str(yyjson_obj_get(want, "text"));
    const char *kind = yyjson_get_str(yyjson_obj_get(want, "kind"));
    int r = template_render(t, vars, &opts, &out, &err);
    bool ok;

    if (text) {
        ok = r == 0 && out.text.len == yyjson_get_len(yyjson_obj_get(want, "text")) &&
             memcmp(out.text.data, text, out.text.len) == 0;
        cr_expect(ok, "%s:\n<<%s>>\nwanted:\n<<%s>>", name, r ? err.message : out.text.data, text);
    } else {
        const char *message = yyjson_get_str(yyjson_obj_get(want, "error"));

        ok = r < 0 && err.status == 400 &&
             (strcmp(kind, "raised") != 0 || strcmp(err.message, message) == 0);
        cr_expect(ok, "%s: %s, wanted the error %s", name, r ? err.message : "text", message);
    }
    if (!r) {
        check_marks(&out, name);
        rendered_deinit(&out);
    }
    return ok;
}

static size_t check_template(const char *dir, const char *name, yyjson_val *conversations,
                             size_t *n_cases) {
    CLEANUP(template_freep) struct template *t = NULL;
    struct err err = {0};
    size_t len, good = 0, i, n;
    CLEANUP(freep) char *source = read_text(dir, name, &len);
    char expected[300], label[400];
    yyjson_val *key, *c;

    snprintf(expected, sizeof(expected), "expected/%.*s.json", (int)(strlen(name) - 6), name);
    yyjson_doc *want = read_json(dir, expected);

    cr_assert(want, "%s is missing", expected);
    if (template_new(&t, source, len, &err)) {
        cr_expect(false, "%s: %s", name, err.message);
        yyjson_doc_free(want);
        return 0;
    }
    yyjson_obj_foreach(yyjson_obj_get(conversations, "cases"), i, n, key, c) {
        yyjson_doc *vars = make_vars(yyjson_obj_get(conversations, "special_tokens"), c, name);
        const char *case_name = yyjson_get_str(key);

        snprintf(label, sizeof(label), "%s, %s", name, case_name ? case_name : "");
        good += check_case(t, yyjson_doc_get_root(vars),
                           yyjson_obj_get(yyjson_doc_get_root(want), yyjson_get_str(key)), label);
        ++*n_cases;
        yyjson_doc_free(vars);
    }
    yyjson_doc_free(want);
    return good;
}

Test(template_expected, equals_the_reference_byte_for_byte) {
    const char *dir = test_data();
    char path[TEST_DATA_PATH];
    yyjson_doc *conversations = read_json(dir, "conversations.json");
    size_t good = 0, n_cases = 0, n_templates = 0;
    DIR *d = opendir(test_data_file(path, "templates", "", ""));

    cr_assert(conversations && d, "%s has no conversations.json", path);
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);

        if (n > 6 && strcmp(e->d_name + n - 6, ".jinja") == 0) {
            good += check_template(dir, e->d_name, yyjson_doc_get_root(conversations), &n_cases);
            n_templates++;
        }
    }
    closedir(d);
    yyjson_doc_free(conversations);
    cr_expect_eq(n_templates, 60);
    cr_expect_eq(good, n_cases, "%zu of %zu", good, n_cases);
    cr_log_info("%zu of %zu renderings", good, n_cases);
}
