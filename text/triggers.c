/* Finds triggers in a stream of bytes. A place in the stream is one number, so taking tokens back
 * is cheap. */

#include "text/constraint_private.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>

static inline void doc_freep(yyjson_doc **doc) {
    yyjson_doc_free(*doc);
}

static uint16_t child_of(const struct triggers *t, uint16_t node, uint8_t byte) {
    uint16_t c = t->node[node].child;

    while (c && t->node[c].byte != byte)
        c = t->node[c].next;
    return c;
}

uint16_t triggers_step(const struct triggers *t, uint16_t node, uint8_t byte) {
    uint16_t c;

    while (!(c = child_of(t, node, byte)) && t->node[node].fail != node)
        node = t->node[node].fail;
    return c ? t->node[c].becomes : node;
}

static uint16_t new_node(struct triggers *t, uint8_t byte, uint16_t next) {
    assert(t->n < UINT16_MAX);
    uint16_t id = (uint16_t)t->n++;

    t->node[id] = (struct trigger_node){.byte = byte, .next = next, .becomes = id};
    return id;
}

/* The node of @s in the trie at @root. */
static uint16_t add(struct triggers *t, uint16_t root, const char *s, size_t len) {
    uint16_t at = root;

    for (size_t i = 0; i < len; i++) {
        uint16_t c = child_of(t, at, (uint8_t)s[i]);

        if (!c) {
            c = new_node(t, (uint8_t)s[i], t->node[at].child);
            t->node[at].child = c;
        }
        at = c;
    }
    return at;
}

/* Breadth first: a node's failure is found from its parent's, and that of @root leads to @fail.
 * Nodes are numbered depth first, so a queue is needed. */
static int link_failures(struct triggers *t, uint16_t root, uint16_t fail) {
    CLEANUP(freep) uint16_t *queue = malloc(t->n * sizeof(*queue));
    uint32_t head = 0, tail = 0;

    if (!queue)
        return -ENOMEM;
    t->node[root].fail = fail;
    queue[tail++] = root;
    while (head < tail) {
        uint16_t at = queue[head++];

        for (uint16_t c = t->node[at].child; c; c = t->node[c].next) {
            bool first = at == root && fail == root;

            t->node[c].fail = first ? root : triggers_step(t, t->node[at].fail, t->node[c].byte);
            t->node[c].end |= t->node[t->node[c].fail].end;
            queue[tail++] = c;
        }
    }
    return 0;
}

static int invalid(struct err *err, const char *what) {
    return err_set_code(err, 400, "grammar_invalid", NULL, "%s", what);
}

/* White space that may stand before a mark. */
static const char *const SPACE[] = {"", "\n", "\n\n", " "};
#define SPACE_MAX 2

static bool is_mark(yyjson_val *v) {
    return yyjson_is_str(v) && yyjson_get_len(v) > 0 &&
           yyjson_get_len(v) <= CONSTRAINT_TRIGGER_LEN_MAX;
}

static int check_quiet(yyjson_val *quiet, struct err *err, size_t *n_bytes) {
    yyjson_val *open = yyjson_obj_get(quiet, "open"), *close = yyjson_obj_get(quiet, "close");
    yyjson_val *now = yyjson_obj_get(quiet, "now");

    if (!quiet)
        return 0;
    if (!is_mark(open) || !is_mark(close) || (now && !yyjson_is_bool(now)))
        return invalid(err,
                       "\"quiet\" of triggers must have \"open\" and \"close\", strings of 1 to "
                       "256 bytes, and may have \"now\", a boolean");
    *n_bytes += yyjson_get_len(close) + 2; /* and two roots */
    *n_bytes += ARRAY_SIZE(SPACE) * (yyjson_get_len(open) + SPACE_MAX);
    return 0;
}

static int check(yyjson_val *root, struct err *err, size_t *n_bytes) {
    yyjson_val *after = yyjson_obj_get(root, "after"), *s;
    yyjson_val *flags[] = {yyjson_obj_get(root, "repeat"), yyjson_obj_get(root, "required")};
    size_t i, n;

    *n_bytes = 0;
    if (!yyjson_is_arr(after) || yyjson_arr_size(after) == 0 ||
        yyjson_arr_size(after) > CONSTRAINT_TRIGGERS_MAX)
        return invalid(err, "triggers must have an array \"after\" of 1 to 16 strings");
    yyjson_arr_foreach(after, i, n, s) {
        if (!is_mark(s))
            return invalid(err, "a trigger must be a string of 1 to 256 bytes");
        *n_bytes += yyjson_get_len(s);
    }
    for (i = 0; i < ARRAY_SIZE(flags); i++) {
        if (flags[i] && !yyjson_is_bool(flags[i]))
            return invalid(err, "\"repeat\" and \"required\" of triggers must be booleans");
    }
    return check_quiet(yyjson_obj_get(root, "quiet"), err, n_bytes);
}

/* The tries of the marks around quiet text; that of the triggers is complete. */
static int add_quiet(struct triggers *t, yyjson_val *quiet) {
    yyjson_val *open = yyjson_obj_get(quiet, "open"), *close = yyjson_obj_get(quiet, "close");

    t->quiet = new_node(t, 0, 0);
    uint16_t closed = add(t, t->quiet, yyjson_get_str(close), yyjson_get_len(close));

    t->open = new_node(t, 0, 0);
    t->node[closed].becomes = t->open;
    for (size_t i = 0; i < ARRAY_SIZE(SPACE); i++) {
        uint16_t at = add(t, t->open, SPACE[i], strlen(SPACE[i]));

        t->node[add(t, at, yyjson_get_str(open), yyjson_get_len(open))].becomes = t->quiet;
    }
    t->start = yyjson_is_true(yyjson_obj_get(quiet, "now")) ? t->quiet : t->open;
    int r = link_failures(t, t->quiet, t->quiet);

    return r < 0 ? r : link_failures(t, t->open, 0);
}

int triggers_new(struct triggers **out, const char *text, size_t len, struct err *err) {
    CLEANUP(doc_freep) yyjson_doc *doc = NULL;
    CLEANUP(triggers_freep) struct triggers *t = NULL;
    size_t n_bytes, i, n;
    yyjson_val *s;

    if (len == 0) {
        *out = NULL;
        return 0;
    }
    if (len < (CONSTRAINT_TRIGGERS_MAX + 2) * (6 * CONSTRAINT_TRIGGER_LEN_MAX + 4) + 100)
        doc = yyjson_read(text, len, 0);
    if (!doc)
        return invalid(err, "the triggers are not JSON");
    yyjson_val *root = yyjson_doc_get_root(doc);
    int r = check(root, err, &n_bytes);

    if (r < 0)
        return r;
    t = calloc(1, sizeof(*t));
    if (!t || !(t->node = calloc(n_bytes + 1, sizeof(*t->node))))
        return -ENOMEM;
    new_node(t, 0, 0);
    t->repeat = yyjson_is_true(yyjson_obj_get(root, "repeat"));
    t->required = yyjson_is_true(yyjson_obj_get(root, "required"));
    yyjson_arr_foreach(yyjson_obj_get(root, "after"), i, n, s) {
        t->node[add(t, 0, yyjson_get_str(s), yyjson_get_len(s))].end = true;
    }
    r = link_failures(t, 0, 0);
    if (r == 0 && yyjson_obj_get(root, "quiet"))
        r = add_quiet(t, yyjson_obj_get(root, "quiet"));
    if (r < 0)
        return r;
    *out = STEAL(t);
    return 0;
}

struct triggers *triggers_free(struct triggers *t) {
    if (t) {
        free(t->node);
        free(t);
    }
    return NULL;
}

size_t triggers_feed(const struct triggers *t, uint16_t *node, const void *bytes, size_t len,
                     bool *found) {
    const uint8_t *s = bytes;

    *found = false;
    for (size_t i = 0; i < len; i++) {
        *node = triggers_step(t, *node, s[i]);
        if (t->node[*node].end) {
            *found = true;
            *node = 0;
            return i + 1;
        }
    }
    return len;
}

int constraint_check_triggers(const char *text, size_t len, struct err *err) {
    CLEANUP(triggers_freep) struct triggers *t = NULL;

    return triggers_new(&t, text, len, err);
}
