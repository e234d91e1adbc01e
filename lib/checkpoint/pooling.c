/*
 * pooling - how the rows of a text become its vector, as Sentence Transformers say it beside a
 * model: 1_Pooling/config.json has a key for each way, of which one is true; 2_Dense and 3_Dense
 * have a matrix each, by which the vector is multiplied then.
 */

#include <errno.h>
#include <stdio.h>

#include "base/printable.h"
#include "base/try.h"
#include "checkpoint/reader.h"

#define POOLING_FILE "1_Pooling/config.json"
#define SMALL_MAX (1u << 20) /* most bytes of a config.json here */

/* Ways that the engine has, by the numbers of GGUF: in older files as keys, in newer ones as the
 * value of pooling_mode. */
static const struct {
    const char *key, *word;
    uint32_t number;
} ways[] = {
    {"pooling_mode_mean_tokens", "mean", 1},
    {"pooling_mode_cls_token", "cls", 2},
    {"pooling_mode_lasttoken", "lasttoken", 3},
};

static int pooling_refuse(const struct reader *r, const char *what) {
    return err_set(r->err, 0, NULL, POOLING_FILE ": %s is not supported", quoted(what).s);
}

/* Finds the number of the way that is called @word, or whose key is @key. */
static int pooling_find(const struct reader *r, const char *key, const char *word, uint32_t *out) {
    const char *said = word ? word : key;

    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        const char *name = word ? ways[i].word : ways[i].key;

        if (strcmp(name, said) != 0)
            continue;
        if (*out != 0)
            return err_set(r->err, 0, NULL,
                           POOLING_FILE ": several ways of pooling together are not supported");
        *out = ways[i].number;
        return 0;
    }
    return pooling_refuse(r, said);
}

int reader_write_pooling(struct reader *r) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    uint32_t number = 0;
    char key[96];

    TRY(reader_json(r, POOLING_FILE, SMALL_MAX, &doc));
    JSON_MEMBERS(name, v, yyjson_doc_get_root(doc)) {
        const char *s = json_cstr(name), *word = json_cstr(v);

        if (!s || strncmp(s, "pooling_mode", 12) != 0)
            continue;
        if (word && strcmp(s, "pooling_mode") == 0)
            TRY(pooling_find(r, s, word, &number));
        else if (yyjson_get_bool(v))
            TRY(pooling_find(r, s, NULL, &number));
    }
    if (doc && number == 0)
        return err_set(r->err, 0, NULL, POOLING_FILE ": no pooling_mode is true");
    if (!doc)
        return 0;
    snprintf(key, sizeof(key), "%s.pooling_type", r->row->arch);
    return gguf_keys_u32(&r->build.keys, key, number);
}

/* Refuses what a matrix behind the pooling may have and the engine has not. */
static int pooling_check_dense(const struct reader *r, const char *name, yyjson_val *config) {
    yyjson_val *act = json_given(config, "activation_function");

    if (yyjson_get_bool(yyjson_obj_get(config, "bias")))
        return err_set(r->err, 0, NULL, "%s: bias is not supported", name);
    if (act && !json_is(act, "torch.nn.modules.linear.Identity"))
        return err_set(r->err, 0, NULL, "%s: activation_function %s is not supported", name,
                       quoted(json_cstr(act) ? json_cstr(act) : "").s);
    return 0;
}

/* Adds the matrix of the weight file @name as tensor @to. */
static int pooling_add_matrix(struct reader *r, const char *name, const char *to) {
    CLEANUP(st_list_deinit) struct st_list list = {0};
    struct gguf_built b = {.n_dims = 2};
    uint32_t file;

    st_list_init(&list);
    TRY(reader_open_file(r, name, &list, &file));
    const struct st_tensor *t = st_find(&list, "linear.weight");
    if (!t || list.n != 1 || t->n_dims != 2 || t->dim[0] == 0 || t->dim[1] == 0)
        return err_set(r->err, 0, NULL, "%s: one matrix 'linear.weight' is supported", name);
    TRY(reader_type(r, t, &b.type));
    const struct gguf_piece piece = {file, t->offset};
    snprintf(b.name, sizeof(b.name), "%s", to);
    b.ne[0] = t->dim[1];
    b.ne[1] = b.piece_rows = t->dim[0];
    b.ne[2] = b.ne[3] = 1;
    return gguf_build_scattered(&r->build, &b, &piece, 1);
}

int reader_write_dense(struct reader *r) {
    for (unsigned k = 2; k <= 3; k++) {
        CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
        char name[32], weights[32], to[32];

        snprintf(name, sizeof(name), "%u_Dense/config.json", k);
        snprintf(weights, sizeof(weights), "%u_Dense/model.safetensors", k);
        snprintf(to, sizeof(to), "dense_%u.weight", k);
        TRY(reader_json(r, name, SMALL_MAX, &doc));
        if (!doc)
            continue;
        TRY(pooling_check_dense(r, name, yyjson_doc_get_root(doc)));
        TRY(pooling_add_matrix(r, weights, to));
    }
    return 0;
}
