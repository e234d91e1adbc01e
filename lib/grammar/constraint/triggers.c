/*
 * triggers - finds triggers in a stream of bytes: Aho and Corasick's automaton over a few strings.
 *
 * A trigger is a text after which the grammar holds, like "<tool_call>". The strings form a trie. A
 * node stands for the longest suffix of the output that begins a trigger; if the next byte does not
 * continue it, its failure link leads to the next shorter such suffix. So a position in the stream
 * is the number of one node, and taking tokens back means to restore a number.
 *
 * Quiet text (reasoning, say) is a stretch in which no trigger counts. It needs two further tries
 * (struct triggers in private.h): `open` has the marks that begin quiet text and the triggers that
 * count only where free text begins, `quiet` has the mark that ends quiet text. The output never
 * rests at the end of a mark: reading goes on at the root of the other trie (`becomes`).
 */

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/constraint/private.h"

/* Bytes of the JSON of the largest triggers: each text escaped, with the keys around it. */
#define TRIGGERS_TEXT_MAX                                                                          \
    (2 * (CONSTRAINT_TRIGGERS_MAX + CONSTRAINT_STARTS_MAX + 2) *                                   \
         (6 * CONSTRAINT_TRIGGER_LEN_MAX + 24) +                                                   \
     200)

static uint32_t triggers_child(const struct triggers *t, uint32_t node, uint8_t byte) {
    uint32_t c = t->node[node].child;

    while (c && t->node[c].byte != byte)
        c = t->node[c].next;
    return c;
}

uint32_t triggers_step(const struct triggers *t, uint32_t node, uint8_t byte) {
    uint32_t c;

    while (!(c = triggers_child(t, node, byte)) && t->node[node].fail != node)
        node = t->node[node].fail;
    if (!c)
        return node;
    return t->node[c].becomes;
}

static uint32_t new_node(struct triggers *t, uint8_t byte, uint32_t next) {
    uint32_t id = t->n++;

    t->node[id] = (struct trigger_node){.byte = byte, .next = next, .becomes = id};
    return id;
}

/* Returns the node of @s in the trie at @root, and adds the nodes that are missing. */
static uint32_t triggers_add(struct triggers *t, uint32_t root, const char *s, size_t len) {
    uint32_t at = root;

    for (size_t i = 0; i < len; i++) {
        uint32_t c = triggers_child(t, at, (uint8_t)s[i]);

        if (!c) {
            c = new_node(t, (uint8_t)s[i], t->node[at].child);
            t->node[at].child = c;
        }
        at = c;
    }
    return at;
}

/* Sets the failure links of the trie at @root; the link of @root itself leads to @fail. A node's
 * link is found from its parent's and leads to a shorter text, so nodes are taken breadth-first,
 * with a queue, since they are numbered depth-first. */
static int link_failures(struct triggers *t, uint32_t root, uint32_t fail) {
    CLEANUP(freep) uint32_t *queue = malloc(t->n * sizeof(*queue));
    uint32_t head = 0, tail = 0;

    if (!queue)
        return -ENOMEM;
    t->node[root].fail = fail;
    queue[tail++] = root;
    while (head < tail) {
        uint32_t at = queue[head++];

        for (uint32_t c = t->node[at].child; c; c = t->node[c].next) {
            bool first = at == root && fail == root;

            t->node[c].fail = first ? root : triggers_step(t, t->node[at].fail, t->node[c].byte);
            if (!t->node[c].end && t->node[t->node[c].fail].end) {
                t->node[c].end = true;
                t->node[c].n_held = t->node[t->node[c].fail].n_held;
                t->node[c].held = t->node[t->node[c].fail].held;
            }
            queue[tail++] = c;
        }
    }
    return 0;
}

static int triggers_invalid(struct err *err, const char *what) {
    return err_set_code(err, 400, "grammar_invalid", NULL, "%s", what);
}

/* White space that may stand before a mark. */
static const char *const SPACE[] = {"", "\n", "\n\n", " "};
#define SPACE_MAX 2

static bool is_mark(yyjson_val *v) {
    return yyjson_is_str(v) && json_len(v) > 0 && json_len(v) <= CONSTRAINT_TRIGGER_LEN_MAX;
}

static int check_quiet(yyjson_val *quiet, struct err *err, size_t *n_bytes) {
    yyjson_val *open = yyjson_obj_get(quiet, "open"), *close = yyjson_obj_get(quiet, "close");
    yyjson_val *now = yyjson_obj_get(quiet, "now");

    if (!quiet)
        return 0;
    if (!is_mark(open) || !is_mark(close) || (now && !yyjson_is_bool(now)))
        return triggers_invalid(
            err, "\"quiet\" of triggers must have \"open\" and \"close\", strings of 1 to "
                 "256 bytes, and may have \"now\", a boolean");
    *n_bytes += json_len(close) + 2; /* 2: the roots of the tries `quiet` and `open` */
    *n_bytes += ARRAY_SIZE(SPACE) * (json_len(open) + SPACE_MAX);
    return 0;
}

static yyjson_val *trigger_text(yyjson_val *v) {
    if (!yyjson_is_obj(v))
        return v;
    return yyjson_obj_get(v, "text");
}

static int check_list(yyjson_val *list, struct err *err, size_t *n_bytes) {
    JSON_EACH(v, list) {
        if (!is_mark(trigger_text(v)) || (yyjson_is_obj(v) && !is_mark(yyjson_obj_get(v, "held"))))
            return triggers_invalid(err,
                                    "a trigger must be a string of 1 to 256 bytes, or \"text\" and "
                                    "\"held\" that are");
        *n_bytes += json_len(trigger_text(v));
    }
    return 0;
}

static int triggers_check(yyjson_val *root, struct err *err, size_t *n_bytes) {
    yyjson_val *after = yyjson_obj_get(root, "after"), *start = yyjson_obj_get(root, "start");
    yyjson_val *flags[] = {yyjson_obj_get(root, "repeat"), yyjson_obj_get(root, "required")};
    size_t i;

    *n_bytes = 1; /* the root of the first trie */
    if (!yyjson_is_arr(after) || yyjson_arr_size(after) == 0 ||
        yyjson_arr_size(after) > CONSTRAINT_TRIGGERS_MAX)
        return triggers_invalid(err, "triggers must have an array \"after\" of 1 to 16 strings");
    if (start && (!yyjson_is_arr(start) || yyjson_arr_size(start) > CONSTRAINT_STARTS_MAX))
        return triggers_invalid(err, "\"start\" of triggers must be an array of at most 1024");
    TRY(check_list(after, err, n_bytes));
    TRY(check_list(start, err, n_bytes));
    for (i = 0; i < ARRAY_SIZE(flags); i++) {
        if (flags[i] && !yyjson_is_bool(flags[i]))
            return triggers_invalid(err,
                                    "\"repeat\" and \"required\" of triggers must be booleans");
    }
    return check_quiet(yyjson_obj_get(root, "quiet"), err, n_bytes);
}

static int add_list(struct triggers *t, uint32_t root, yyjson_val *list) {
    JSON_EACH(v, list) {
        yyjson_val *text = trigger_text(v), *held = yyjson_obj_get(v, "held");
        struct trigger_node *node =
            &t->node[triggers_add(t, root, json_text(text), json_len(text))];

        node->end = true;
        node->held = (uint32_t)t->held.len;
        node->n_held = (uint16_t)json_len(held);
        if (held && buf_add(&t->held, json_text(held), node->n_held) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Adds the tries `quiet` and `open`, once the trie of the triggers that count everywhere is
 * complete: failure links of `open` lead into it. */
static int triggers_add_starts(struct triggers *t, yyjson_val *quiet, yyjson_val *start) {
    yyjson_val *open = yyjson_obj_get(quiet, "open"), *close = yyjson_obj_get(quiet, "close");
    uint32_t closed = 0;

    if (quiet) {
        t->quiet = new_node(t, 0, 0);
        closed = triggers_add(t, t->quiet, json_text(close), json_len(close));
    }
    t->open = new_node(t, 0, 0);
    for (size_t i = 0; quiet && i < ARRAY_SIZE(SPACE); i++) {
        uint32_t at = triggers_add(t, t->open, SPACE[i], strlen(SPACE[i]));

        t->node[triggers_add(t, at, json_text(open), json_len(open))].becomes = t->quiet;
    }
    TRY(add_list(t, t->open, start));
    t->start = yyjson_is_true(yyjson_obj_get(quiet, "now")) ? t->quiet : t->open;
    if (quiet) {
        t->node[closed].becomes = t->open;
        TRY(link_failures(t, t->quiet, t->quiet));
    }
    return link_failures(t, t->open, 0);
}

int triggers_new(struct triggers **out, const char *text, size_t len, struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    CLEANUP(triggers_freep) struct triggers *t = NULL;
    size_t n_bytes;

    if (len == 0) {
        *out = NULL;
        return 0;
    }
    int r = len < TRIGGERS_TEXT_MAX ? json_parse(&doc, text, len, 0) : -EINVAL;
    if (r < 0) {
        if (r == -EINVAL)
            return triggers_invalid(err, "the triggers are not JSON");
        return r;
    }
    yyjson_val *root = yyjson_doc_get_root(doc);

    TRY(triggers_check(root, err, &n_bytes));
    assert(n_bytes < UINT32_MAX); /* triggers_check() limits the number and length of triggers */
    t = calloc(1, sizeof(*t));
    if (!t || !(t->node = calloc(n_bytes + 1, sizeof(*t->node))))
        return -ENOMEM;
    buf_init(&t->held, TRIGGERS_TEXT_MAX);
    new_node(t, 0, 0);
    t->repeat = yyjson_is_true(yyjson_obj_get(root, "repeat"));
    t->required = yyjson_is_true(yyjson_obj_get(root, "required"));
    yyjson_val *quiet = yyjson_obj_get(root, "quiet"), *start = yyjson_obj_get(root, "start");

    TRY(add_list(t, 0, yyjson_obj_get(root, "after")));
    TRY(link_failures(t, 0, 0));
    if (quiet || yyjson_arr_size(start))
        TRY(triggers_add_starts(t, quiet, start));
    *out = STEAL(t);
    return 0;
}

struct triggers *triggers_free(struct triggers *t) {
    if (t) {
        free(t->node);
        buf_deinit(&t->held);
        free(t);
    }
    return NULL;
}

size_t triggers_feed(const struct triggers *t, uint32_t *node, const void *bytes, size_t len,
                     const struct trigger_node **found) {
    const uint8_t *s = bytes;

    *found = NULL;
    for (size_t i = 0; i < len; i++) {
        *node = triggers_step(t, *node, s[i]);
        if (t->node[*node].end) {
            *found = &t->node[*node];
            *node = 0;
            return i + 1;
        }
    }
    return len;
}

int triggers_hold(const struct triggers *t, const struct trigger_node *found,
                  struct grammar_state *g, const uint8_t *rest, size_t len) {
    CLEANUP(freep) uint8_t *all = NULL;
    size_t n = found->n_held;

    assert(found->end && found->held + n <= t->held.len);
    if (n == 0)
        return grammar_restart(g, rest, len);
    all = malloc(n + len);
    if (!all)
        return -ENOMEM;
    memcpy(all, t->held.data + found->held, n);
    memcpy(all + n, rest, len);
    return grammar_restart(g, all, n + len);
}
