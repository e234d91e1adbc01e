#include "tests/engine/golden.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

/* Returns an element of the file that is being read; fails if it is missing. */
static void *must(void *part) {
    cr_assert(part != NULL, "a file of golden values is missing or lacks a part");
    return part;
}

static void read_spot(yyjson_val *v, struct golden_spot *out) {
    yyjson_val *ids = yyjson_obj_get(v, "ids"), *values = yyjson_obj_get(v, "values");

    out->pos = (uint32_t)yyjson_get_uint(yyjson_obj_get(v, "position"));
    out->n = (uint32_t)MIN(yyjson_arr_size(ids), (size_t)GOLDEN_BEST);
    for (uint32_t i = 0; i < out->n; i++) {
        out->id[i] = (int32_t)yyjson_get_int(yyjson_arr_get(ids, i));
        out->value[i] = (float)yyjson_get_num(yyjson_arr_get(values, i));
    }
}

static void read_step(yyjson_val *v, struct golden_step *out) {
    *out = (struct golden_step){
        .id = (int32_t)yyjson_get_int(must(yyjson_obj_get(v, "id"))),
        .second = (int32_t)yyjson_get_int(must(yyjson_obj_get(v, "second"))),
        .logit = (float)yyjson_get_num(must(yyjson_obj_get(v, "logit"))),
        .margin = (float)yyjson_get_num(must(yyjson_obj_get(v, "margin"))),
    };
}

static void read_draft(yyjson_val *v, struct golden_draft *out) {
    yyjson_val *exact = yyjson_obj_get(v, "f64_logits"); /* GELU without a table */
    yyjson_val *logits = exact ? exact : must(yyjson_obj_get(v, "logits"));

    out->id = (int32_t)yyjson_get_int(must(yyjson_obj_get(v, "id")));
    out->n = (uint32_t)yyjson_arr_size(logits);
    out->logits = must(calloc(out->n + 1, sizeof(*out->logits)));
    for (uint32_t i = 0; i < out->n; i++)
        out->logits[i] = (float)yyjson_get_num(yyjson_arr_get(logits, i));
}

static void read_case(yyjson_val *v, struct golden_case *out) {
    yyjson_val *prompt = yyjson_obj_get(v, "prompt"), *last = yyjson_obj_get(v, "last_logits");
    yyjson_val *spots = yyjson_obj_get(v, "intermediate"), *greedy = yyjson_obj_get(v, "greedy");

    if (yyjson_obj_get(v, "f64_last_logits")) {
        last = yyjson_obj_get(v, "f64_last_logits");
        out->from_table = true;
    }
    prompt = must(prompt ? prompt : yyjson_obj_get(v, "prompt_ids"));
    out->n_prompt = (uint32_t)yyjson_arr_size(prompt);
    out->prompt = must(calloc(out->n_prompt, sizeof(*out->prompt)));
    for (uint32_t i = 0; i < out->n_prompt; i++)
        out->prompt[i] = (int32_t)yyjson_get_int(yyjson_arr_get(prompt, i));
    out->n_last = (uint32_t)yyjson_arr_size(last);
    out->last = must(calloc(out->n_last + 1, sizeof(*out->last)));
    for (uint32_t i = 0; i < out->n_last; i++)
        out->last[i] = (float)yyjson_get_num(yyjson_arr_get(last, i));
    out->n_spots = (uint32_t)MIN(yyjson_arr_size(spots), (size_t)GOLDEN_SPOTS);
    for (uint32_t i = 0; i < out->n_spots; i++)
        read_spot(yyjson_arr_get(spots, i), &out->spot[i]);
    out->n_greedy = (uint32_t)MIN(yyjson_arr_size(greedy), (size_t)GOLDEN_STEPS);
    yyjson_val *assistant = yyjson_obj_get(v, "assistant"), *mtp = yyjson_obj_get(v, "mtp");
    cr_assert(out->n_prompt > 0 && (out->n_greedy > 0 || assistant), "a case without values");
    if (assistant)
        out->greedy[0].id =
            (int32_t)yyjson_get_int(yyjson_arr_get_first(yyjson_obj_get(assistant, "input")));
    for (uint32_t i = 0; i < out->n_greedy; i++)
        read_step(yyjson_arr_get(greedy, i), &out->greedy[i]);
    yyjson_val *drafts = yyjson_obj_get(assistant ? assistant : mtp, "drafts");
    out->n_drafts = (uint32_t)MIN(yyjson_arr_size(drafts), (size_t)GOLDEN_DRAFTS);
    for (uint32_t i = 0; i < out->n_drafts; i++)
        read_draft(yyjson_arr_get(drafts, i), &out->draft[i]);
}

static void read_name(yyjson_val *root, const char *key, char out[32]) {
    const char *s = yyjson_get_str(yyjson_obj_get(root, key));

    snprintf(out, 32, "%s", s ? s : "");
}

static struct golden_label read_label(yyjson_val *root) {
    struct golden_label label;

    read_name(root, "arch", label.arch);
    read_name(root, "type", label.type);
    return label;
}

static yyjson_doc *open_values(const char *path) {
    yyjson_doc *doc = yyjson_read_file(path, 0, NULL, NULL);

    cr_assert(doc != NULL, "%s is missing or is no JSON", path);
    return doc;
}

struct golden_label golden_label(const char *path) {
    yyjson_doc *doc = open_values(path);
    struct golden_label label = read_label(yyjson_doc_get_root(doc));

    yyjson_doc_free(doc);
    return label;
}

struct golden *golden_load(const char *path) {
    yyjson_doc *doc = open_values(path);
    yyjson_val *root = yyjson_doc_get_root(doc);
    yyjson_val *cases = must(yyjson_obj_get(root, "cases"));
    struct golden *g = must(calloc(1, sizeof(*g)));

    g->label = read_label(root);
    g->n_cases = (uint32_t)MIN(yyjson_arr_size(cases), (size_t)GOLDEN_CASES);
    for (uint32_t i = 0; i < g->n_cases; i++)
        read_case(yyjson_arr_get(cases, i), &g->cases[i]);
    yyjson_doc_free(doc);
    return g;
}

struct golden *golden_free(struct golden *g) {
    for (uint32_t i = 0; g && i < g->n_cases; i++) {
        free(g->cases[i].prompt);
        free(g->cases[i].last);
        for (uint32_t k = 0; k < g->cases[i].n_drafts; k++)
            free(g->cases[i].draft[k].logits);
    }
    free(g);
    return NULL;
}
