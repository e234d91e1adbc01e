#pragma once

/*
 * draft_run - common functions of the tests of drafting blocks and assistants (test_mtp.c) and of
 * block drafters (test_dflash.c): logits of drafts, and runs under conditions that must change
 * neither these nor the model's text. With BACKEND, an emulated device, runs are shorter and fewer.
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
enum { N_PROMPT = 45 }; /* more rows in one step than ENGINE_KEPT */

/* Collects logits at positions from @pos0 on; UINT32_MAX: none. n_vocab 0: N_VOCAB. */
struct draft_watch {
    uint32_t pos0, n_seen, n_vocab;
    float logits[DRAFT_ROWS][N_VOCAB];
};

/* driver_opts.on_out, whose context is a draft_watch. */
void draft_see(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
               const float *logits);

/* Results of a run: tokens and digests of the model, logits of drafts after the last token. */
struct draft_run {
    struct driver_out out[N_TOKENS];
    uint32_t n_drafts;
    float drafts[DRAFT_ROWS][N_VOCAB];
};

/* Conditions of a run that must not change its results. */
struct draft_manner {
    uint32_t chunk;
    /* drafts after every token, which are then forgotten */
    bool drafts_always;
    bool in_company;
    /* earlier contents of the pages and the slot: those of a sequence that ended */
    bool after_another;
};

/* A model with a source of drafts. */
struct drafting {
    const char *name;
    /* for use by the test */
    const void *of;
    /* Opens the model; @drafts: with its source of drafts. */
    void (*open)(const void *of, const char *backend, bool drafts, struct driver *d,
                 struct draft_watch *w);
    /* Drafts after the last token of @n sequences. */
    void (*draft)(struct driver *d, struct driver_seq *const *seq, uint32_t n);
};

/* Returns the path of a golden file, valid until the second next call. */
const char *draft_path(const char *name, const char *end);
/* Fills N_PROMPT tokens below @n_vocab. */
void draft_prompt(int32_t *prompt, uint32_t seed, uint32_t n_vocab);
/* Returns true if the model's text is equal in both runs. */
bool draft_same_text(const struct draft_run *a, const struct draft_run *b);
/* Runs the model without and with its source of drafts, under all conditions, and expects equal
 * results. */
void draft_check_manners(const struct drafting *g, const char *backend);
/* Opens tiny model @model with @drafter in a file of its own. Returns the result of
 * driver_open(). */
int draft_open_tiny(const struct tiny_model *model, const struct tiny_model *drafter,
                    const char *backend, struct driver *d, struct err *err);
