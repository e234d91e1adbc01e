/* Finds triggers in a stream of bytes. A place in the stream is one number, so taking tokens back is cheap. */

#include "text/constraint_private.h"

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

    while (!(c = child_of(t, node, byte)) && node)
        node = t->node[node].fail;
    return c;
}

static void add(struct triggers *t, const uint8_t *s, size_t len) {
    uint16_t at = 0;

    for (size_t i = 0; i < len; i++) {
        uint16_t c = child_of(t, at, s[i]);

        if (!c) {
            c = (uint16_t)t->n++;
            t->node[c] = (struct trigger_node){.byte = s[i], .next = t->node[at].child};
            t->node[at].child = c;
        }
        at = c;
    }
    t->node[at].end = true;
}

/* Breadth first: a node's failure is found from its parent's. Nodes are numbered depth first, so a queue is needed. */
static int link_failures(struct triggers *t) {
    CLEANUP(freep) uint16_t *queue = malloc(t->n * sizeof(*queue));
    uint32_t head = 0, tail = 0;

    if (!queue)
        return -ENOMEM;
    queue[tail++] = 0;
    while (head < tail) {
        uint16_t at = queue[head++];

        for (uint16_t c = t->node[at].child; c; c = t->node[c].next) {
            t->node[c].fail = at ? triggers_step(t, t->node[at].fail, t->node[c].byte) : 0;
            t->node[c].end |= t->node[t->node[c].fail].end;
            queue[tail++] = c;
        }
    }
    return 0;
}

static int invalid(struct err *err, const char *what) {
    return err_set_code(err, 400, "grammar_invalid", NULL, "%s", what);
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
        if (!yyjson_is_str(s) || yyjson_get_len(s) == 0 ||
            yyjson_get_len(s) > CONSTRAINT_TRIGGER_LEN_MAX)
            return invalid(err, "a trigger must be a string of 1 to 256 bytes");
        *n_bytes += yyjson_get_len(s);
    }
    for (i = 0; i < ARRAY_SIZE(flags); i++) {
        if (flags[i] && !yyjson_is_bool(flags[i]))
            return invalid(err, "\"repeat\" and \"required\" of triggers must be booleans");
    }
    return 0;
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
    if (len < CONSTRAINT_TRIGGERS_MAX * (6 * CONSTRAINT_TRIGGER_LEN_MAX + 4) + 100)
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
    t->n = 1;
    t->repeat = yyjson_is_true(yyjson_obj_get(root, "repeat"));
    t->required = yyjson_is_true(yyjson_obj_get(root, "required"));
    yyjson_arr_foreach(yyjson_obj_get(root, "after"), i, n, s) {
        add(t, (const uint8_t *)yyjson_get_str(s), yyjson_get_len(s));
    }
    r = link_failures(t);
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
