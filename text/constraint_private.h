#pragma once

/* The triggers of a constraint: Aho-Corasick over a few short strings; and the constraint itself.
 * Private to text/. */

#include "text/constraint.h"

struct trigger_node {
    uint16_t child, next; /* first child, next sibling; 0: none */
    uint16_t fail;        /* the longest proper suffix that is a node */
    uint16_t
        becomes; /* the node that reading goes on from: itself, but for the end of a quiet mark */
    uint8_t byte;
    bool end; /* a trigger ends here */
};

/* Up to three tries in one array: the triggers from node 0 on; the mark that ends quiet text, from
 * `quiet` on; the marks that begin it, from `open` on. They are looked for only where nothing but
 * white space is before them, so their failures lead to the triggers. Without quiet text both are
 * 0. */
struct triggers {
    struct trigger_node *node;
    uint32_t n;
    uint16_t quiet, open;
    uint16_t start; /* where the output begins: one of the two */
    bool repeat, required;
};

/* Empty text: *out is NULL. */
int triggers_new(struct triggers **out, const char *text, size_t len, struct err *err);
struct triggers *triggers_free(struct triggers *t);
DEFINE_FREEP(struct triggers, triggers)
/* Reads bytes from @node until a trigger is complete: how many were read. *node is 0 then, and
 * *found true. */
size_t triggers_feed(const struct triggers *t, uint16_t *node, const void *bytes, size_t len,
                     bool *found);
/* The node after one more byte; a root only when nothing of what it looks for is there. */
uint16_t triggers_step(const struct triggers *t, uint16_t node, uint8_t byte);

struct constraint {
    const struct grammar_vocab *vocab;
    struct grammar *grammar;
    struct triggers *triggers; /* NULL: the grammar holds from the start */
    /* Tokens that must not come at a node of the triggers: they would complete one and go on with
     * what the grammar refuses. Those of node i: crossing[first[i], first[i + 1]). */
    uint32_t *first;
    int32_t *crossing;
};

/* Fills first and crossing. 0, -ENOMEM, -EINVAL with @err when there are too many. */
int crossing_find(struct constraint *c, struct err *err);
