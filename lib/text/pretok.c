/*
 * The table of pre-tokenizers, and the cursor that runs their stages. tests/text/test_pretok.c
 * compares every row with PCRE2.
 */

#include "text/pretok.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "base/try.h"
#include "base/util.h"

#define LETTERS_3 .letter = UC_LETTER, .digits = 3
#define LETTERS_1 .letter = UC_LETTER, .digits = 1

/* A row for each set of rules, with the names under which llama.cpp has them. */
static const struct pretok table[] = {
    {.names = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat",
               "a.x-4.0", "mellum", "exaone4", "modern-bert", "jina-es", "jina-de", "jina-v2-es",
               "jina-v2-de", "jina-v1-en", "jina-v2-code"},
     .stage = {pretok_gpt2}},
    {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
               "mellum2"},
     .stage = {pretok_numbers, pretok_gpt2},
     .digits = 1},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
               "lfm2"},
     .stage = {pretok_modern},
     LETTERS_3,
     .whole_words = true,
     .add_bos = true},
    {.names = {"glm4", "chatglm-bpe", "dbrx", "smaug-bpe"}, .stage = {pretok_modern}, LETTERS_3},
    {.names = {"minicpm5"},
     .stage = {pretok_numbers, pretok_modern},
     LETTERS_3,
     .whole_words = true},
    {.names = {"qwen2", "deepseek-r1-qwen", "kormo", "megrez"},
     .stage = {pretok_modern},
     LETTERS_1,
     .nfc = true},
    {.names = {"qwen35"},
     .stage = {pretok_modern},
     .letter = UC_LETTER | UC_MARK,
     .digits = 1,
     .nfc = true},
    {.names = {"stablelm2", "hunyuan", "solar-open", "grok-2", "bailingmoe", "bailingmoe2",
               "llada-moe"},
     .stage = {pretok_modern},
     LETTERS_1},
    {.names = {"laguna"}, .stage = {pretok_lines, pretok_modern}, LETTERS_1},
    {.names = {"seed-coder"}, .stage = {pretok_modern}, LETTERS_1, .no_tail = true},
    {.names = {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
     .stage = {pretok_cased},
     .digits = 3,
     .suffix = true},
    {.names = {"tekken"},
     .stage = {pretok_cased},
     .digits = 1,
     .whole_words = true,
     .add_bos = true},
    {.names = {"kimi-k2"}, .stage = {pretok_cased}, .digits = 3, .suffix = true, .han = true},
    {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
     .stage = {pretok_numbers, pretok_deepseek_cjk, pretok_deepseek},
     .digits = 3},
    {.names = {"afmoe"},
     .stage = {pretok_number_runs, pretok_number_heads, pretok_numbers, pretok_afmoe_scripts,
               pretok_deepseek},
     .digits = 3},
    {.names = {"tiny_aya", "cohere2moe"},
     .stage = {pretok_lone_digits, pretok_digit_heads, pretok_digit_threes, pretok_cased},
     .digits = 3,
     .suffix = true},
    {.names = {"exaone-moe"}, .stage = {pretok_phrases}},
    {.names = {"deepseek-llm"},
     .stage = {pretok_breaks, pretok_llm_letters, pretok_llm_punct, pretok_llm_end, pretok_llm_cjk,
               pretok_numbers},
     .digits = UINT32_MAX},
    {.names = {"deepseek-coder"},
     .stage = {pretok_breaks, pretok_coder_letters, pretok_coder_punct, pretok_llm_cjk,
               pretok_numbers},
     .digits = 1},
};

const struct pretok *pretok_find(struct gguf_str name) {
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        for (size_t k = 0; k < PRETOK_NAMES && table[i].names[k]; k++) {
            const char *known = table[i].names[k];

            if (strlen(known) == name.len && memcmp(known, name.data, name.len) == 0)
                return &table[i];
        }
    }
    return NULL;
}

const struct pretok *pretok_like(const struct pretok *rules) {
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        const struct pretok *p = &table[i];

        if (memcmp(p->stage, rules->stage, sizeof(p->stage)) == 0 && p->letter == rules->letter &&
            p->digits == rules->digits && p->no_tail == rules->no_tail &&
            p->suffix == rules->suffix && p->han == rules->han)
            return p;
    }
    return NULL;
}

const char *const pretok_rules[PRETOK_RULES] = {
    [PRETOK_KEEP_ALL] = "none",
    [PRETOK_DROP_GAPS] = "gaps",
    [PRETOK_DROP_MATCHES] = "matches",
    [PRETOK_JOIN_MATCHES] = "join matches",
    [PRETOK_JOIN_GAP_MATCH] = "join gap, match",
    [PRETOK_JOIN_MATCH_GAP] = "join match, gap",
};

int pretok_rule_of(struct gguf_str s) {
    for (int i = 0; i < PRETOK_RULES; i++)
        if (strlen(pretok_rules[i]) == s.len && memcmp(pretok_rules[i], s.data, s.len) == 0)
            return i;
    return -EINVAL;
}

void pretok_list(char *out, size_t size) {
    struct buf b = {.max = size - 1};

    assert(size > 0);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        buf_printf(&b, "%s%s", i ? ", " : "", table[i].names[0]);
    memcpy(out, text_or(b.data, ""), b.len + 1);
    buf_deinit(&b);
}

void pretok_begin(struct pretok_cursor *c, const struct pretok *p, const char *s, size_t len) {
    assert(p->stage[0] || p->cutter[0]);
    *c = (struct pretok_cursor){.p = p, .s = s, .len = len};
}

void pretok_end(struct pretok_cursor *c) {
    for (unsigned k = 0; k < PRETOK_STAGES; k++)
        cutter_deinit(&c->search[k]);
}

/* Returns whether @next, which follows @piece, belongs to it. */
static bool pretok_joins(enum pretok_rule rule, struct pretok_piece piece,
                         struct pretok_piece next) {
    if (rule == PRETOK_JOIN_MATCHES)
        return piece.match && next.match;
    if (rule == PRETOK_JOIN_GAP_MATCH)
        return !piece.match && next.match;
    return rule == PRETOK_JOIN_MATCH_GAP && piece.match && !next.match;
}

/* Gets the next match or gap of stage @k, first the one that is held. Returns 1, 0 at the end of
 * its text, or -errno. */
static int pretok_next_held(struct pretok_cursor *c, unsigned k, struct pretok_piece *out) {
    if (c->held[k].n == 0)
        return cutter_next(&c->search[k], &out->n, &out->match);
    *out = c->held[k];
    c->held[k].n = 0;
    return 1;
}

/* Cuts the next piece of stage @k, which has a cutter. Returns 0 or -errno. */
static int pretok_cut_joined(struct pretok_cursor *c, unsigned k, size_t *n) {
    enum pretok_rule rule = c->p->rule[k];
    struct pretok_piece piece = {0}, next = {0};
    int found = pretok_next_held(c, k, &piece);

    assert(found != 0);
    c->dropped[k] = rule == (piece.match ? PRETOK_DROP_MATCHES : PRETOK_DROP_GAPS);
    *n = piece.n;
    while (found > 0 && rule >= PRETOK_JOIN_MATCHES) {
        found = pretok_next_held(c, k, &next);
        if (found <= 0)
            break;
        if (!pretok_joins(rule, piece, next)) {
            c->held[k] = next;
            break;
        }
        *n += next.n;
        piece = next;
    }
    return MIN(found, 0);
}

/* Cuts the next piece of stage @k off the piece [begin, end) of the stage before, or what is left
 * of it. Returns 0 or -errno. */
static int pretok_cut_by(struct pretok_cursor *c, unsigned k, size_t begin, size_t end, size_t *n) {
    struct cutter_search *f = &c->search[k];

    if (!c->p->cutter[k]) {
        *n = c->p->stage[k](c->p, c->s + begin, end - begin);
        return 0;
    }
    if (f->at == f->len && c->held[k].n == 0)
        cutter_begin(f, c->p->cutter[k], c->s + begin, end - begin);
    return pretok_cut_joined(c, k, n);
}

/* Finds the next piece of all stages, a word unless it is dropped. Returns 0 or -errno. */
static int pretok_next_piece(struct pretok_cursor *c, bool *dropped) {
    size_t begin = c->at, end = c->len;

    *dropped = false;
    for (unsigned k = 0; k < PRETOK_STAGES && (c->p->stage[k] || c->p->cutter[k]); k++) {
        assert(c->end[k] >= begin && c->end[k] <= end);
        if (c->end[k] == begin) {
            size_t n = 0;

            TRY(pretok_cut_by(c, k, begin, end, &n));
            assert(n > 0 && n <= end - begin); /* an empty piece would never end the loop */
            c->end[k] = begin + n;
        }
        end = c->end[k];
        *dropped |= c->dropped[k];
    }
    c->at = end;
    return 0;
}

int pretok_next(struct pretok_cursor *c, const char **word, size_t *n) {
    while (c->at < c->len) {
        size_t begin = c->at;
        bool dropped;

        TRY(pretok_next_piece(c, &dropped));
        if (dropped)
            continue;
        *word = c->s + begin;
        *n = c->at - begin;
        return 1;
    }
    return 0;
}
