/*
 * hf_sentencepiece - reads tokenizer.model, the vocabulary that SentencePiece writes, for folders
 * without tokenizer.json.
 *
 * The file is a message of Protocol Buffers: fields of a number, a type and a value. Only values of
 * bytes hold others, and only the three messages below are entered, so nothing nests. Each step
 * reads inside what is left of its message. Field numbers are those of sentencepiece_model.proto.
 */

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mathx.h"
#include "base/try.h"
#include "text/hf_tokenizer_private.h"

#define PIECES_MAX (1u << 20) /* the largest vocabularies have some 300,000 */

/* Bytes of a message that are not read yet. */
struct proto {
    const uint8_t *p, *end;
};

/* A field: the value of a number, the bits of 4 or 8 bytes, or bytes. */
struct proto_field {
    uint64_t key, number;
    struct gguf_str bytes;
};

enum { PROTO_VARINT, PROTO_FIXED64, PROTO_BYTES, PROTO_FIXED32 = 5 };

/* Key of field @n of type @type. */
#define PROTO_KEY(n, type) ((uint64_t)(n) << 3 | (type))

/* Settings that the file has beside its pieces. */
struct sentencepiece {
    struct hf_reader *r;
    uint32_t n_pieces;
    uint64_t model_type;
    bool byte_fallback, space_prefix, squeeze;
    int32_t unk, bos, eos;
    struct gguf_str map;
};

static int sentencepiece_fail(const struct hf_reader *r, const char *fmt, ...) PRINTF(2, 3);

static int sentencepiece_fail(const struct hf_reader *r, const char *fmt, ...) {
    char text[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(r->err, 0, NULL, "tokenizer.model: %s", text);
}

/* Reads a number of 7 bits a byte. Returns false at the end or after 10 bytes. */
static bool proto_varint(struct proto *m, uint64_t *out) {
    uint64_t v = 0;

    for (uint32_t shift = 0; m->p < m->end && shift < 70; shift += 7) {
        uint8_t byte = *m->p++;

        if (shift < 64)
            v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Reads @n bytes. */
static bool proto_read(struct proto *m, uint64_t n, struct gguf_str *out) {
    if (n > (uint64_t)(m->end - m->p))
        return false;
    *out = (struct gguf_str){(const char *)m->p, (size_t)n};
    m->p += n;
    return true;
}

/* Reads the next field. Returns false if it is cut off or has a type that is out of use. */
static bool proto_next(struct proto *m, struct proto_field *f) {
    struct gguf_str bits;

    *f = (struct proto_field){0};
    if (!proto_varint(m, &f->key))
        return false;
    switch (f->key & 7) {
    case PROTO_VARINT:
        return proto_varint(m, &f->number);
    case PROTO_BYTES:
        return proto_varint(m, &f->number) && proto_read(m, f->number, &f->bytes);
    case PROTO_FIXED32:
    case PROTO_FIXED64:
        if (!proto_read(m, (f->key & 7) == PROTO_FIXED32 ? 4 : 8, &bits))
            return false;
        memcpy(&f->number, bits.data, bits.len);
        f->number = le64toh(f->number);
        return true;
    default:
        return false;
    }
}

static struct proto proto_of(struct gguf_str s) {
    const uint8_t *p = (const uint8_t *)s.data;

    return (struct proto){p, p + s.len};
}

/* Enters a piece. Its types have the numbers of enum token_type. */
static int sentencepiece_piece(struct sentencepiece *s, struct gguf_str message) {
    struct proto m = proto_of(message);
    struct gguf_str text = {"", 0};
    uint64_t type = TOKEN_NORMAL;
    struct proto_field f;
    float score = 0;
    bool entered;

    if (s->n_pieces == PIECES_MAX)
        return sentencepiece_fail(s->r, "more than %u pieces", PIECES_MAX);
    while (m.p < m.end) {
        if (!proto_next(&m, &f))
            return sentencepiece_fail(s->r, "piece %u is damaged", s->n_pieces);
        if (f.key == PROTO_KEY(1, PROTO_BYTES))
            text = f.bytes;
        else if (f.key == PROTO_KEY(2, PROTO_FIXED32))
            score = mx_float_of((uint32_t)f.number);
        else if (f.key == PROTO_KEY(3, PROTO_VARINT))
            type = f.number;
    }
    if (type < TOKEN_NORMAL || type > TOKEN_BYTE)
        return sentencepiece_fail(s->r, "piece %u has the unknown type %llu", s->n_pieces,
                                  (unsigned long long)type);
    TRY(hf_set_token(s->r, s->n_pieces, text, (uint8_t)type, &entered));
    if (entered)
        TRY(buf_add(&s->r->scores, &score, sizeof(score)));
    s->n_pieces++;
    return 0;
}

/* Reads how the vocabulary was made. */
static int sentencepiece_trainer(struct sentencepiece *s, struct gguf_str message) {
    struct proto m = proto_of(message);
    struct proto_field f;

    while (m.p < m.end) {
        if (!proto_next(&m, &f))
            return sentencepiece_fail(s->r, "trainer_spec is damaged");
        if (f.key == PROTO_KEY(3, PROTO_VARINT))
            s->model_type = f.number;
        else if (f.key == PROTO_KEY(35, PROTO_VARINT))
            s->byte_fallback = f.number != 0;
        else if (f.key == PROTO_KEY(40, PROTO_VARINT))
            s->unk = (int32_t)f.number;
        else if (f.key == PROTO_KEY(41, PROTO_VARINT))
            s->bos = (int32_t)f.number;
        else if (f.key == PROTO_KEY(42, PROTO_VARINT))
            s->eos = (int32_t)f.number;
    }
    return 0;
}

/* Reads how texts are changed before they are cut. */
static int sentencepiece_normalizer(struct sentencepiece *s, struct gguf_str message) {
    struct proto m = proto_of(message);
    struct proto_field f;

    while (m.p < m.end) {
        if (!proto_next(&m, &f))
            return sentencepiece_fail(s->r, "normalizer_spec is damaged");
        if (f.key == PROTO_KEY(2, PROTO_BYTES))
            s->map = f.bytes;
        else if (f.key == PROTO_KEY(3, PROTO_VARINT))
            s->space_prefix = f.number != 0;
        else if (f.key == PROTO_KEY(4, PROTO_VARINT))
            s->squeeze = f.number != 0;
        else if (f.key == PROTO_KEY(5, PROTO_VARINT) && f.number == 0)
            return sentencepiece_fail(s->r,
                                      "normalizer_spec.escape_whitespaces false is not supported");
    }
    return 0;
}

static int sentencepiece_read(struct sentencepiece *s, struct gguf_str file) {
    struct proto m = proto_of(file);
    struct proto_field f;

    while (m.p < m.end) {
        if (!proto_next(&m, &f))
            return sentencepiece_fail(s->r,
                                      "not a model of SentencePiece, or cut off behind "
                                      "piece %u",
                                      s->n_pieces);
        if (f.key == PROTO_KEY(1, PROTO_BYTES))
            TRY(sentencepiece_piece(s, f.bytes));
        else if (f.key == PROTO_KEY(2, PROTO_BYTES))
            TRY(sentencepiece_trainer(s, f.bytes));
        else if (f.key == PROTO_KEY(3, PROTO_BYTES))
            TRY(sentencepiece_normalizer(s, f.bytes));
    }
    if (!s->n_pieces)
        return sentencepiece_fail(s->r, "has no pieces");
    return 0;
}

/* Finds the kind, and refuses what would give other ids. */
static int sentencepiece_kind(const struct sentencepiece *s) {
    switch (s->model_type) {
    case 1:
        s->r->kind = KIND_UNIGRAM;
        if (s->byte_fallback)
            return sentencepiece_fail(s->r,
                                      "trainer_spec.byte_fallback is not supported for Unigram");
        return 0;
    case 2:
        s->r->kind = KIND_SCORES;
        if (s->map.len)
            return sentencepiece_fail(s->r, "normalizer_spec.precompiled_charsmap is not supported "
                                            "for BPE");
        if (s->squeeze)
            return sentencepiece_fail(s->r, "normalizer_spec.remove_extra_whitespaces is not "
                                            "supported for BPE");
        return 0;
    default:
        return sentencepiece_fail(s->r,
                                  "trainer_spec.model_type %llu is not supported; UNIGRAM (1) "
                                  "and BPE (2) are",
                                  (unsigned long long)s->model_type);
    }
}

/* Returns @id if it is that of a piece, else -1. */
static int32_t sentencepiece_id(const struct sentencepiece *s, int32_t id) {
    if (id < 0 || (uint32_t)id >= s->r->n)
        return -1;
    return id;
}

/* Refuses what would lead to other ids: rules about the spaces beside token @id, and another text
 * than the piece with its number has. */
static int sentencepiece_check_added(struct hf_reader *r, yyjson_val *value, uint64_t id,
                                     struct gguf_str text) {
    static const char *const rules[] = {"lstrip", "rstrip", "single_word"};

    for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
        if (yyjson_get_bool(yyjson_obj_get(value, rules[i])))
            return err_set(r->err, 0, NULL,
                           "tokenizer_config.json: added_tokens_decoder.%llu: %s is not supported "
                           "without tokenizer.json",
                           (unsigned long long)id, rules[i]);
    if (!hf_has_other_text(r, id, text))
        return 0;
    return err_set(r->err, 0, NULL,
                   "tokenizer_config.json: added_tokens_decoder.%llu is another piece in "
                   "tokenizer.model",
                   (unsigned long long)id);
}

/* Returns true if @v, a member of special_tokens_map.json, names the token @text. */
static bool sentencepiece_names(yyjson_val *v, struct gguf_str text) {
    yyjson_val *content = yyjson_is_obj(v) ? yyjson_obj_get(v, "content") : v;
    struct gguf_str s = hf_str(content);

    return s.data && s.len == text.len && memcmp(s.data, text.data, s.len) == 0;
}

/* Returns true if special_tokens_map.json names @text, alone or in a list. */
static bool sentencepiece_is_special(const struct hf_reader *r, struct gguf_str text) {
    bool found = false;

    JSON_MEMBERS(key, value, r->map) {
        (void)key;
        found |= sentencepiece_names(value, text);
        JSON_EACH(item, value) {
            found |= sentencepiece_names(item, text);
        }
    }
    return found;
}

/* Enters the tokens of added_tokens.json, {TEXT: ID}. */
static int sentencepiece_older_added(struct sentencepiece *s) {
    JSON_MEMBERS(key, value, s->r->added) {
        struct gguf_str text = hf_str(key);
        uint64_t id = yyjson_get_uint(value);
        bool entered;

        if (!yyjson_is_uint(value) || text.len == 0)
            return err_set(s->r->err, 0, NULL, "added_tokens.json: \"%s\" is no text with an id",
                           hf_show(key).s);
        if (hf_has_other_text(s->r, id, text))
            return err_set(s->r->err, 0, NULL,
                           "added_tokens.json: \"%s\" has the id of another piece in "
                           "tokenizer.model",
                           hf_show(key).s);
        if (id < s->r->n && s->r->token[id].type != TOKEN_UNDEFINED)
            continue; /* the piece itself */
        uint8_t type = sentencepiece_is_special(s->r, text) ? TOKEN_CONTROL : TOKEN_USER;

        TRY(hf_set_token(s->r, id, text, type, &entered));
    }
    return 0;
}

/* Enters the tokens that tokenizer_config.json adds, {"ID": {"content": TEXT, "special": BOOL}}. */
static int sentencepiece_added(struct sentencepiece *s) {
    JSON_MEMBERS(key, value, json_given(s->r->config, "added_tokens_decoder")) {
        struct gguf_str text = hf_str(yyjson_obj_get(value, "content"));
        const char *id = json_cstr(key);
        char *end = NULL;
        bool entered;
        unsigned long n = id ? strtoul(id, &end, 10) : 0;

        if (!id || end == id || *end || n > UINT32_MAX || !text.data || text.len == 0)
            return err_set(s->r->err, 0, NULL,
                           "tokenizer_config.json: added_tokens_decoder has an entry without an id "
                           "or content");
        TRY(sentencepiece_check_added(s->r, value, n, text));
        bool special = yyjson_get_bool(yyjson_obj_get(value, "special"));
        bool unknown = n < s->r->n && s->r->token[n].type == TOKEN_UNKNOWN;
        uint8_t type = special ? TOKEN_CONTROL : TOKEN_USER;

        TRY(hf_set_token(s->r, n, text, unknown ? TOKEN_UNKNOWN : type, &entered));
    }
    return 0;
}

/* Writes the steps that come before the cut, as GGUF has them. */
static int sentencepiece_rules(const struct sentencepiece *s) {
    struct gguf_keys *out = s->r->out;

    TRY(gguf_keys_bool(out, "tokenizer.ggml.add_space_prefix", s->space_prefix));
    if (s->r->kind != KIND_UNIGRAM)
        return 0;
    TRY(gguf_keys_bool(out, "tokenizer.ggml.remove_extra_whitespaces", s->squeeze));
    if (s->map.len == 0)
        return 0;
    TRY(gguf_keys_array(out, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, s->map.len));
    for (size_t i = 0; i < s->map.len; i++)
        TRY(gguf_keys_add_u8(out, (uint8_t)s->map.data[i]));
    return 0;
}

int hf_write_sentencepiece(struct hf_reader *r, struct gguf_str file) {
    /* the values that fields have where the file leaves them out */
    struct sentencepiece s = {.r = r,
                              .model_type = 1,
                              .space_prefix = true,
                              .squeeze = true,
                              .unk = 0,
                              .bos = 1,
                              .eos = 2};

    TRY(sentencepiece_read(&s, file));
    TRY(sentencepiece_kind(&s));
    TRY(sentencepiece_older_added(&s));
    TRY(sentencepiece_added(&s));
    /* tokenizer_config.json may deny the first and demand the last (hf_special.c) */
    r->lead = r->kind == KIND_SCORES ? sentencepiece_id(&s, s.bos) : -1;
    r->tail = r->kind == KIND_UNIGRAM ? sentencepiece_id(&s, s.eos) : -1;
    if (sentencepiece_id(&s, s.unk) >= 0)
        r->unk = r->token[s.unk].text;
    TRY(hf_write_model(r));
    TRY(sentencepiece_rules(&s));
    return hf_write_specials(r);
}
