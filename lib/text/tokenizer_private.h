#pragma once

/*
 * tokenizer_private - structs and functions that the parts of the tokenizer share. A vocabulary
 * (vocab.c) maps ids to texts; a table of pairs (merges.c) determines which two neighbours merge
 * into one symbol, and in which order. Both kinds of tokenizer reduce to such a table: bpe.c fills
 * it from the file's merges, spm.c from the scores. words.c cuts text into words that never merge
 * with each other, and encodes them.
 */

#include <string.h>

#include "base/buf.h"
#include "base/hash_index.h"
#include "text/charsmap.h"
#include "text/pretok.h"
#include "text/steps.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#define TOKEN_NONE UINT32_MAX
#define TOKEN_TEXT_MAX 1024u /* most bytes of one token; the longest in use have some 300 */

enum token_type { /* numbered as in the file */
                  TOKEN_UNDEFINED,
                  TOKEN_NORMAL,
                  TOKEN_UNKNOWN,
                  TOKEN_CONTROL,
                  TOKEN_USER,
                  TOKEN_UNUSED,
                  TOKEN_BYTE,
};

/* Keys that GGUF files do not have, written by hf_tokenizer.c. A file with the first one has all
 * rules of its tokenizer; names and texts of tokens imply none. */
/* steps of normalising, as steps_load() reads them */
#define HF_KEY_STEPS "tokenizer.weft.normalizer"
#define HF_KEY_WHOLE_WORDS "tokenizer.weft.whole_words"   /* a word that is a token is not merged */
#define HF_KEY_FUSE_UNKNOWN "tokenizer.weft.fuse_unknown" /* unknown neighbours are one token */
#define HF_KEY_CUT_MARKS "tokenizer.weft.cut_marks"       /* a word ends before each space mark */
/* for each cut of the pre-tokenizer a word of pretok_rules and an expression */
#define HF_KEY_CUTS "tokenizer.weft.cuts"
#define HF_KEY_ENDS "tokenizer.weft.eos_token_ids" /* ids that end a generation */
#define HF_KEY_FLAGS "tokenizer.weft.token_flags"  /* enum token_flag for each token */
#define HF_ENDS_MAX 64                             /* most entries of HF_KEY_ENDS */

/* Rules of an added token. */
enum token_flag {
    /* absorbs white space before it */
    TOKEN_LSTRIP = 1,
    /* absorbs white space behind it */
    TOKEN_RSTRIP = 2,
    /* is found between characters that are not part of words only */
    TOKEN_SINGLE_WORD = 4,
    /* is searched in normalised text */
    TOKEN_NORMALIZED = 8,
    /* white space that the model itself does not have (KIND_UNIGRAM) */
    TOKEN_ADDED = 16,
};

/* U+2581, which stands for a space in vocabularies without spaces */
#define SPACE_MARK "\xE2\x96\x81"
#define SPACE_MARK_LEN 3u

/* Returns whether @s begins with SPACE_MARK. */
static inline bool is_space_mark(const char *s, size_t len) {
    return len >= SPACE_MARK_LEN && memcmp(s, SPACE_MARK, SPACE_MARK_LEN) == 0;
}

enum tokenizer_kind {
    /* BPE over bytes, written as GPT-2's printable characters */
    KIND_BYTES,
    /* BPE over characters; spaces are U+2581, other bytes <0xXX> */
    KIND_CHARS,
    /* SentencePiece's BPE over characters: the best score merges first */
    KIND_SCORES,
    /* WordPiece: the longest token is taken first */
    KIND_PIECES,
    /* SentencePiece's Unigram: the greatest sum of scores is taken */
    KIND_UNIGRAM,
    /* PLaMo's: the least sum of costs is taken */
    KIND_COSTS,
};

/* Random key of a tokenizer's hash tables, so that a file cannot choose its collisions. */
struct hash_key {
    uint64_t k[2];
};

/* Multiplies and folds both halves of the product into one word: the step of wyhash. */
static inline uint64_t hash_mix(uint64_t a, uint64_t b) {
    __uint128_t r = (__uint128_t)a * b;

    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

/* Returns a keyed hash of @len bytes; both halves are well mixed. */
uint64_t hash_bytes(const struct hash_key *key, const char *s, size_t len);

/* Texts and types of all tokens. After the @n texts of the file, characters may follow that occur
 * in tokens but have no token: they take part in merging. Invariants: n <= n_all <= cap; token i
 * has the bytes text_at[i] .. text_at[i + 1] of text. Files repeat texts: of the tokens with one
 * text the index has one, a mergeable one if there is any, and of several the last; encoding never
 * makes the others, its duplicates. The empty text is not found. */
struct vocab {
    struct hash_key key;
    uint32_t n, n_all, cap;
    /* length of the longest text in bytes */
    uint32_t max_len;
    /* number of tokens that are not found because another one has their text */
    uint32_t n_duplicates;
    struct buf text, piece;
    /* text_at: [cap + 1], piece_at: [n + 1] offsets */
    uint32_t *text_at, *piece_at;
    /* [cap]: enum token_type */
    uint8_t *type;
    /* index of texts that are not empty */
    struct hash_index index;
};

/* Reads tokens and types of the file into the zeroed @v. Returns 0, -ENOMEM or -EINVAL with @err;
 * vocab_deinit() frees what was read before a failure. */
int vocab_load(struct vocab *v, const struct gguf *g, struct err *err);
void vocab_deinit(struct vocab *v);
#define VOCAB_SCORES "tokenizer.ggml.scores"
/* Reads the scores of the v->n tokens of the file, which may be infinite, into a new array at
 * *@out. Returns 0, -ENOMEM, or -EINVAL with @err. */
int vocab_read_scores(const struct vocab *v, const struct gguf *g, float **out, struct err *err);
/* Returns the id of @text, also of an added character; TOKEN_NONE: there is none. */
uint32_t vocab_find(const struct vocab *v, const char *text, size_t len);
/* Gives the character @text, which has no id, the next free id. Returns 0 or -ENOMEM. @text must
 * not point into @v, whose texts move. */
int vocab_add_char(struct vocab *v, const char *text, size_t len);
/* Returns the byte that the byte token @id spells; -1: it is none. */
int vocab_byte(const struct vocab *v, uint32_t id);
/* Computes the bytes of each token of the file in running text: piece, piece_at. Called once.
 * Returns 0 or -errno. */
int vocab_make_pieces(struct vocab *v, enum tokenizer_kind kind);

/* Returns the text of @id < n_all, not NUL-terminated; it moves when a character is added. */
static inline const char *vocab_text(const struct vocab *v, uint32_t id, uint32_t *len) {
    *len = v->text_at[id + 1] - v->text_at[id];
    return v->text.data + v->text_at[id];
}

/* Returns true unless @id < n, whose text is not empty, is a duplicate of the token that
 * vocab_find() returns. */
bool vocab_is_found(const struct vocab *v, uint32_t id);
/* Returns whether @id is only white space, and so counts as text even if the file marks it
 * user-defined. */
bool vocab_is_plain(const struct vocab *v, uint32_t id);
/* Returns whether merging may make @id; it never makes a special token, whatever the file says. */
bool vocab_is_mergeable(const struct vocab *v, uint32_t id);

/* Compares the texts of two ids of @vocab, a struct vocab, for qsort_r(); equal texts are sorted by
 * id. */
int vocab_by_text(const void *a, const void *b, void *vocab);

/* Returns GPT-2's printable character of a byte. */
uint32_t byte_to_char(uint8_t byte);

/* Special tokens that the file names, and the tokens that end a generation. */
struct special_ids {
    /* -1: none */
    int32_t bos, eos, unk;
    /* -1: the file has no key for it */
    int32_t fim[TOKENIZER_FIM_N];
    bool add_bos, add_eos;
    /* the file has HF_KEY_STEPS: only added tokens are ends because of their text */
    bool published;
    int32_t *end;
    size_t n_end;
};

/* Reads the ids that the file names and finds the ends. Returns 0, -ENOMEM or -EINVAL with @err;
 * The caller frees s->end. May also mark tokens that look like ends as control tokens, so it is
 * called before types are used. @add_bos: the value if the file has none. */
int special_ids_load(struct special_ids *s, struct vocab *v, const struct gguf *g, bool add_bos,
                     struct err *err);
/* Reads the bool @key into *@value, which is unchanged if the file does not have the key. Returns
 * 0, or -EINVAL with @err. */
int special_read_flag(const struct gguf *g, const char *key, bool *value, struct err *err);
/* Loads the special tokens of a BERT vocabulary: bos and eos are [CLS] and [SEP], and surround
 * every text. */
int special_ids_load_bert(struct special_ids *s, struct vocab *v, const struct gguf *g,
                          struct err *err);
/* Sets the end token if the file names none. */
void special_ids_set_eos(struct special_ids *s, int32_t id);

/* Tokens that are searched in raw text: special ones in trusted text, plain ones everywhere. */
struct markers {
    /* ids, sorted by text */
    uint32_t *id;
    uint32_t n, n_plain;
    /* [b] index of the first text that begins with byte b or a later one */
    uint32_t first[257];
};

/* Returns whether @id is searched in raw text. */
bool vocab_is_marker(const struct vocab *v, uint32_t id);
/* Collects the markers of @v in the zeroed @m; of those with one text, the last. @flags: enum
 * token_flag of each, those with TOKEN_NORMALIZED are left out; NULL: none is. Returns 0 or
 * -ENOMEM. The caller frees m->id. */
int markers_init(struct markers *m, const struct vocab *v, const uint8_t *flags);
/* Finds the longest marker at the start of @text, len > 0; special ones within the first @trusted
 * bytes only. Returns its length; 0: there is none. */
size_t markers_match(const struct markers *m, const struct vocab *v, const char *text, size_t len,
                     size_t trusted, uint32_t *id);

/* Added tokens that are searched in normalised text; n == 0: all are searched in raw text. */
struct late {
    /* what their texts become, and their types; a number there is a place in `id` */
    struct vocab vocab;
    struct markers markers;
    /* [n] ids */
    uint32_t *id;
    uint32_t n;
    /* those that are searched in raw text before */
    struct markers early;
};

/* A normalised text, and the parts of it that users wrote. */
struct late_text {
    struct buf text, a, b;
    struct text_range *user;
    size_t n_user, cap;
};

/* Table of pairs: (left, right) -> (rank, symbol); the lowest rank merges first, of equal ranks the
 * leftmost. */
struct pairs {
    struct hash_key key;
    uint32_t n, n_slots;
    struct pair_slot {
        uint64_t pair;
        uint32_t rank, made;
    } * slot;
};

#define RANK_NONE UINT32_MAX

/* Initialises an empty table with room for @n pairs, later for @n more. Returns 0 or -ENOMEM. The
 * caller frees p->slot. */
int pairs_init(struct pairs *p, struct hash_key key, size_t n);
int pairs_grow(struct pairs *p, size_t n);
/* Adds a pair, for which there must be room; an existing pair is not changed. */
void pairs_add(struct pairs *p, uint32_t left, uint32_t right, uint32_t rank, uint32_t made);

/* A part of a word that is, or may become, one token. */
struct symbol {
    /* id; TOKEN_NONE: the text is not in the vocabulary */
    uint32_t id;
    /* bytes of text */
    uint32_t len;
    /* rank of the pair with the next symbol */
    uint32_t rank;
    uint32_t made;
};

/* The symbols of a word, and scratch memory. Their lengths add up to the word's, before and after
 * merging. A symbol's rank and made are valid inside merger_run() only. */
struct merger {
    struct symbol *sym;
    size_t n, cap;
    /* numbers of the next and the previous symbol of long words */
    uint32_t *link;
    uint64_t *heap;
    size_t n_heap, long_cap;
};

void merger_deinit(struct merger *m); /* accepts a zeroed merger, as a new one is */
/* Makes room for the @n symbols of a new word; the symbols of the last word are lost. Returns 0 or
 * -ENOMEM. */
int merger_reserve(struct merger *m, size_t n);
/* Merges the m->n symbols, whose id and len are set, until no pair is left. Returns 0, -ENOMEM, or
 * -ECANCELED in an abandoned job. */
int merger_run(struct merger *m, const struct pairs *p);

/* Data of KIND_UNIGRAM (unigram.c) and KIND_COSTS (plamo.c). */
struct unigram {
    struct charsmap map;
    /* [vocab.n] scores */
    float *score;
    /* [n_sorted] tokens into which text is cut, sorted by their bytes */
    uint32_t *sorted;
    uint32_t n_sorted;
    float unknown_score;
    /* reduces several spaces to one and removes them at the ends */
    bool squeeze;
};

/* A tokenizer, immutable once it is made. byte_token: ids of single bytes, or TOKEN_NONE. */
struct tokenizer {
    struct vocab vocab;
    struct pairs pairs;
    struct markers markers;
    struct late late;
    struct special_ids special;
    struct unigram unigram;
    enum tokenizer_kind kind;
    /* cuts of KIND_BYTES, and of published KIND_CHARS; may be NULL */
    const struct pretok *pretok;
    /* cuts of HF_KEY_CUTS, which pretok then points to */
    struct pretok own_cuts;
    bool space_prefix;
    /* text of KIND_BYTES is normalised to NFC first */
    bool nfc;
    /* a word that is a token is not merged */
    bool whole_words;
    /* The file has HF_KEY_STEPS: text is prepared by `steps` alone. */
    bool published, fuse_unknown, cut_marks;
    struct steps steps;
    /* [vocab.n]: enum token_flag; NULL: no token has one */
    uint8_t *flags;
    /* KIND_PIECES. lower: text is lower-cased; strip: accents are removed */
    bool lower, strip;
    /* special tokens absorb the white space behind them, as in Phi-3 */
    bool swallow;
    /* merges of the file whose texts are no tokens */
    uint32_t n_skipped_merges;
    /* [b] a word does not end between byte b and a space mark */
    bool glued[256];
    uint32_t byte_token[256];
    /* most bytes of a word that one token can stand for; 0: no bound */
    uint32_t longest;
    /* replacement of text without a token; TOKEN_NONE: dropped */
    uint32_t replacement;
};

/* Fill pairs and special ids of @t, whose kind and vocabulary are set: bpe_load() from the merges
 * of the file, spm_load() from its scores. Returns 0, -ENOMEM or -EINVAL with @err. */
int bpe_load(struct tokenizer *t, const struct gguf *g, struct err *err);
int spm_load(struct tokenizer *t, const struct gguf *g, struct err *err);
/* Loads a WordPiece vocabulary, which has no pairs. */
int wordpiece_load(struct tokenizer *t, const struct gguf *g, struct err *err);
/* Loads a Unigram vocabulary, which has no pairs. */
int unigram_load(struct tokenizer *t, const struct gguf *g, struct err *err);
void unigram_deinit(struct unigram *u); /* accepts a zeroed one */
/* Reads the scores and sorts the tokens of text. Returns 0, -ENOMEM or -EINVAL with @err. */
int unigram_read_scores(struct tokenizer *t, const struct gguf *g, struct err *err);
/* Walks through the tokens with which @s, of @len bytes, begins, the shortest first. */
struct unigram_walk {
    const char *s;
    uint32_t len;
    /* bytes compared so far, and the sorted tokens [lo, hi) that agree in them */
    uint32_t depth, lo, hi;
    /* the token found last, and its bytes */
    uint32_t id, n;
};
struct unigram_walk unigram_walk(const struct tokenizer *t, const char *s, uint32_t len);
/* Finds the next token. Returns false if there is none. */
bool unigram_next(const struct tokenizer *t, struct unigram_walk *w);
/* Loads PLaMo's vocabulary, whose byte tokens are known. */
int plamo_load(struct tokenizer *t, const struct gguf *g, struct err *err);

/* Collects the late tokens of @t, whose markers and steps are known. Returns 0, -ENOMEM, or -EINVAL
 * with @err; late_deinit() follows in every case. */
int late_load(struct tokenizer *t, struct err *err);
void late_deinit(struct late *l);
/* Normalises @text[from..end) into the zeroed @out. @user: ranges of users' parts of @text. Returns
 * 0 or -errno; late_text_deinit() follows in every case. */
int late_normalise(struct late_text *out, const struct tokenizer *t, const char *text, size_t from,
                   size_t end, const struct text_range *user, size_t n_user);
void late_text_deinit(struct late_text *l);

struct word_cache;
/* State of encoding one text, on one thread; from words_init() to words_deinit(). */
struct words {
    const struct tokenizer *t;
    struct tokens *out;
    /* NULL: the text is too short for a cache to help */
    struct word_cache *cache;
    struct merger merger;
    struct buf normal, escaped;
    bool after_special;
    /* the next text is the begin of the input */
    bool first;
    /* number of words so far, for job_pause() */
    uint32_t n_words;
    /* KIND_PIECES: characters of the word in `normal` */
    uint32_t n_chars;
};

/* Begins the encoding. @text_len: total length of the text. The tokens are appended to @out, which
 * outlives @w. Returns 0 or -ENOMEM; words_deinit() must follow in both cases. */
int words_init(struct words *w, const struct tokenizer *t, size_t text_len, struct tokens *out);
void words_deinit(struct words *w);
/* Appends the tokens of a text between special tokens. Returns 0, -ENOMEM, -EMSGSIZE when there are
 * more than out->max, -ECANCELED in an abandoned job. */
int words_encode(struct words *w, const char *text, size_t len);
/* Appends @text as KIND_PIECES normalises it: without control characters, accents and case, and
 * with spaces around CJK characters. Returns 0, -ENOMEM or -ECANCELED in an abandoned job. */
int wordpiece_normalise(const struct tokenizer *t, struct gguf_str text, struct buf *out);
/* Encodes for KIND_PIECES, as words_encode(). */
int wordpiece_encode(struct words *w, const char *text, size_t len);
/* Encodes for KIND_UNIGRAM, as words_encode(). */
int unigram_encode(struct words *w, const char *text, size_t len);
/* Encodes for KIND_COSTS, as words_encode(). */
int plamo_encode(struct words *w, const char *text, size_t len);
