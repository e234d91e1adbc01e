/*
 * kinds - kinds of text, by which a walk can take a whole subtree of the trie without reading it.
 *
 * From the middle of a string, an identifier or a number, most of the vocabulary can be read. Often
 * that shows without looking at each token: say that all texts below a node of the trie are at most
 * nine letters, and the state reads any nine letters. So there is a fixed list of kinds of text.
 * Each node of a trie knows the first kind in this list to which all texts below it belong, and the
 * length of the longest one; each state knows how many characters it reads of any text of a kind
 * (free_chars.c).
 *
 * Most kinds are sets of ASCII bytes. The last two are UTF-8, without ASCII and with it. There the
 * bytes before decide which byte may come, so these kinds are the rows of a table, the states of an
 * automaton. Characters that patterns and formats often leave out (those that `.` does not match,
 * private use) are in no kind.
 */

#include "grammar/vocab/kinds.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum {
    LOWER = 1,
    UPPER = 2,
    DIGIT = 4,
    BLANK = 8,
    UNDERSCORE = 16,
    DASH = 32,
    DOT = 64,
    /* punctuation that URLs have */
    MARK = 128,
    /* other punctuation */
    ODD = 256,
    /* bytes that are in no ASCII kind: " \\, controls, and all above 0x7f */
    NONE = 512,
    LETTER = LOWER | UPPER,
    WORD = LETTER | DIGIT | UNDERSCORE,
    URL = WORD | DASH | DOT | MARK,
    PLAIN = URL | ODD | BLANK,
};

const uint16_t KIND_BYTES[ASCII_KINDS] = {
    DIGIT,
    LOWER,
    UPPER,
    LOWER | DIGIT,
    LETTER,
    LETTER | DIGIT,
    LOWER | DIGIT | DASH,
    LETTER | BLANK,
    WORD,
    LETTER | DIGIT | DASH,
    WORD | DASH,
    WORD | DASH | DOT,
    URL,
    PLAIN,
};

static const struct row_range ROW[ROW_HIGH][13] = {
    {{0x20, '!', 0},
     {'#', '[', 0},
     {']', 0x7f, 0},
     {0xc2, 0xc2, 4},
     {0xc3, 0xdf, 1},
     {0xe0, 0xe0, 5},
     {0xe1, 0xe1, 2},
     {0xe2, 0xe2, 6},
     {0xe3, 0xec, 2},
     {0xed, 0xed, 8},
     {0xef, 0xef, 9},
     {0xf0, 0xf0, 3}},
    {{0x80, 0xbf, 0}},
    {{0x80, 0xbf, 1}},
    {{0x90, 0x9e, 2}, {0xa0, 0xae, 2}}, /* behind f0: without the ends of planes (noncharacters) */
    {{0xa0, 0xbf, 0}},                  /* behind c2: no controls */
    {{0xa0, 0xbf, 1}},                  /* behind e0 */
    {{0x80, 0x80, 7}, {0x81, 0xbf, 1}}, /* behind e2 */
    {{0x80, 0xa7, 0}, {0xaa, 0xbf, 0}}, /* behind e2 80: no line and paragraph separators */
    {{0x80, 0x9f, 1}},                  /* behind ed: no surrogates */
    {{0xa4, 0xb6, 1}, {0xb8, 0xbe, 1}}, /* behind ef: no private use and noncharacters */
};

const struct row_range *kinds_row(unsigned row) {
    assert(row < ROWS);
    if (row == ROW_HIGH)
        return ROW[0] + 3;
    return ROW[row % ROW_HIGH];
}

unsigned kinds_of_byte(unsigned c) {
    if (c >= 'a' && c <= 'z')
        return LOWER;
    if (c >= 'A' && c <= 'Z')
        return UPPER;
    if (c >= '0' && c <= '9')
        return DIGIT;
    switch (c) {
    case ' ':
        return BLANK;
    case '_':
        return UNDERSCORE;
    case '-':
        return DASH;
    case '.':
        return DOT;
    case '"':
    case '\\':
        return NONE;
    }
    if (c < ' ' || c >= 0x80)
        return NONE;
    if (strchr("%<>^`{|}\x7f", (int)c))
        return ODD;
    return MARK;
}

uint64_t text_bit(unsigned c) {
    static const char OWN[] = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHILMNOPRSTU _-./:";
    const char *own = c ? strchr(OWN, (int)c) : NULL;

    static_assert(sizeof(OWN) - 1 == 60, "four bits are left for all others");
    if (c == '"')
        return TEXT_BIT_QUOTE;
    if (kinds_of_byte(c) & NONE)
        return TEXT_BIT_NONE;
    if (c >= 'A' && c <= 'Z' && !own)
        return UINT64_C(1) << 60;
    return UINT64_C(1) << (own ? own - OWN : 61);
}

bool kind_has(unsigned kind, unsigned c) {
    if (kind < ASCII_KINDS)
        return kinds_of_byte(c) & KIND_BYTES[kind];
    return c >= 0x80 || (kind == KIND_TEXT && kinds_of_byte(c) != NONE);
}

bool kinds_is_text(const uint8_t *s, size_t len) {
    unsigned row = 0;

    for (size_t i = 0; i < len; i++) {
        const struct row_range *r = ROW[row];

        while (r->hi && (s[i] < r->lo || s[i] > r->hi))
            r++;
        if (!r->hi)
            return false;
        row = r->row;
    }
    return true;
}

/* Returns the rows of @rows from which @byte leads to one of @next. */
static uint32_t kinds_rows_before(uint32_t rows, uint8_t byte, uint32_t next) {
    uint32_t before = 0;

    for (unsigned i = 0; i < ROWS; i++) {
        for (const struct row_range *r = kinds_row(i); (rows >> i & 1) && r->hi; r++) {
            if (r->lo <= byte && byte <= r->hi && (next >> kinds_row_after(i, r) & 1))
                before |= 1u << i;
        }
    }
    return before;
}

static uint8_t kinds_kind_of(uint16_t bytes, uint32_t rows) {
    uint8_t kind = 0;

    while (kind < ASCII_KINDS && (bytes & ~KIND_BYTES[kind]))
        kind++;
    if (kind < ASCII_KINDS)
        return kind;
    if (rows >> ROW_HIGH & 1)
        return KIND_HIGH;
    if (rows & 1)
        return KIND_TEXT;
    return KIND_NONE;
}

/* Sets the kind of each node. Children have larger numbers than their parents, so one pass from the
 * last node suffices. */
int trie_find_kinds(struct trie *t) {
    CLEANUP(freep) uint16_t *bytes = calloc(t->n, sizeof(*bytes)); /* bytes below each node */
    CLEANUP(freep)
    uint32_t *rows = malloc(t->n * sizeof(*rows)); /* rows that lead through each node */

    t->below = calloc(t->n, sizeof(*t->below));
    if (!bytes || !rows || !t->below)
        return -ENOMEM;
    for (uint32_t i = t->n; i-- > 0;) {
        struct trie_node *n = &t->node[i];

        assert(n->n_children == 0 || n->child > i);
        rows[i] = UINT32_MAX;
        for (uint32_t k = n->child; k < n->child + n->n_children; k++) {
            bytes[i] |= (uint16_t)(kinds_of_byte(t->node[k].byte) | bytes[k]);
            rows[i] = kinds_rows_before(rows[i], t->node[k].byte, rows[k]);
            t->below[i] |= text_bit(t->node[k].byte) | t->below[k];
        }
        n->kind = kinds_kind_of(bytes[i], rows[i]);
        n->height = n->kind == KIND_NONE ? UINT8_MAX : n->height;
    }
    return 0;
}
