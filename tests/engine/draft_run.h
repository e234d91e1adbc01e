#pragma once

/*
 * draft_run - what tests of blocks, assistants (test_mtp.c) and block drafters (test_dflash.c)
 * have in common: the logits of drafts, and runs in manners that must not change a bit of them or
 * of the model's text. With BACKEND, a device that is emulated, runs are shorter and fewer.
 */

#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

#ifdef BACKEND
#define JUDGED BACKEND
#define BACKEND_IS_DEVICE true
#else
#define JUDGED "cpu"
#define BACKEND_IS_DEVICE false
#endif

enum { N_VOCAB = 512, DRAFT_ROWS = 8, N_TOKENS = BACKEND_IS_DEVICE ? 6 : 12 };
enum { N_PROMPT = 45 }; /* in one step more than ENGINE_KEPT */

/* The logits at positions from @pos0 on; UINT32_MAX: none are watched. n_vocab 0: N_VOCAB. */
struct draft_watch {
    uint32_t pos0, n_seen, n_vocab;
    float logits[DRAFT_ROWS][N_VOCAB];
};

/* driver_opts.on_out, whose context is a draft_watch. */
void draft_see(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
               const float *logits);

/* Results of a run: tokens and digests of the model, logits of drafts behind the last token. */
struct draft_run {
    struct driver_out out[N_TOKENS];
    uint32_t n_drafts;
    float drafts[DRAFT_ROWS][N_VOCAB];
};

/* Conditions of a run that must not change its results. */
struct draft_manner {
    uint32_t chunk;
    bool drafts_always; /* behind every token; they are forgotten */
    bool in_company;
    bool after_another; /* in the pages and the slot of a sequence that ended */
};

/* A model with something that drafts. */
struct drafting {
    const char *name;
    const void *of; /* the test's own */
    /* Opens the model, @drafts: with what drafts. */
    void (*open)(const void *of, const char *backend, bool drafts, struct driver *d,
                 struct draft_watch *w);
    /* Drafts behind the last token of @n sequences. */
    void (*draft)(struct driver *d, struct driver_seq *const *seq, uint32_t n);
};

/* Returns the path of a golden file, valid until the call after next. */
const char *draft_path(const char *name, const char *end);
/* Fills N_PROMPT tokens below @n_vocab. */
void draft_prompt(int32_t *prompt, uint32_t seed, uint32_t n_vocab);
/* Returns true if the model said the same in both runs. */
bool draft_same_text(const struct draft_run *a, const struct draft_run *b);
/* Runs the model without what drafts and with it, in all manners, and expects the same. */
void draft_check_manners(const struct drafting *g, const char *backend);
/* Opens tiny model @model with @drafter in a file of its own; returns the result of
 * driver_open(). */
int draft_open_tiny(const struct tiny_model *model, const struct tiny_model *drafter,
                    const char *backend, struct driver *d, struct err *err);
