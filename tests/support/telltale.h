#pragma once

/*
 * telltale - an engine without a model, linked in place of the real one (engine/engine.h).
 *
 * Its pages hold tokens instead of keys and values, and its samples are a hash of everything that
 * it reads through the page table for positions 0 to p, and of the parameters that matter. So a
 * wrong page, a page shared too early, an overwritten position, a token fed to the wrong row or a
 * wrong output index changes the text from there on. telltale_expect() computes the right text of
 * every request without pages. A page's cell also holds the hash of the positions before it when it
 * was written, as the deep layers of a model do: equal tokens after different ones are not
 * interchangeable.
 *
 * With opts.n_states it is an engine with recurrent layers: a slot holds the hash of the positions
 * up to one, and a sequence that does not continue where its slot's state is has another text from
 * there on.
 *
 * With opts.drafts it has a block of multi-token prediction (telltale_block.h): pass 1 samples the
 * same as pass 0, except for deliberate errors, and needs the keys of the block at all positions
 * before, and the hidden state of the last. With @borrows it is an assistant: pass 1 reads the
 * cells of pass 0 before the last token, and the hidden state of the position before, which may be
 * one of its own.
 *
 * With picture_width it takes pictures: the values of a row are a function of the pixels and the
 * row, and reading a row gives a hash of its values and its layout. So a wrong picture, row or grid
 * changes the text. Each batch must name the positions of its pictures, and no others.
 *
 * A batch with invalid content aborts at once, with a line that names it (telltale_check.c). A
 * batch is hashed at its launch and again at its wait: it must not change between the two.
 *
 * The results depend on the same input as in a real engine: digests, log probabilities and top
 * lists on the tokens alone; seed, choice, out_pos, temperature, top_p, top_k, min_p only where the
 * temperature is not 0; the history only where penalties are on; bans and masks only if they forbid
 * the token that would be drawn.
 */

#include "base/clock.h"
#include "engine/engine.h"
#include "vision/projector.h"

struct telltale {
    /* 0: of opts.file, else 256 */
    uint32_t n_vocab;
    /* 0: 8 */
    uint32_t n_embd;
    /* 0: 65536; opts.max_context lowers it */
    uint32_t max_context;
    /* 1 or 2; 0: 1 */
    uint32_t depth;
    /* bit c: batches have page tables of class c; 0: only KV_GLOBAL */
    uint32_t classes;
    /* With opts.windows: the last `window` positions are also read from n_windows pages of
     * KV_WINDOW, which hold the same cells. The text does not depend on it. */
    uint32_t window, n_windows;
    /* Sampled tokens lie in [first, last]; 0, 0: all. The end token is not among them: it is drawn
     * with a probability of end_per_1024. */
    int32_t first, last, end;
    uint32_t end_per_1024;
    /* probability in 1/1024 of a wrong sample: telltale_errs() */
    uint32_t wrong_per_1024;
    /* probability in 1/1024 of a wrong draft of pass 1 with opts.drafts */
    uint32_t block_wrong;
    /* pass 1 has no keys of its own (engine_info.borrows) */
    bool borrows;
    /* values of a row of a picture; 0: the engine takes none */
    uint32_t picture_width;
    /* rows of a picture must be in one step */
    bool two_way;
    /* pixels of a piece, which are the unit of work; 0: 64 */
    uint32_t picture_piece;
    /* reading a position that was not written for this sequence aborts */
    bool strict;
    /* seed of the garbage that fills the pages at the start */
    uint64_t poison;

    /* Faults: the step that fails with -EIO (0: none); afterwards every call fails. */
    uint64_t fail_launch, fail_wait;
    /* this step takes hang_ns longer */
    uint64_t hang_step;
    int64_t hang_ns;
    /* called with @of at each launch, when what the plan saw is still so; NULL: nothing is */
    void (*launched)(void *of);
    /* called with @of after each piece of a picture, which took @ns; NULL: nothing is */
    void (*drew)(void *of, int64_t ns);
    void *of;

    /* Virtual time; NULL: no time passes. A step starts when it was launched and the step before
     * has ended, and takes the sum of these; engine_wait() moves the clock to its end. */
    struct clock_virtual *clock;
    /* steps of a period in which the machine is alternately ten times slower and not; 0: none */
    uint32_t busy;
    /* fixed time; time for each row; time for each sequence */
    int64_t step_ns, row_ns, seq_ns;
    /* least time of all rows together: reading the weights */
    int64_t read_ns;
    /* for each token of context that a sequence reads */
    double key_ns;
    /* for each row of a prefill and token of its context */
    double pair_ns;
    /* for each page copied */
    int64_t copy_ns;
    /* for each state saved or loaded */
    int64_t state_ns;
    /* for each pixel of a picture; pieces move the clock at once */
    int64_t pixel_ns;
    /* a step of pass 1, and an eighth of row_ns for each row */
    int64_t block_ns;
    /* Number of adjacent sequences of one row each that together read their common prefix once, in
     * whole chunks (as in engine/ops/attention/plan.cu); 0 or 1: each reads it separately. */
    uint32_t together;
    /* relative deviation of a step's time, at most */
    double noise;
    /* a device computes the steps */
    bool device;
    /* the host computes a part of them */
    bool host_part;
};

/* Sets the values for the next engine_new() and telltale_expect(). NULL: all defaults. */
void telltale_set(const struct telltale *t);

struct telltale_seen {
    /* counts of the steps that were waited for */
    uint64_t n_steps, n_rows, n_wants, n_copies;
    /* of states */
    uint64_t n_loads, n_saves;
    /* steps in which the block got no keys */
    uint64_t n_hole_steps;
    /* such positions read by pass 1 among the last 32 */
    uint64_t n_holes_near;
    /* pictures that were computed */
    uint64_t n_pictures;
    /* positions read that were not written for the sequence that reads them */
    uint64_t n_stale;
};

void telltale_seen(const struct engine *e, struct telltale_seen *out);

/* Makes the next step that is launched (or, with @at_wait, waited for) fail as above; or take @ns
 * longer. */
void telltale_fail(struct engine *e, bool at_wait);
void telltale_hang(struct engine *e, int64_t ns);

/* Return whether a fault has happened; and whether in pass 1. */
bool telltale_is_lost(const struct engine *e);
bool telltale_is_lost_drafting(const struct engine *e);

/* Returns true if @page (of the host) holds these tokens, computed after the last cell of @parent
 * (-1: none). For KV_GLOBAL. */
bool telltale_holds(const struct engine *e, bool host, uint32_t page, int64_t parent,
                    const int32_t *tokens);

/* Returns true if snapshot @snapshot is the state behind the last token of @page (of the host), for
 * KV_GLOBAL. */
bool telltale_is_state(const struct engine *e, uint32_t snapshot, bool host, uint32_t page);

/* Returns true if an engine with this probability of errors is wrong at the right digest
 * @digest. */
bool telltale_errs(uint32_t wrong_per_1024, uint64_t digest);

/* A request, for computing the tokens that it must get, alone or in any company. */
struct telltale_ask {
    const int32_t *prompt;
    /* NULL, or the tokens of prompt[] as they are read: telltale_row() for rows of pictures */
    const int32_t *seen;
    /* n_out: most output tokens; the end token is the last */
    uint32_t n_prompt, n_out;
    /* without tokens, n_prompt, n_tokens */
    struct engine_param param;
    /* param.bans hold for the first n_ban output tokens */
    uint32_t n_ban;
    /* go on after an end token */
    bool ignore_end;
    /* A grammar: returns whether any token may follow the first @n of @out, and then for each token
     * whether it may be next. NULL: there is none. */
    bool (*go_on)(void *ctx, const int32_t *out, uint32_t n);
    bool (*allows)(void *ctx, int32_t token);
    void *ctx;
};

/* Writes the output tokens and, unless NULL, their digests and log probabilities; room for n_out.
 * Returns their number. */
uint32_t telltale_expect(const struct telltale_ask *ask, int32_t *tokens, uint64_t *digests,
                         float *logprobs);
/* Returns the number that is read for row @row of a picture, which is negative. */
int32_t telltale_row(const uint8_t *rgb, const struct picture_layout *l, uint32_t row);
/* Computes the log probabilities of prompt tokens 1 .. n_prompt - 1; @seen: as
 * telltale_ask.seen. */
void telltale_expect_prompt(const int32_t *prompt, const int32_t *seen, uint32_t n_prompt,
                            float *logprobs);
/* Computes the hidden state after @n_tokens tokens, of as many values as @vector has room for. */
void telltale_expect_hidden(const int32_t *tokens, uint32_t n_tokens, float *vector, uint32_t n);
/* Computes the best @n_top tokens (at most ENGINE_TOP_MAX) after @n_tokens tokens. */
void telltale_expect_top(const int32_t *tokens, uint32_t n_tokens, uint32_t n_top,
                         struct engine_top *top);
