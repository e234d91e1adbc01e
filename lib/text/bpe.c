/* bpe - reads the pairs of a BPE vocabulary: the file has a list of merges, the most urgent first.
 * */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "text/tokenizer_private.h"

/* Finds the rules that the file names. They are also those of the whole tokenizer, unless the file
 * has a normaliser of its own. */
static int load_pretok(struct tokenizer *t, const struct gguf *g, struct err *err) {
    static const char key[] = "tokenizer.ggml.pre";
    struct gguf_str name;
    char known[256];
    int r = gguf_string(g, key, &name);

    pretok_list(known, sizeof(known));
    if (r < 0)
        return err_set(err, 0, NULL, "%s is %s; known are: %s", key,
                       r == -ENOENT ? "missing" : "not a string", known);
    t->pretok = pretok_find(name);
    if (!t->pretok) {
        char shown[48];
        size_t n = MIN(name.len, sizeof(shown) - 1);

        for (size_t i = 0; i < n; i++)
            shown[i] = name.data[i] >= ' ' && name.data[i] <= '~' ? name.data[i] : '?';
        shown[n] = 0;
        return err_set(err, 0, NULL, "pre-tokenizer \"%s\" is not supported; known are: %s", shown,
                       known);
    }
    if (!t->published) {
        t->whole_words = t->pretok->whole_words;
        t->nfc = t->pretok->nfc;
    }
    return 0;
}

/* Finds the tokens of single bytes. */
static void bpe_find_bytes(struct tokenizer *t) {
    char c[4];

    for (unsigned b = 0; b < 256; b++) {
        uint32_t id = vocab_find(&t->vocab, c, unicode_encode(byte_to_char((uint8_t)b), c));

        t->byte_token[b] = id != TOKEN_NONE && vocab_is_mergeable(&t->vocab, id) ? id : TOKEN_NONE;
    }
}

/* Adds the merge "left right"; the separating space is the first one after the first byte.
 * Vocabularies that were pruned keep merges of tokens that they lack; these are counted and
 * skipped. */
static int add_merge(struct tokenizer *t, struct gguf_str s, uint32_t rank, struct err *err) {
    const struct vocab *v = &t->vocab;
    const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
    char text[TOKEN_TEXT_MAX];

    if (!space)
        return err_set(err, 0, NULL, "tokenizer.ggml.merges[%u] has no space between its two parts",
                       rank);
    size_t n = (size_t)(space - s.data), m = s.len - n - 1;

    if (n + m > sizeof(text)) {
        t->n_skipped_merges++;
        return 0;
    }
    memcpy(text, s.data, n);
    memcpy(text + n, space + 1, m);
    uint32_t left = vocab_find(v, text, n);
    uint32_t right = vocab_find(v, text + n, m);
    uint32_t made = vocab_find(v, text, n + m);

    if (left == TOKEN_NONE || right == TOKEN_NONE || made == TOKEN_NONE)
        t->n_skipped_merges++;
    else if (vocab_is_mergeable(v, left) && vocab_is_mergeable(v, right) &&
             vocab_is_mergeable(v, made))
        pairs_add(&t->pairs, left, right, rank, made);
    return 0;
}

/* Compiles the cuts that the file has itself. */
static int bpe_load_cuts(struct tokenizer *t, const struct gguf *g, struct err *err) {
    const struct gguf_array *a = gguf_array(g, HF_KEY_CUTS);
    uint64_t n = a && gguf_array_type(a) == GGUF_STRING ? gguf_array_n(a) / 2 : 0;
    struct err why = {0};

    if (n == 0 || n > PRETOK_STAGES || gguf_array_n(a) % 2)
        return err_set(err, 0, NULL, "%s is no list of 1 to %d cuts", HF_KEY_CUTS, PRETOK_STAGES);
    for (unsigned k = 0; k < n; k++) {
        struct cutter *cutter = NULL;
        int rule = pretok_rule_of(gguf_array_str(a, 2 * k));

        if (rule < 0)
            return err_set(err, 0, NULL, "%s[%u] is no kind of cut", HF_KEY_CUTS, 2 * k);
        int r = cutter_new(&cutter, gguf_array_str(a, 2 * k + 1), &why);
        if (r == -EINVAL)
            return err_set(err, 0, NULL, "%s[%u]: %.200s", HF_KEY_CUTS, 2 * k + 1, why.message);
        TRY(r);
        t->own_cuts.rule[k] = (uint8_t)rule;
        t->own_cuts.cutter[k] = cutter;
    }
    t->pretok = &t->own_cuts;
    return 0;
}

int bpe_load(struct tokenizer *t, const struct gguf *g, struct err *err) {
    static const char key[] = "tokenizer.ggml.merges";
    const struct gguf_array *merges = gguf_array(g, key);

    if (t->published && gguf_has(g, HF_KEY_CUTS))
        TRY(bpe_load_cuts(t, g, err));
    else if (t->kind == KIND_BYTES || (t->published && gguf_has(g, "tokenizer.ggml.pre")))
        TRY(load_pretok(t, g, err));
    if (!merges || gguf_array_type(merges) != GGUF_STRING)
        return err_set(err, 0, NULL, "%s is %s", key,
                       gguf_has(g, key) ? "not an array of strings" : "missing");
    assert(gguf_array_n(merges) < RANK_NONE); /* the header, of at most 32 MiB, bounds the number */
    TRY(special_ids_load(&t->special, &t->vocab, g, t->pretok && t->pretok->add_bos, err));
    TRY(pairs_init(&t->pairs, t->vocab.key, gguf_array_n(merges)));
    for (uint64_t i = 0; i < gguf_array_n(merges); i++)
        TRY(add_merge(t, gguf_array_str(merges, i), (uint32_t)i, err));
    if (t->kind == KIND_BYTES)
        bpe_find_bytes(t);
    return 0;
}
