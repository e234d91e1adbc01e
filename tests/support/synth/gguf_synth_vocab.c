/*
 * A byte-level BPE vocabulary that is made without data: 256 tokens of one byte, then tokens made
 * by merges, then special tokens, then unused ones. The first merges spell common English and code
 * words, a letter at a time, so that text takes about two characters a token. After them come all
 * groups of two, three and four letters, with and without a leading space, until the vocabulary is
 * full: a model with random weights samples tokens at random, and nearly all of them should have a
 * text.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "tests/support/synth/gguf_synth.h"

/* "_": the leading space. */
static const char *const words[] = {
    "_the",   "_and",    "_of",       "_to",     "_in",       "_is",     "_that",  "_for",
    "_it",    "_with",   "_as",       "_was",    "_on",       "_are",    "_be",    "_this",
    "_have",  "_from",   "_or",       "_by",     "_one",      "_had",    "_not",   "_but",
    "_what",  "_all",    "_were",     "_when",   "_we",       "_there",  "_can",   "_an",
    "_your",  "_which",  "_their",    "_said",   "_if",       "_do",     "_will",  "_each",
    "_about", "_how",    "_up",       "_out",    "_them",     "_then",   "_she",   "_many",
    "_some",  "_so",     "_these",    "_would",  "_other",    "_into",   "_has",   "_more",
    "_two",   "_like",   "_time",     "_look",   "_write",    "_go",     "_see",   "_number",
    "_way",   "_could",  "_people",   "_my",     "_than",     "_first",  "_water", "_been",
    "_call",  "_who",    "_now",      "_find",   "_long",     "_down",   "_day",   "_did",
    "_get",   "_come",   "_made",     "_may",    "_part",     "_return", "_int",   "_void",
    "_const", "_struct", "_char",     "_static", "_else",     "_while",  "_break", "_case",
    "_print", "_true",   "_false",    "_null",   "_string",   "_list",   "_file",  "_line",
    "_user",  "_system", "_help",     "_answer", "_question", "_please", "_model", "_token",
    "_test",  "_error",  "_value",    "_name",   "_data",     "ing",     "tion",   "ed",
    "er",     "ly",      "ment",      "ness",    "able",      "self",    "import", "return",
    "def",    "class",   "function",  "user",    "assistant", "system",  "tool",   "content",
    "name",   "type",    "arguments", "json",    "http",      "value",   "error",  "test",
};

static const struct {
    const char *text;
    /* tokenizer.ggml.token_type: 3 control, 4 user-defined */
    int type;
} specials[] = {
    {"<|endoftext|>", 3}, {"<|im_start|>", 3},    {"<|im_end|>", 3},
    {"<think>", 4},       {"</think>", 4},        {"<tool_call>", 4},
    {"</tool_call>", 4},  {"<tool_response>", 4}, {"</tool_response>", 4},
};
enum { SPECIAL_ENDOFTEXT, SPECIAL_IM_START, SPECIAL_IM_END };
/* The last of the unused tokens, where there are as many, of models that were trained with
 * pictures. */
static const char *const sights[] = {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"};

static const char chat_template[] =
    "{%- if tools %}\n"
    "    {{- '<|im_start|>system\\n' }}\n"
    "    {%- if messages[0].role == 'system' %}\n"
    "        {{- messages[0].content + '\\n\\n' }}\n"
    "    {%- endif %}\n"
    "    {{- 'You can call these functions:\\n<tools>' }}\n"
    "    {%- for tool in tools %}\n"
    "        {{- '\\n' + (tool | tojson) }}\n"
    "    {%- endfor %}\n"
    "    {{- '\\n</tools>\\nTo call one, write a JSON object with name and arguments inside tags:"
    R"(\n<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n' }})"
    "\n"
    "{%- endif %}\n"
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'tool' %}\n"
    "        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + "
    "'\\n</tool_response><|im_end|>\\n' }}\n"
    "    {%- elif not (tools and loop.first and message.role == 'system') %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' }}\n"
    "        {%- if message.content %}\n"
    "            {{- message.content }}\n"
    "        {%- endif %}\n"
    "        {%- if message.tool_calls %}\n"
    "            {%- for call in message.tool_calls %}\n"
    R"(                {{- '\n<tool_call>\n{"name": "' + call.function.name + )"
    R"('", "arguments": ' }})"
    "\n"
    "                {%- if call.function.arguments is string %}\n"
    "                    {{- call.function.arguments }}\n"
    "                {%- else %}\n"
    "                    {{- call.function.arguments | tojson }}\n"
    "                {%- endif %}\n"
    "                {{- '}\\n</tool_call>' }}\n"
    "            {%- endfor %}\n"
    "        {%- endif %}\n"
    "        {{- '<|im_end|>\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n";

#define PIECE_MAX 16u    /* characters of a merged token; the space takes two bytes */
#define SPACE "\xC4\xA0" /* U+0120 stands for it */

struct piece {
    char text[PIECE_MAX + 2];
    /* bytes; of the left part of its merge, 0: not made by a merge */
    uint8_t len, left;
};

/* Pieces in the order of their ids; the first 256 are the bytes. There are more than twice as many
 * slots as pieces, so that a search ends. */
struct vocab {
    struct piece *piece;
    uint32_t n, max;
    /* hash set of pieces: number + 1, 0: free */
    uint32_t *slot, mask;
};

/* Returns the slot of the piece @text, or the free one for it. */
static uint32_t *find_slot(const struct vocab *v, const char *text, size_t len) {
    uint32_t h = 2166136261u;

    assert(len > 0 && v->n <= v->mask);
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)text[i]) * 16777619u;
    for (uint32_t i = h ^ h >> 15;; i++) {
        uint32_t *s = &v->slot[i & v->mask];

        if (!*s || (v->piece[*s - 1].len == len && memcmp(v->piece[*s - 1].text, text, len) == 0))
            return s;
    }
}

/* Adds the token of @left and @right unless it is there or the vocabulary is full. */
static void merge(struct vocab *v, const char *left, size_t n_left, const char *right,
                  size_t n_right) {
    char text[2 * sizeof(v->piece->text)];

    if (v->n == v->max)
        return;
    assert(n_left + n_right < sizeof(v->piece->text));
    memcpy(text, left, n_left);
    memcpy(text + n_left, right, n_right);
    uint32_t *s = find_slot(v, text, n_left + n_right);
    if (*s)
        return;
    assert(v->n < v->max && n_left > 0 && n_right > 0);
    struct piece *p = &v->piece[v->n++];
    memcpy(p->text, text, n_left + n_right);
    p->len = (uint8_t)(n_left + n_right);
    p->left = (uint8_t)n_left;
    *s = v->n;
}

/* The printable stand-ins of the bytes: themselves, else U+0100 and up in the order of the
 * bytes. */
static void add_bytes(struct vocab *v) {
    unsigned extra = 0;

    for (unsigned b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b < 127) || (b >= 161 && b != 173);
        unsigned c = plain ? b : 256 + extra++;
        struct piece *p = &v->piece[v->n++];

        if (c < 128) {
            p->text[p->len++] = (char)c;
        } else {
            p->text[p->len++] = (char)(0xC0 | c >> 6);
            p->text[p->len++] = (char)(0x80 | (c & 63));
        }
        *find_slot(v, p->text, p->len) = v->n;
    }
}

/* The merges that make @word of its letters, from the left; "_" stands for the space before it. */
static void add_word(struct vocab *v, const char *word) {
    char text[PIECE_MAX + 2];
    size_t len = 0;

    if (*word == '_') {
        memcpy(text, SPACE, 2);
        len = 2;
        word++;
    }
    for (; *word; word++) {
        assert(len + 1 < sizeof(text));
        if (len)
            merge(v, text, len, word, 1);
        text[len++] = *word;
    }
}

/* Adds groups of letters: pairs, pairs after a space, a pair and a letter, two pairs. */
static void add_groups(struct vocab *v) {
    char pair[4] = SPACE;

    for (int spaced = 0; spaced < 2; spaced++)
        for (int i = 0; i < 26; i++) {
            char a = (char)('a' + i);

            if (spaced)
                merge(v, SPACE, 2, &a, 1);
            for (int j = 0; j < 26; j++) {
                char b = (char)('a' + j);

                pair[2] = a;
                if (spaced)
                    merge(v, pair, 3, &b, 1);
                else
                    merge(v, &a, 1, &b, 1);
            }
        }
    for (int size = 1; size <= 2; size++)
        for (int spaced = 1; spaced >= 0; spaced--)
            for (int i = 0; i < 26 * 26 && v->n < v->max; i++) {
                pair[2] = (char)('a' + i / 26);
                pair[3] = (char)('a' + i % 26);
                for (int j = 0; j < (size == 1 ? 26 : 676); j++) {
                    char tail[2] = {(char)('a' + (size == 1 ? j : j / 26)), (char)('a' + j % 26)};

                    merge(v, pair + 2 - 2 * spaced, 2u + 2u * (unsigned)spaced, tail, (size_t)size);
                }
            }
}

/* The pieces, the special tokens, and tokens that are never used up to @n_vocab, the last @n_sights
 * of which stand around pictures. */
static void write_tokens(struct gguf_write *w, const struct vocab *v, uint32_t n_vocab,
                         uint32_t n_sights) {
    uint32_t first = v->n, unused = first + (uint32_t)ARRAY_SIZE(specials);
    uint32_t sight = n_vocab - n_sights;

    assert(unused <= n_vocab);
    gguf_write_array(w, "tokenizer.ggml.tokens", GGUF_STRING, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) {
        char text[32];

        if (i < first)
            gguf_write_item_str(w, (struct gguf_str){v->piece[i].text, v->piece[i].len});
        else if (i < unused)
            gguf_write_item_str(
                w, (struct gguf_str){specials[i - first].text, strlen(specials[i - first].text)});
        else if (i >= sight)
            gguf_write_item_str(w, (struct gguf_str){sights[i - sight], strlen(sights[i - sight])});
        else
            gguf_write_item_str(
                w, (struct gguf_str){text, (size_t)snprintf(text, sizeof(text), "[PAD%u]", i)});
    }
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++)
        gguf_write_item(w, GGUF_I32,
                        i < first    ? 1
                        : i < unused ? specials[i - first].type
                        : i < sight  ? 5
                                     : 3);
}

/* A merge for each piece but the bytes, in the order of the ids, which is their rank. */
static void write_merges(struct gguf_write *w, const struct vocab *v) {
    assert(v->n >= 256);
    gguf_write_array(w, "tokenizer.ggml.merges", GGUF_STRING, v->n - 256);
    for (uint32_t i = 256; i < v->n; i++) {
        const struct piece *p = &v->piece[i];
        char text[sizeof(p->text) + 1];

        memcpy(text, p->text, p->left);
        text[p->left] = ' ';
        memcpy(text + p->left + 1, p->text + p->left, p->len - p->left);
        gguf_write_item_str(w, (struct gguf_str){text, p->len + 1u});
    }
}

int synth_vocab_write(struct gguf_write *w, const struct synth_shape *s, struct err *err) {
    uint32_t n_special = (uint32_t)ARRAY_SIZE(specials), n_slots = 1024;
    uint32_t first = s->n_vocab - n_special - s->n_vocab / 1024; /* of the special tokens */
    struct vocab v = {.max = first};

    while (n_slots < 2 * s->n_vocab)
        n_slots *= 2;
    CLEANUP(freep) struct piece *pieces = calloc(s->n_vocab, sizeof(*pieces));
    CLEANUP(freep) uint32_t *slots = calloc(n_slots, sizeof(*slots));
    if (!pieces || !slots)
        return -ENOMEM;
    v.piece = pieces;
    v.slot = slots;
    v.mask = n_slots - 1;
    add_bytes(&v);
    assert(v.n == 256 && v.max >= v.n);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        add_word(&v, words[i]);
    add_groups(&v);

    gguf_write_text(w, "tokenizer.ggml.model", "gpt2");
    gguf_write_text(w, "tokenizer.ggml.pre",
                    s->arch == SYNTH_LLAMA       ? "gpt-2"
                    : s->arch == SYNTH_MISTRAL3  ? "tekken"
                    : s->arch == SYNTH_GPT_OSS   ? "gpt-4o"
                    : s->arch == SYNTH_DEEPSEEK2 ? "glm4"
                    : s->arch == SYNTH_DEEPSEEK4 ? "joyai-llm"
                    : s->arch >= SYNTH_QWEN35    ? "qwen35"
                                                 : "qwen2");
    bool sees = s->arch >= SYNTH_QWEN35 && s->n_vocab / 1024 >= ARRAY_SIZE(sights);
    write_tokens(w, &v, s->n_vocab, sees ? (uint32_t)ARRAY_SIZE(sights) : 0);
    write_merges(w, &v);
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", v.n + SPECIAL_ENDOFTEXT);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", v.n + SPECIAL_IM_END);
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", v.n + SPECIAL_ENDOFTEXT);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_write_text(w, "tokenizer.chat_template", chat_template);
    return 0;
}

int synth_vocab_count(const struct gguf *from, uint32_t *n_vocab, struct err *err) {
    const struct gguf_array *tokens = gguf_array(from, "tokenizer.ggml.tokens");

    if (!tokens || gguf_array_type(tokens) != GGUF_STRING)
        return err_set(err, 0, NULL, "the file has no tokenizer.ggml.tokens");
    uint64_t n = gguf_array_n(tokens);
    if (n < 1 || n > SYNTH_VOCAB_MAX)
        return err_set(err, 0, NULL, "%llu tokens, at most %u", (unsigned long long)n,
                       SYNTH_VOCAB_MAX);
    *n_vocab = (uint32_t)n;
    return 0;
}

/* Item by item: arrays of arrays do not occur in tokenizers. */
static void copy_array(struct gguf_write *w, const char *key, const struct gguf_array *a) {
    enum gguf_type type = gguf_array_type(a);

    gguf_write_array(w, key, type, gguf_array_n(a));
    for (uint64_t i = 0; i < gguf_array_n(a); i++) {
        if (type == GGUF_STRING)
            gguf_write_item_str(w, gguf_array_str(a, i));
        else
            gguf_write_item(w, type, gguf_array_num(a, i));
    }
}

/* Copies a key. Returns 0, or -EINVAL if its value has a type that this function does not write. */
static int copy_key(struct gguf_write *w, const struct gguf *from, const char *key,
                    enum gguf_type type) {
    struct gguf_str text;
    uint32_t u32;
    float f32;
    bool flag;

    if (type == GGUF_ARRAY)
        copy_array(w, key, gguf_array(from, key));
    else if (type == GGUF_STRING && gguf_string(from, key, &text) == 0)
        gguf_write_string(w, key, text);
    else if (type == GGUF_BOOL && gguf_bool(from, key, &flag) == 0)
        gguf_write_bool(w, key, flag);
    else if ((type == GGUF_F32 || type == GGUF_F64) && gguf_f32(from, key, &f32) == 0)
        gguf_write_f32(w, key, f32);
    else if (gguf_u32(from, key, &u32) == 0)
        gguf_write_u32(w, key, u32);
    else
        return -EINVAL;
    return 0;
}

int synth_vocab_copy(struct gguf_write *w, const struct gguf *from, struct err *err) {
    for (uint64_t i = 0; i < gguf_n_kv(from); i++) {
        enum gguf_type type;
        struct gguf_str key = gguf_key(from, i, &type);

        if (key.len < 10 || memcmp(key.data, "tokenizer.", 10) != 0)
            continue;
        CLEANUP(freep) char *name = strndup(key.data, key.len);
        if (!name)
            return -ENOMEM;
        if (copy_key(w, from, name, type) < 0)
            return err_set(err, 0, NULL, "key %s has a value that cannot be copied", name);
    }
    return 0;
}
