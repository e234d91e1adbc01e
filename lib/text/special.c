/*
 * special - reads special tokens: the ids that the file names, the set of tokens that end a
 * generation, and the markers that are searched in raw text.
 *
 * Files name only one end of sequence, while models also end their turns with other tokens.
 * Therefore, as in other servers, every token with the text of a known end counts as an end.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/tokenizer_private.h"

static const char *const end_texts[] = {
    "<|eot_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<eos>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

static const char *const end_keys[] = {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"};

/* most duplicates of ends */
#define END_DUPLICATES_MAX 64

/* most ends: one id for each text, one for each key, their duplicates, and one that is set later */
#define END_IDS_MAX                                                                                \
    (ARRAY_SIZE(end_texts) + ARRAY_SIZE(end_keys) + END_DUPLICATES_MAX + HF_ENDS_MAX + 1)

/* Sets *@out to the id at tokenizer.ggml.NAME_token_id, or to -1 when the key is absent. */
static int special_read_id(const struct gguf *g, const char *name, uint32_t n_vocab, int32_t *out,
                           struct err *err) {
    char key[64];
    uint32_t id;
    int r;

    snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", name);
    r = gguf_u32(g, key, &id);
    *out = -1;
    if (r == -ENOENT)
        return 0;
    if (r < 0 || id >= n_vocab)
        return err_set(err, 0, NULL, "%s is not a token id below %u", key, n_vocab);
    *out = (int32_t)id;
    return 0;
}

int special_read_flag(const struct gguf *g, const char *key, bool *value, struct err *err) {
    int r = gguf_bool(g, key, value);

    if (r != 0 && r != -ENOENT)
        return err_set(err, 0, NULL, "%s is not a bool", key);
    return 0;
}

static bool special_is_end(const struct special_ids *s, int32_t id) {
    for (size_t i = 0; i < s->n_end; i++) {
        if (s->end[i] == id)
            return true;
    }
    return false;
}

static void special_add_end(struct special_ids *s, int32_t id) {
    if (id < 0 || special_is_end(s, id))
        return;
    assert(s->n_end < END_IDS_MAX);
    s->end[s->n_end++] = id;
}

void special_ids_set_eos(struct special_ids *s, int32_t id) {
    s->eos = id;
    special_add_end(s, id);
}

static uint32_t special_find_text(const struct vocab *v, const char *text) {
    return vocab_find(v, text, strlen(text));
}

static bool special_has(const struct vocab *v, const char *text) {
    return special_find_text(v, text) != TOKEN_NONE;
}

/* Returns whether @text ends a message and not the turn, as <|end|> does for gpt-oss and Solar, and
 * <|im_end|> for HyperCLOVA X. */
static bool ends_message_only(const struct vocab *v, const char *text) {
    if (strcmp(text, "<|im_end|>") == 0)
        return special_has(v, "<|endofturn|>") && special_has(v, "<|stop|>");
    return strcmp(text, "<|end|>") == 0 &&
           ((special_has(v, "<|return|>") && special_has(v, "<|call|>")) ||
            (special_has(v, "<|flush|>") &&
             (special_has(v, "<|call|>") || special_has(v, "<|calls|>"))));
}

/* Returns whether @id is <|eom|> of Muse Glimmer, whose turns consist of messages that end with it.
 * The file may call it an end of sequence. */
static bool is_end_of_message(const struct vocab *v, int32_t id) {
    return id >= 0 && (uint32_t)id == special_find_text(v, "<|eom|>") &&
           special_has(v, "<|start|>");
}

/* Adds the token with the text of an end, and makes it a control token: some files declare it as
 * ordinary text (Qwen's "</s>", which the pre-tokenizer keeps merging from making). Gemma 4's </s>
 * is left out, since it is a tag of HTML. */
static void add_end_text(struct special_ids *s, struct vocab *v, const char *text) {
    uint32_t id = special_find_text(v, text);

    if (id == TOKEN_NONE || v->type[id] == TOKEN_BYTE ||
        (s->published && vocab_is_mergeable(v, id)) ||
        (strcmp(text, "</s>") == 0 && special_has(v, "<|tool_response>")))
        return;
    v->type[id] = TOKEN_CONTROL;
    if (!ends_message_only(v, text))
        special_add_end(s, (int32_t)id);
}

static uint32_t special_find_same(const struct vocab *v, uint32_t id) {
    uint32_t len;
    const char *text = vocab_text(v, id, &len);

    return vocab_find(v, text, len);
}

/* Adds the duplicates of the ends: the model may sample any of them. */
static int add_end_duplicates(struct special_ids *s, struct vocab *v, struct err *err) {
    uint32_t found[END_IDS_MAX];
    size_t n = s->n_end;

    if (v->n_duplicates == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        found[i] = special_find_same(v, (uint32_t)s->end[i]);
    for (uint32_t id = 0; id < v->n; id++) {
        uint32_t same = special_find_same(v, id);
        size_t i = 0;

        while (i < n && (found[i] != same || same == TOKEN_NONE))
            i++;
        if (i == n || special_is_end(s, (int32_t)id))
            continue;
        if (s->n_end == n + END_DUPLICATES_MAX)
            return err_set(err, 0, NULL,
                           "tokenizer.ggml.tokens repeats texts that end a generation more than "
                           "%d times",
                           END_DUPLICATES_MAX);
        v->type[id] = v->type[s->end[i]];
        special_add_end(s, (int32_t)id);
    }
    return 0;
}

/* Reads the tokens of filling in under their keys, or else under those of older files. */
static int read_fim(struct special_ids *s, const struct gguf *g, uint32_t n_vocab,
                    struct err *err) {
    static const char *const keys[TOKENIZER_FIM_N][2] = {
        [TOKENIZER_FIM_PREFIX] = {"fim_pre", "prefix"},
        [TOKENIZER_FIM_SUFFIX] = {"fim_suf", "suffix"},
        [TOKENIZER_FIM_MIDDLE] = {"fim_mid", "middle"},
    };

    for (int i = 0; i < TOKENIZER_FIM_N; i++) {
        TRY(special_read_id(g, keys[i][0], n_vocab, &s->fim[i], err));
        if (s->fim[i] < 0)
            TRY(special_read_id(g, keys[i][1], n_vocab, &s->fim[i], err));
    }
    return 0;
}

/* Adds the ends that a published file lists. */
static int read_ends(struct special_ids *s, const struct gguf *g, uint32_t n_vocab,
                     struct err *err) {
    const struct gguf_array *a = gguf_array(g, HF_KEY_ENDS);
    uint32_t ids[HF_ENDS_MAX];
    uint64_t n = a ? gguf_array_n(a) : 0;

    if (n > HF_ENDS_MAX || gguf_array_read(a, GGUF_U32, 0, n, ids) != n)
        return err_set(err, 0, NULL, "%s is not an array of at most %d ids", HF_KEY_ENDS,
                       HF_ENDS_MAX);
    for (uint64_t i = 0; i < n; i++) {
        if (ids[i] >= n_vocab)
            return err_set(err, 0, NULL, "%s[%u] is not a token id below %u", HF_KEY_ENDS,
                           (unsigned)i, n_vocab);
        special_add_end(s, (int32_t)ids[i]);
    }
    return 0;
}

int special_ids_load(struct special_ids *s, struct vocab *v, const struct gguf *g, bool add_bos,
                     struct err *err) {
    int32_t id;

    *s = (struct special_ids){.add_bos = add_bos, .published = gguf_has(g, HF_KEY_STEPS)};
    s->end = reallocarray(NULL, END_IDS_MAX, sizeof(*s->end));
    if (!s->end)
        return -ENOMEM;
    TRY(special_read_id(g, "bos", v->n, &s->bos, err));
    TRY(special_read_id(g, "eos", v->n, &s->eos, err));
    TRY(special_read_id(g, "unknown", v->n, &s->unk, err));
    TRY(read_fim(s, g, v->n, err));
    TRY(special_read_flag(g, "tokenizer.ggml.add_bos_token", &s->add_bos, err));
    TRY(special_read_flag(g, "tokenizer.ggml.add_eos_token", &s->add_eos, err));
    for (size_t i = 0; i < ARRAY_SIZE(end_texts); i++)
        add_end_text(s, v, end_texts[i]);
    for (size_t i = 0; i < ARRAY_SIZE(end_keys); i++) {
        TRY(special_read_id(g, end_keys[i], v->n, &id, err));
        if (!is_end_of_message(v, id))
            special_add_end(s, id);
    }
    TRY(read_ends(s, g, v->n, err));
    return add_end_duplicates(s, v, err);
}

/* Sets *@id to the id that the file has at @key, or else to the token with the text @text. Does not
 * change it if there is neither. */
static int find_id(const struct gguf *g, const struct vocab *v, const char *key, const char *text,
                   int32_t *id, struct err *err) {
    int32_t given;

    TRY(special_read_id(g, key, v->n, &given, err));
    uint32_t found = given < 0 ? special_find_text(v, text) : (uint32_t)given;
    if (found != TOKEN_NONE)
        *id = (int32_t)found;
    if (*id < 0)
        return err_set(err, 0, NULL, "tokenizer.ggml.tokens has no %s", text);
    return 0;
}

int special_ids_load_bert(struct special_ids *s, struct vocab *v, const struct gguf *g,
                          struct err *err) {
    TRY(special_ids_load(s, v, g, true, err));
    s->add_eos = true;
    TRY(find_id(g, v, "cls", "[CLS]", &s->bos, err));
    TRY(find_id(g, v, "seperator", "[SEP]", &s->eos, err)); /* spelling of the key in the files */
    TRY(find_id(g, v, "unknown", "[UNK]", &s->unk, err));
    v->type[s->bos] = v->type[s->eos] = TOKEN_CONTROL;
    v->type[s->unk] = TOKEN_UNKNOWN;
    return 0;
}

bool vocab_is_marker(const struct vocab *v, uint32_t id) {
    return v->text_at[id + 1] > v->text_at[id] &&
           (v->type[id] == TOKEN_CONTROL || v->type[id] == TOKEN_USER ||
            v->type[id] == TOKEN_UNKNOWN);
}

/* Removes all but the last of the sorted markers that have one text. */
static void remove_duplicates(struct markers *m, const struct vocab *v) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t len, next_len = 0;
        const char *text = vocab_text(v, m->id[i], &len), *next = text;

        if (i + 1 < m->n)
            next = vocab_text(v, m->id[i + 1], &next_len);
        if (next_len != len || memcmp(text, next, len) != 0)
            m->id[n++] = m->id[i];
    }
    m->n = n;
}

/* Returns whether @id belongs to the markers without those of @flags that are normalized. */
static bool is_marker(const struct vocab *v, const uint8_t *flags, uint32_t id) {
    return vocab_is_marker(v, id) && !(flags && flags[id] & TOKEN_NORMALIZED);
}

int markers_init(struct markers *m, const struct vocab *v, const uint8_t *flags) {
    uint32_t n = 0;

    for (uint32_t id = 0; id < v->n; id++)
        n += is_marker(v, flags, id);
    m->id = reallocarray(NULL, n ? n : 1, sizeof(*m->id));
    if (!m->id)
        return -ENOMEM;
    for (uint32_t id = 0; id < v->n; id++) {
        if (is_marker(v, flags, id))
            m->id[m->n++] = id;
    }
    qsort_r(m->id, m->n, sizeof(*m->id), vocab_by_text, (void *)v);
    remove_duplicates(m, v);
    for (uint32_t i = 0; i < m->n; i++) {
        m->n_plain += vocab_is_plain(v, m->id[i]);
        m->first[(uint8_t)v->text.data[v->text_at[m->id[i]]] + 1]++;
    }
    for (unsigned b = 0; b < 256; b++)
        m->first[b + 1] += m->first[b];
    assert(m->first[256] == m->n && m->n_plain <= m->n);
    return 0;
}

/* Returns the first of the markers [lo, hi) whose next byte is at least @b; their texts agree in
 * @depth bytes and are longer. */
static uint32_t special_lower(const struct markers *m, const struct vocab *v, uint32_t lo,
                              uint32_t hi, size_t depth, unsigned b) {
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if ((uint8_t)v->text.data[v->text_at[m->id[mid]] + depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

size_t markers_match(const struct markers *m, const struct vocab *v, const char *text, size_t len,
                     size_t trusted, uint32_t *id) {
    assert(len > 0);
    uint32_t lo = m->first[(uint8_t)text[0]], hi = m->first[(uint8_t)text[0] + 1];
    size_t depth = 1, best = 0;

    while (lo < hi) {
        uint32_t first = m->id[lo];
        unsigned b;

        if (v->text_at[first + 1] - v->text_at[first] == depth) {
            if (depth <= trusted || vocab_is_plain(v, first)) {
                best = depth;
                *id = first;
            }
            lo++;
        }
        if (depth == len)
            break;
        b = (uint8_t)text[depth];
        lo = special_lower(m, v, lo, hi, depth, b);
        hi = special_lower(m, v, lo, hi, depth, b + 1);
        depth++;
    }
    return best;
}
