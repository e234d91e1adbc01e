/*
 * kinds - why a token class need not look at every token.
 *
 * From the middle of a string, an identifier or a number, most of the vocabulary can be read, and
 * that can be seen without reading it: all that is below a node of the trie is letters, say, at
 * most nine of them, and the state reads any nine letters. So there is a fixed list of kinds of
 * text. Each node of a trie knows the first kind that all texts below it belong to, and how long
 * they are; each state knows how far it reads any text of a kind (runway.c).
 *
 * Most kinds are sets of ASCII bytes. The last two are UTF-8, without ASCII and with it, where the
 * bytes before decide what may come: rows of a table. Characters that patterns and formats
 * often leave out (those that `.` does not match, private use) are not in them.
 */

#include "text/grammar/kinds.h"

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
    MARK = 128, /* punctuation that URLs have */
    ODD = 256,  /* other punctuation */
    NONE = 512, /* no kind has these: " \\ and controls, and what is no ASCII */
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
    {{0x90, 0x9e, 2}, {0xa0, 0xae, 2}}, /* behind f0: the last two of each plane are none */
    {{0xa0, 0xbf, 0}},                  /* behind c2: no controls */
    {{0xa0, 0xbf, 1}},                  /* behind e0 */
    {{0x80, 0x80, 7}, {0x81, 0xbf, 1}}, /* behind e2 */
    {{0x80, 0xa7, 0}, {0xaa, 0xbf, 0}}, /* behind e2 80: no line and paragraph separators */
    {{0x80, 0x9f, 1}},                  /* behind ed: no surrogates */
    {{0xa4, 0xb6, 1}, {0xb8, 0xbe, 1}}, /* behind ef: no private use and noncharacters */
};

const struct row_range *kinds_row(unsigned row) {
    assert(row < ROWS);
    return row == ROW_HIGH ? ROW[0] + 3 : ROW[row % ROW_HIGH];
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
    return strchr("%<>^`{|}\x7f", (int)c) ? ODD : MARK;
}

uint64_t text_bit(unsigned c) {
    static const char MARKS[] = " \"_-./:,'"; /* bits 53 to 61 */
    const char *mark = c ? strchr(MARKS, (int)c) : NULL;

    static_assert(sizeof(MARKS) - 1 == 62 - 53, "the last bits are those of all others");
    if (c >= 0x80)
        return TEXT_BIT_HIGH;
    if (c >= 'a' && c <= 'z')
        return UINT64_C(1) << (c - 'a');
    if (c >= 'A' && c <= 'Z')
        return UINT64_C(1) << (26 + c - 'A');
    if (c >= '0' && c <= '9')
        return UINT64_C(1) << 52;
    return UINT64_C(1) << (mark ? 53 + (mark - MARKS) : 62);
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

/* Those of @rows from which @byte goes on to one of @next. */
static uint32_t rows_before(uint32_t rows, uint8_t byte, uint32_t next) {
    uint32_t before = 0;

    for (unsigned i = 0; i < ROWS; i++) {
        for (const struct row_range *r = kinds_row(i); (rows >> i & 1) && r->hi; r++) {
            if (r->lo <= byte && byte <= r->hi && (next >> kinds_row_after(i, r) & 1))
                before |= 1u << i;
        }
    }
    return before;
}

static uint8_t kind_of(uint16_t bytes, uint32_t rows) {
    uint8_t kind = 0;

    while (kind < ASCII_KINDS && (bytes & ~KIND_BYTES[kind]))
        kind++;
    if (kind < ASCII_KINDS)
        return kind;
    return rows >> ROW_HIGH & 1 ? KIND_HIGH : rows & 1 ? KIND_TEXT : KIND_NONE;
}

/* Places from *@at on for @node and what is below it. */
static void place_nodes(struct trie *t, uint32_t node, uint32_t depth, uint32_t *at) {
    const struct trie_node *n = &t->node[node];
    struct trie_place *p = &t->place[*at];

    *p = (struct trie_place){.items = n->items,
                             .depth = (uint16_t)depth,
                             .byte = n->byte,
                             .kind = n->kind,
                             .height = n->height};
    t->number[(*at)++] = node;
    for (uint32_t i = n->child; i < n->child + n->n_children; i++)
        place_nodes(t, i, depth + 1, at);
    p->skip = *at;
}

/* In each place what is below it: one pass upwards. */
static void find_below(struct trie *t) {
    for (uint32_t i = t->n; i-- > 0;) {
        for (uint32_t k = i + 1; k < t->place[i].skip; k = t->place[k].skip)
            t->below[i] |= text_bit(t->place[k].byte) | t->below[k];
    }
}

/* Children come behind their parents: one pass upwards. */
int trie_find_kinds(struct trie *t) {
    CLEANUP(freep) uint16_t *bytes = calloc(t->n, sizeof(*bytes)); /* those below each node */
    CLEANUP(freep) uint32_t *rows = malloc(t->n * sizeof(*rows));  /* that lead through them */
    uint32_t n_places = 0;

    t->place = malloc((t->n + 1ul) * sizeof(*t->place));
    t->number = malloc(t->n * sizeof(*t->number));
    t->below = calloc(t->n, sizeof(*t->below));
    if (!bytes || !rows || !t->place || !t->number || !t->below)
        return -ENOMEM;
    for (uint32_t i = t->n; i-- > 0;) {
        struct trie_node *n = &t->node[i];

        assert(n->n_children == 0 || n->child > i);
        rows[i] = UINT32_MAX;
        for (uint32_t k = n->child; k < n->child + n->n_children; k++) {
            bytes[i] |= (uint16_t)(kinds_of_byte(t->node[k].byte) | bytes[k]);
            rows[i] = rows_before(rows[i], t->node[k].byte, rows[k]);
        }
        n->kind = kind_of(bytes[i], rows[i]);
        n->height = n->kind == KIND_NONE ? UINT8_MAX : n->height;
    }
    place_nodes(t, 0, 0, &n_places);
    assert(n_places == t->n);
    t->place[t->n] = (struct trie_place){.skip = t->n + 1, .items = t->n_items};
    find_below(t);
    return 0;
}
