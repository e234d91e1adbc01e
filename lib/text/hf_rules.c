/*
 * hf_rules - reads how tokenizer.json prepares text: the normalizer, the pre-tokenizer and the
 * decoder. Changes of text become steps (steps.h), in the order of the file. Cuts become stages of
 * pretok.h: expressions of published files are known by their exact text and have scanners; all
 * others are compiled (cutter.h).
 */

#include <endian.h>
#include <errno.h>

#include "base/text.h"
#include "base/try.h"
#include "text/hf_tokenizer_private.h"
#include "text/steps.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MODERN(digits)                                                                             \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                                    \
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES
#define CL100K(digits)                                                                             \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(suffix, digits)                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix "|\\p{N}" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES

/* Punctuation by char::is_ascii_punctuation() of Rust or by its category. */
#define PUNCTUATION "[\\p{P}$+<=>^`|~]"

/* Regular expressions of published files. total: they match all of every text. */
static const struct hf_regex {
    const char *text;
    struct pretok rules;
    bool total;
} regexes[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     {.stage = {pretok_gpt2}},
     true},
    {MODERN("{1,3}"), {.stage = {pretok_modern}, .letter = UC_LETTER, .digits = 3}, true},
    {MODERN(""), {.stage = {pretok_modern}, .letter = UC_LETTER, .digits = 1}, true},
    {CL100K("{1,3}"), {.stage = {pretok_modern}, .letter = UC_LETTER, .digits = 3}, true},
    {CL100K(""), {.stage = {pretok_modern}, .letter = UC_LETTER, .digits = 1}, true},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                  "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES,
     {.stage = {pretok_modern}, .letter = UC_LETTER | UC_MARK, .digits = 1},
     true},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACES,
     {.stage = {pretok_modern}, .letter = UC_LETTER, .digits = 1, .no_tail = true},
     true},
    {CASED(CONTRACTIONS "?", "{1,3}"),
     {.stage = {pretok_cased}, .digits = 3, .suffix = true},
     true},
    {CASED("", ""), {.stage = {pretok_cased}, .digits = 1}, true},
    {"[^\\n]+|[\\n]+", {.stage = {pretok_lines}}, true},
    {"\\p{N}{1,3}", {.stage = {pretok_numbers}, .digits = 3}, false},
    {"\\p{N}", {.stage = {pretok_numbers}, .digits = 1}, false},
    {"\\p{N}+", {.stage = {pretok_numbers}, .digits = UINT32_MAX}, false},
    {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
     {.stage = {pretok_deepseek_cjk}},
     false},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
     "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
     "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     {.stage = {pretok_deepseek}},
     true},
};

/* ---- steps ---- */

static int hf_put(struct hf_reader *r, struct gguf_str s) {
    uint64_t len = htole64(s.len);

    r->n_steps++;
    TRY(buf_add(&r->steps, &len, sizeof(len)));
    return buf_add(&r->steps, s.data, s.len);
}

static int hf_step(struct hf_reader *r, const char *name) {
    if (r->n_stages)
        return hf_fail(r, "pre_tokenizer: a change of text behind a cut (%s) is not supported",
                       name);
    return hf_put(r, (struct gguf_str){name, strlen(name)});
}

static bool hf_has_space(struct gguf_str s) {
    return s.len && memchr(s.data, ' ', s.len);
}

/* Reads Replace, of one text by another. */
static int hf_read_replace(struct hf_reader *r, yyjson_val *v, const char *where) {
    yyjson_val *pattern = yyjson_obj_get(v, "pattern");
    struct gguf_str from = hf_str(yyjson_obj_get(pattern, "String"));
    struct gguf_str regex = hf_str(yyjson_obj_get(pattern, "Regex"));
    struct gguf_str to = hf_str(yyjson_obj_get(v, "content"));

    if (hf_same(regex, " {2,}") && to.data) {
        r->removes = true;
        TRY(hf_step(r, "squeeze"));
        return hf_put(r, to);
    }
    if (!from.data || from.len == 0 || !to.data)
        return hf_fail(r, "%s: Replace of the regular expression %s is not supported", where,
                       hf_show(yyjson_obj_get(pattern, "Regex")).s);
    TRY(hf_step(r, "replace"));
    TRY(hf_put(r, from));
    r->no_spaces = (r->no_spaces || hf_same(from, " ")) && !hf_has_space(to);
    r->removes |= to.len == 0 || from.len > 1;
    return hf_put(r, to);
}

static int hf_read_prepend(struct hf_reader *r, yyjson_val *v) {
    struct gguf_str text = hf_str(yyjson_obj_get(v, "prepend"));

    if (!text.data)
        return hf_fail(r, "normalizer.prepend is not a string");
    r->no_spaces = r->no_spaces && !hf_has_space(text);
    TRY(hf_step(r, "prepend"));
    return hf_put(r, text);
}

static int hf_read_strip(struct hf_reader *r, yyjson_val *v) {
    bool left = true, right = true;

    TRY(hf_bool(r, v, "normalizer", "strip_left", &left));
    TRY(hf_bool(r, v, "normalizer", "strip_right", &right));
    r->removes |= left;
    if (left)
        TRY(hf_step(r, "strip_left"));
    if (!right)
        return 0;
    return hf_step(r, "strip_right");
}

static int hf_read_bert(struct hf_reader *r, yyjson_val *v) {
    yyjson_val *strip = json_given(v, "strip_accents");
    bool clean = true, chinese = true, lower = true, accents;

    TRY(hf_bool(r, v, "normalizer", "clean_text", &clean));
    TRY(hf_bool(r, v, "normalizer", "handle_chinese_chars", &chinese));
    TRY(hf_bool(r, v, "normalizer", "lowercase", &lower));
    if (!clean || !chinese || r->kind != KIND_PIECES)
        return hf_fail(r, "normalizer: BertNormalizer is supported for WordPiece only, with "
                          "clean_text and handle_chinese_chars");
    accents = lower;
    TRY(hf_bool(r, v, "normalizer", "strip_accents", &accents));
    if (!strip)
        accents = lower;
    r->bert = true;
    TRY(gguf_keys_bool(r->out, "tokenizer.ggml.normalizer.lowercase", lower));
    return gguf_keys_bool(r->out, "tokenizer.ggml.normalizer.strip_accents", accents);
}

static int hf_read_charsmap(struct hf_reader *r, yyjson_val *v) {
    if (r->map_base64.data)
        return hf_fail(r, "normalizer has two of Precompiled");
    r->map_base64 = hf_str(yyjson_obj_get(v, "precompiled_charsmap"));
    if (!r->map_base64.data)
        return hf_fail(r, "normalizer.precompiled_charsmap is not a string");
    r->no_spaces = false;
    r->removes = true;
    return hf_step(r, "precompiled");
}

static int hf_read_one_normalizer(struct hf_reader *r, yyjson_val *v, int depth) {
    static const char *const plain[][2] = {
        {"NFC", "nfc"},   {"NFD", "nfd"},         {"NFKC", "nfkc"},
        {"NFKD", "nfkd"}, {"Lowercase", "lower"}, {"StripAccents", "strip_accents"},
    };
    yyjson_val *type = yyjson_obj_get(v, "type");

    if (json_is(type, "Sequence") && depth < HF_SEQUENCE_DEPTH) {
        JSON_EACH(item, yyjson_obj_get(v, "normalizers")) {
            TRY(hf_read_one_normalizer(r, item, depth + 1));
        }
        return 0;
    }
    for (size_t i = 0; i < ARRAY_SIZE(plain); i++) {
        if (json_is(type, plain[i][0])) {
            r->no_spaces = false;
            r->removes |= strcmp(plain[i][1], "strip_accents") == 0;
            return hf_step(r, plain[i][1]);
        }
    }
    if (json_is(type, "Replace"))
        return hf_read_replace(r, v, "normalizer");
    if (json_is(type, "Prepend"))
        return hf_read_prepend(r, v);
    if (json_is(type, "Strip"))
        return hf_read_strip(r, v);
    if (json_is(type, "BertNormalizer"))
        return hf_read_bert(r, v);
    if (json_is(type, "Precompiled"))
        return hf_read_charsmap(r, v);
    return hf_fail(r, "normalizer.type %s is not supported", hf_show(type).s);
}

int hf_read_normalizer(struct hf_reader *r) {
    yyjson_val *v = json_given(r->root, "normalizer");

    if (v)
        TRY(hf_read_one_normalizer(r, v, 0));
    if (r->bert && r->n_steps)
        return hf_fail(r, "normalizer: BertNormalizer beside others is not supported");
    return 0;
}

/* ---- cuts ---- */

/* Adds the cut by @text, an expression, behind those so far. @known: its stage; NULL: it has
 * none. */
static int hf_append_cut(struct hf_reader *r, struct gguf_str text, enum pretok_rule rule,
                         const struct pretok *known) {
    CLEANUP(cutter_freep) struct cutter *cutter = NULL;
    struct pretok *all = &r->rules;
    struct err why = {0};

    if (r->n_stages == PRETOK_STAGES)
        return hf_fail(r, "pre_tokenizer has more than %d cuts", PRETOK_STAGES);
    if (r->kind == KIND_BYTES)
        return hf_fail(r, "pre_tokenizer: a cut behind ByteLevel is not supported");
    int result = cutter_new(&cutter, text, &why);
    if (result == -EINVAL)
        return hf_fail(r, "pre_tokenizer.pattern: %s", why.message);
    TRY(result);
    struct hf_cut *cut = &r->cut[r->n_stages];
    buf_init(&cut->text, CUTTER_TEXT_MAX);
    TRY(buf_add(&cut->text, text.data, text.len));
    cut->rule = (uint8_t)rule;
    r->unlike |= !known || rule != PRETOK_KEEP_ALL;
    r->n_stages++;
    if (r->unlike)
        return 0;
    r->unlike = (all->digits && known->digits && all->digits != known->digits) ||
                (all->letter && known->letter && all->letter != known->letter);
    all->stage[r->n_stages - 1] = known->stage[0];
    all->digits = MAX(all->digits, known->digits);
    all->letter |= known->letter;
    all->no_tail |= known->no_tail;
    all->suffix |= known->suffix;
    return 0;
}

/* Makes cuts of what WhitespaceSplit and Metaspace cut, which are rules of their own unless another
 * cut follows. */
static int hf_cut_words(struct hf_reader *r) {
    static const struct gguf_str spaces = {"\\s+", 3}, mark = {SPACE_MARK, SPACE_MARK_LEN};
    bool words = r->words && !r->cut_marks, marks = r->cut_marks;

    r->words = r->cut_marks = false;
    if (words)
        TRY(hf_append_cut(r, spaces, PRETOK_DROP_MATCHES, NULL));
    if (marks)
        TRY(hf_append_cut(r, mark, PRETOK_JOIN_MATCH_GAP, NULL));
    return 0;
}

/* Adds the cut by @text, as hf_append_cut(), behind all that cut before it. */
static int hf_add_cut(struct hf_reader *r, struct gguf_str text, enum pretok_rule rule,
                      const struct pretok *known) {
    TRY(hf_cut_words(r));
    return hf_append_cut(r, text, rule, known);
}

/* Adds the cut by an expression of ours. */
static int hf_add_own_cut(struct hf_reader *r, const char *text, enum pretok_rule rule,
                          const struct pretok *known) {
    return hf_add_cut(r, (struct gguf_str){text, strlen(text)}, rule, known);
}

/* Adds the cut at each @text, which is no expression. */
static int hf_add_literal(struct hf_reader *r, struct gguf_str text, enum pretok_rule rule) {
    CLEANUP(buf_deinit) struct buf escaped = {.max = CUTTER_TEXT_MAX};

    if (text.len > CUTTER_TEXT_MAX / 2)
        return hf_fail(r, "pre_tokenizer.pattern has more than %u bytes", CUTTER_TEXT_MAX / 2);
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] && strchr("\\^$.|?*+()[]{}", text.data[i]))
            TRY(buf_add_char(&escaped, '\\'));
        TRY(buf_add_char(&escaped, text.data[i]));
    }
    return hf_add_cut(r, (struct gguf_str){text_or(escaped.data, ""), escaped.len}, rule, NULL);
}

/* Finds what becomes of matches and gaps, which @invert exchanges, by the name @how. */
static int hf_read_behavior(struct hf_reader *r, yyjson_val *how, bool invert,
                            enum pretok_rule *out) {
    static const struct {
        const char *name;
        enum pretok_rule rule[2];
    } behaviors[] = {
        {"Isolated", {PRETOK_KEEP_ALL, PRETOK_KEEP_ALL}},
        {"Removed", {PRETOK_DROP_MATCHES, PRETOK_DROP_GAPS}},
        {"Contiguous", {PRETOK_JOIN_MATCHES, PRETOK_JOIN_MATCHES}},
        {"MergedWithPrevious", {PRETOK_JOIN_GAP_MATCH, PRETOK_JOIN_MATCH_GAP}},
        {"MergedWithNext", {PRETOK_JOIN_MATCH_GAP, PRETOK_JOIN_GAP_MATCH}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(behaviors); i++) {
        if (!json_is(how, behaviors[i].name))
            continue;
        *out = behaviors[i].rule[invert];
        return 0;
    }
    return hf_fail(r, "pre_tokenizer.behavior %s is not supported", hf_show(how).s);
}

static int hf_read_split(struct hf_reader *r, yyjson_val *v) {
    yyjson_val *pattern = yyjson_obj_get(v, "pattern");
    struct gguf_str text = hf_str(yyjson_obj_get(pattern, "String"));
    enum pretok_rule rule;
    bool invert = false;

    TRY(hf_bool(r, v, "pre_tokenizer", "invert", &invert));
    TRY(hf_read_behavior(r, yyjson_obj_get(v, "behavior"), invert, &rule));
    /* Gemma's files cut at spaces that their normalizer has replaced before. */
    if (hf_same(text, " ") && r->no_spaces && rule != PRETOK_DROP_GAPS)
        return 0;
    if (text.data)
        return hf_add_literal(r, text, rule);
    text = hf_str(yyjson_obj_get(pattern, "Regex"));
    if (!text.data)
        return hf_fail(r, "pre_tokenizer.pattern is neither a String nor a Regex");
    for (size_t i = 0; i < ARRAY_SIZE(regexes); i++) {
        if (!hf_same(text, regexes[i].text))
            continue;
        if (rule == PRETOK_DROP_GAPS && regexes[i].total)
            rule = PRETOK_KEEP_ALL;
        return hf_add_cut(r, text, rule, &regexes[i].rules);
    }
    return hf_add_cut(r, text, rule, NULL);
}

static int hf_read_byte_level(struct hf_reader *r, yyjson_val *v) {
    bool prefix = true, regex = true;

    if (r->kind != KIND_CHARS)
        return hf_fail(r, "pre_tokenizer: ByteLevel is supported once, for BPE");
    TRY(hf_bool(r, v, "pre_tokenizer", "add_prefix_space", &prefix));
    TRY(hf_bool(r, v, "pre_tokenizer", "use_regex", &regex));
    if (prefix)
        TRY(hf_step(r, "prefix_space"));
    if (regex)
        TRY(hf_add_own_cut(r, regexes[0].text, PRETOK_KEEP_ALL, &regexes[0].rules));
    TRY(hf_cut_words(r));
    if (r->n_stages == 0)
        TRY(hf_add_own_cut(r, "[\\s\\S]+", PRETOK_KEEP_ALL, NULL));
    r->kind = KIND_BYTES;
    return 0;
}

static int hf_read_digits(struct hf_reader *r, yyjson_val *v) {
    struct pretok rules = {.stage = {pretok_numbers}, .digits = UINT32_MAX};
    bool each = false;

    TRY(hf_bool(r, v, "pre_tokenizer", "individual_digits", &each));
    if (each)
        rules.digits = 1;
    return hf_add_own_cut(r, each ? "\\p{N}" : "\\p{N}+", PRETOK_KEEP_ALL, &rules);
}

static int hf_read_punctuation(struct hf_reader *r, yyjson_val *v) {
    yyjson_val *how = json_given(v, "behavior");
    enum pretok_rule rule = PRETOK_KEEP_ALL;

    if (how)
        TRY(hf_read_behavior(r, how, false, &rule));
    return hf_add_own_cut(r, PUNCTUATION, rule, NULL);
}

/* Returns the step for the scheme of a Metaspace, NULL if it is unknown. Early files have
 * add_prefix_space. */
static const char *hf_mark_step(yyjson_val *v) {
    yyjson_val *scheme = json_given(v, "prepend_scheme"),
               *add = yyjson_obj_get(v, "add_prefix_space");

    if (json_is(scheme, "first"))
        return "mark_first";
    if (json_is(scheme, "never") || (!scheme && yyjson_is_false(add)))
        return "mark";
    if (scheme && !json_is(scheme, "always"))
        return NULL;
    return "mark_always";
}

/* Reads Metaspace behind WhitespaceSplit, which leaves no space to mark inside a word. */
static int hf_read_marked_words(struct hf_reader *r, const char *step, bool split) {
    if (strcmp(step, "mark") == 0) {
        TRY(hf_cut_words(r));
        r->cut_marks = split;
        return 0;
    }
    if (!split || strcmp(step, "mark_always") != 0)
        return hf_fail(r, "pre_tokenizer: Metaspace behind WhitespaceSplit must have the scheme "
                          "never, or always and split");
    r->cut_marks = true;
    return hf_step(r, "mark_words");
}

static int hf_read_metaspace(struct hf_reader *r, yyjson_val *v) {
    const char *step = hf_mark_step(v);
    bool split = true;

    if (!hf_same(hf_str(yyjson_obj_get(v, "replacement")), SPACE_MARK) || !step)
        return hf_fail(r, "pre_tokenizer: Metaspace has an unknown replacement or scheme");
    TRY(hf_bool(r, v, "pre_tokenizer", "split", &split));
    r->no_spaces = true;
    if (r->removes && strcmp(step, "mark_first") == 0)
        return hf_fail(r, "pre_tokenizer: Metaspace with the scheme first is not supported behind "
                          "a normalizer that may change where the text begins");
    if (r->words && !r->cut_marks)
        return hf_read_marked_words(r, step, split);
    r->cut_marks |= split;
    return hf_step(r, step);
}

/* Reads CharDelimiterSplit, whose delimiter is left out. */
static int hf_read_delimiter(struct hf_reader *r, yyjson_val *v) {
    struct gguf_str text = hf_str(yyjson_obj_get(v, "delimiter"));

    if (!text.data || text.len == 0)
        return hf_fail(r, "pre_tokenizer.delimiter is not a character");
    return hf_add_literal(r, text, PRETOK_DROP_MATCHES);
}

static int hf_read_one_cut(struct hf_reader *r, yyjson_val *v, int depth) {
    yyjson_val *type = yyjson_obj_get(v, "type");

    if (json_is(type, "Sequence") && depth < HF_SEQUENCE_DEPTH) {
        JSON_EACH(item, yyjson_obj_get(v, "pretokenizers")) {
            TRY(hf_read_one_cut(r, item, depth + 1));
        }
        return 0;
    }
    if (json_is(type, "Split"))
        return hf_read_split(r, v);
    if (json_is(type, "ByteLevel"))
        return hf_read_byte_level(r, v);
    if (json_is(type, "Digits"))
        return hf_read_digits(r, v);
    if (json_is(type, "Metaspace"))
        return hf_read_metaspace(r, v);
    if (json_is(type, "Punctuation"))
        return hf_read_punctuation(r, v);
    if (json_is(type, "CharDelimiterSplit"))
        return hf_read_delimiter(r, v);
    if (json_is(type, "Whitespace"))
        return hf_add_own_cut(r, "[\\w\\u200C\\u200D]+|[^\\w\\s\\u200C\\u200D]+", PRETOK_DROP_GAPS,
                              NULL);
    if (json_is(type, "BertPreTokenizer") && r->bert)
        return 0;
    if (json_is(type, "WhitespaceSplit")) {
        TRY(hf_cut_words(r));
        r->words = true;
        return 0;
    }
    return hf_fail(r, "pre_tokenizer.type %s is not supported", hf_show(type).s);
}

int hf_read_pre_tokenizer(struct hf_reader *r) {
    yyjson_val *v = json_given(r->root, "pre_tokenizer");

    if (r->kind != KIND_PIECES)
        TRY(hf_step(r, "normalized"));
    if (v)
        TRY(hf_read_one_cut(r, v, 0));
    if (r->words && !r->cut_marks)
        TRY(hf_cut_words(r));
    if (r->kind == KIND_UNIGRAM && r->n_stages)
        return hf_fail(r, "pre_tokenizer: its cuts are not supported for Unigram");
    if (r->kind == KIND_PIECES && (!r->bert || !json_has(v, "type", "BertPreTokenizer")))
        return hf_fail(r, "WordPiece is supported with BertNormalizer and BertPreTokenizer only");
    return 0;
}

/* ---- decoder ---- */

/* Notes what the decoders so far do: write marks as spaces, join tokens, drop the first space. */
struct hf_decoded {
    bool marks, fused, dropped;
};

/* Returns whether @v replaces the mark by a space. */
static bool hf_writes_spaces(yyjson_val *v) {
    yyjson_val *pattern = yyjson_obj_get(v, "pattern");

    return hf_same(hf_str(yyjson_obj_get(pattern, "String")), SPACE_MARK) &&
           hf_same(hf_str(yyjson_obj_get(v, "content")), " ");
}

/* Reads Strip, of one space at the begin of the joined text. */
static int hf_read_stripped(struct hf_reader *r, yyjson_val *v, struct hf_decoded *d) {
    uint64_t start = yyjson_get_uint(yyjson_obj_get(v, "start"));
    uint64_t stop = yyjson_get_uint(yyjson_obj_get(v, "stop"));

    if (start == 0 && stop == 0)
        return 0;
    if (start > 1 || stop || !hf_same(hf_str(yyjson_obj_get(v, "content")), " ") || !d->fused ||
        d->dropped)
        return hf_fail(r, "decoder: Strip is supported for one space at the begin, behind Fuse");
    d->dropped = true;
    return 0;
}

/* Reads a decoder of a vocabulary with marks. */
static int hf_read_marked_decoder(struct hf_reader *r, yyjson_val *v, struct hf_decoded *d) {
    yyjson_val *type = yyjson_obj_get(v, "type");
    const char *step = hf_mark_step(v);

    if (json_is(type, "Strip"))
        return hf_read_stripped(r, v, d);
    if (json_is(type, "ByteFallback") && !d->fused)
        return 0;
    if (json_is(type, "Replace") && hf_writes_spaces(v)) {
        d->marks = true;
        return 0;
    }
    if (json_is(type, "Metaspace") && step && !d->marks) {
        d->marks = true;
        d->dropped = strcmp(step, "mark") != 0;
        return 0;
    }
    return hf_fail(r, "decoder.type %s is not supported for this vocabulary", hf_show(type).s);
}

static int hf_read_one_decoder(struct hf_reader *r, yyjson_val *v, int depth,
                               struct hf_decoded *d) {
    yyjson_val *type = yyjson_obj_get(v, "type");

    if (json_is(type, "Sequence") && depth < HF_SEQUENCE_DEPTH) {
        JSON_EACH(item, yyjson_obj_get(v, "decoders")) {
            TRY(hf_read_one_decoder(r, item, depth + 1, d));
        }
        return 0;
    }
    if (json_is(type, "Fuse")) {
        d->fused = true;
        return 0;
    }
    if ((json_is(type, "ByteLevel") && r->kind == KIND_BYTES) ||
        (json_is(type, "WordPiece") && r->kind == KIND_PIECES))
        return 0;
    if (r->kind == KIND_CHARS || r->kind == KIND_UNIGRAM)
        return hf_read_marked_decoder(r, v, d);
    return hf_fail(r, "decoder.type %s is not supported for this vocabulary", hf_show(type).s);
}

int hf_read_decoder(struct hf_reader *r) {
    yyjson_val *v = json_given(r->root, "decoder");
    struct hf_decoded d = {0};

    if (!v)
        return 0;
    TRY(hf_read_one_decoder(r, v, 0, &d));
    r->drop_space = d.dropped;
    return 0;
}

/* ---- keys ---- */

/* Returns the value of a digit of base64, or -1. */
static int hf_base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;

    if (!at)
        return -1;
    return (int)(at - digits);
}

/* Writes the map of Precompiled, which the file has in base64. */
static int hf_write_charsmap(struct hf_reader *r) {
    struct gguf_str s = r->map_base64;
    uint32_t bits = 0;

    if (!s.data)
        return 0;
    if (s.len % 4)
        return hf_fail(r, "normalizer.precompiled_charsmap is not base64");
    for (unsigned i = 0; i < 2 && s.len && s.data[s.len - 1] == '='; i++)
        s.len--;
    TRY(gguf_keys_array(r->out, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, s.len * 3 / 4));
    for (size_t i = 0; i < s.len; i++) {
        int v = hf_base64_digit(s.data[i]);

        if (v < 0)
            return hf_fail(r, "normalizer.precompiled_charsmap is not base64");
        bits = bits << 6 | (uint32_t)v;
        if (i % 4)
            TRY(gguf_keys_add_u8(r->out, (uint8_t)(bits >> (6 - 2 * (i % 4)))));
    }
    return 0;
}

/* Writes the cuts themselves, of which no row is known. */
static int hf_write_cuts(struct hf_reader *r) {
    TRY(gguf_keys_array(r->out, HF_KEY_CUTS, GGUF_STRING, 2 * (uint64_t)r->n_stages));
    for (unsigned k = 0; k < r->n_stages; k++) {
        const char *rule = pretok_rules[r->cut[k].rule];

        TRY(gguf_keys_add_str(r->out, rule, strlen(rule)));
        TRY(gguf_keys_add_str(r->out, r->cut[k].text.data, r->cut[k].text.len));
    }
    return 0;
}

int hf_write_rules(struct hf_reader *r) {
    TRY(gguf_keys_array(r->out, HF_KEY_STEPS, GGUF_STRING, r->n_steps));
    TRY(buf_add(&r->out->kv, r->steps.data, r->steps.len));
    TRY(gguf_keys_bool(r->out, HF_KEY_WHOLE_WORDS, r->whole_words));
    TRY(gguf_keys_bool(r->out, HF_KEY_FUSE_UNKNOWN, r->fuse_unk));
    TRY(gguf_keys_bool(r->out, HF_KEY_CUT_MARKS, r->cut_marks));
    TRY(gguf_keys_bool(r->out, "tokenizer.ggml.add_space_prefix", r->drop_space));
    TRY(hf_write_charsmap(r));
    if (r->n_stages == 0)
        return 0;
    const struct pretok *row = r->unlike ? NULL : pretok_like(&r->rules);

    if (!row)
        return hf_write_cuts(r);
    return gguf_keys_string(r->out, "tokenizer.ggml.pre",
                            (struct gguf_str){row->names[0], strlen(row->names[0])});
}
