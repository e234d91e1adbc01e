#pragma once

/*
 * messages - the messages between front and worker, as plain structs, and their packing into
 * channel frames (base/chan.h). The structs here carry pointers for the convenience of both sides;
 * on the wire every pointer is a span inside the frame, and the parser checks each span, count and
 * enum before it sets a pointer. Parsed pointers point into the frame and are valid as long as the
 * frame.
 *
 * The front sends OPEN once, then SUBMIT, CANCEL, PICTURE, TURN_END, DISK_USE and DISK_LEAVE. A
 * SUBMIT above SUBMIT_WHOLE bytes goes in SUBMIT_PARTs, between which other messages may stand, but
 * no parts of another one; CANCEL drops what has come of it. The worker sends HELLO at once,
 * PROGRESS while loading, READY or FAILED, then one EVENTS frame per step, STATS (proto/stats.h) at
 * most every 100 ms and when idle begins, NEED_PICTURE and DISK_LEFT. Events are cumulative: an
 * event carries the tokens [from, from + n), where `from` counts the tokens whose delivery the
 * worker knows; when the channel is full, the worker sends nothing, and the next step's event
 * carries more tokens. Each submitted id gets exactly one FINISH. BLOCKS, if OPEN asked for them,
 * report published pages: each frame continues where the last one ended, and no frame is made while
 * others wait in the channel. SERVED is sent with STATS, and the front passes it on to the other
 * workers of the same device. */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/params.h"
#include "proto/stats.h"

#define MSG_MAGIC 0x54464557u /* "WEFT" as a number */
#define MSG_VERSION 1u
#define MSG_MAX_FRAME (64u << 20)
/* most bytes that wait until the other end reads them */
#define MSG_MAX_QUEUED (MSG_MAX_FRAME + (64u << 10))
#define SUBMIT_STOPS_MAX 16
#define SUBMIT_TOP_MAX 20

enum msg_type {
    MSG_HELLO = 1,
    MSG_OPEN,
    MSG_PROGRESS,
    MSG_READY,
    /* text: the reason why the worker cannot serve; it exits then */
    MSG_FAILED,
    MSG_SUBMIT,
    MSG_CANCEL,
    MSG_EVENTS,
    MSG_STATS,
    MSG_TURN_END,
    /* empty: no other process has the file of the disk tier, so the worker uses it */
    MSG_DISK_USE,
    /* empty: the worker releases the file for another process and answers with MSG_DISK_LEFT */
    MSG_DISK_LEAVE,
    /* empty: the worker does not use the file any more */
    MSG_DISK_LEFT,
    MSG_BLOCKS,
    /* array of struct msg_served, at most SERVED_MAX */
    MSG_SERVED,
    /* from the worker: struct msg_need_picture; the answer is MSG_PICTURE */
    MSG_NEED_PICTURE,
    /* from the front: pixels, or the reason why there are none */
    MSG_PICTURE,
    /* struct msg_submit_part, then bytes of a SUBMIT */
    MSG_SUBMIT_PART,
};

/* Text, or bytes; not NUL-terminated. */
struct str {
    const char *data;
    uint32_t len;
};

/* The first frame of a worker, sent as its bytes in memory. Both sides must be the same build. */
struct msg_hello {
    uint32_t magic, version;
    uint8_t build_id[20];
};

/* Tells the worker to open a model, and how. The files are descriptors inherited from the front. */
struct msg_open {
    /* options, packed by daemon/config/config.h */
    struct str options;
    /* preferred memory for pages if the options give no size; 0: any */
    uint64_t kv_bytes;
    /* memory of the machine that the worker may use; 0: unknown */
    uint64_t memory_bytes;
    /* the last n_draft_shards shards are those of the draft model */
    uint32_t n_draft_shards;
    /* 0 or 1. has_disk: behind the shards comes the file of the disk tier; disk_waits: the worker
     * does not touch it before DISK_USE. */
    uint32_t has_disk, disk_waits;
    /* 0 or 1: then come the files in memory for the weights of the model and of the draft model. */
    uint32_t keeps, keeps_draft;
    /* 0 or 1. has_experts: the last file is that of the model's experts (engine_opts.experts_fd);
     * keeps_place: the experts stay where that file places them. */
    uint32_t has_experts, keeps_place;
    /* 0 or 1: the worker sends BLOCKS */
    uint32_t tells_blocks;
    /* number of the image encoder's files behind the shards; 0: there is none */
    uint32_t n_projector;
};

struct msg_progress {
    /* part of the work that is finished, for logs */
    struct str what;
    /* progress of loading: 0 to 1 */
    float fraction;
};

/* Reports that the worker serves, the properties of the model, and the room on its device. */
struct msg_ready {
    uint32_t n_vocab, n_embd, n_layer, max_context, page_tokens, n_pages, n_threads;
    /* memory of model and draft model in bytes: weights, buffers, pages, states */
    uint64_t memory_bytes;
    uint64_t page_bytes, n_params;
    /* digest of everything that tokens depend on: files, sources, formats, places */
    uint8_t fingerprint[16];
    struct str arch, backend, isa;
    /* engine_info.weights of the model; below READY_WEIGHTS */
    uint32_t weights;
};

#define READY_WEIGHTS 3u

enum submit_flags {
    SUBMIT_LOGPROBS = 1,
    SUBMIT_DIGESTS = 2,
    /* skips the prefix lookup */
    SUBMIT_PROMPT_LOGPROBS = 4,
    SUBMIT_NO_SPECULATION = 8,
    /* The result is a vector: the model's last hidden state, after the final norm, at the last
     * token or as the mean over all tokens. It takes the place of the one token that max_new asks
     * for. */
    SUBMIT_POOL_LAST = 16,
    SUBMIT_POOL_MEAN = 32,
    /* The prompt is computed while no other request runs or waits, so that the turn after @group
     * finds its pages. One EVENT_FINISH without tokens, and no other event. */
    SUBMIT_PREWARM = 64,
    /* The grammar's output is complete when max_new or the context ends it; the request is refused
     * if that is impossible. */
    SUBMIT_COMPLETE = 128,
    /* like SUBMIT_POOL_LAST, at the first token */
    SUBMIT_POOL_CLS = 256,
    /* Set together with one of SUBMIT_POOL_*: the vector has one number, the model's score for the
     * prompt. */
    SUBMIT_SCORE = 512,
    /* The vector is the hidden states of all tokens, one after the other, of at most
     * SUBMIT_VECTORS_MAX bytes. */
    SUBMIT_POOL_NONE = 1024,
};

#define SUBMIT_POOLS (SUBMIT_POOL_LAST | SUBMIT_POOL_MEAN | SUBMIT_POOL_CLS | SUBMIT_POOL_NONE)
#define SUBMIT_VECTORS_MAX (8u << 20)

/* Added to the logit of a token before every other step of sampling. */
struct submit_bias {
    int32_t token;
    float bias;
};

/* Identifies a full page that requests may share, and its parent; kvpager/kvpager.h defines the
 * ids. */
struct msg_block {
    /* parent 0: the block is the first one of a text */
    uint64_t id, parent;
    /* isolation key of SUBMIT; blocks of another key have other ids */
    uint8_t isolation_key[16];
};

/* Bit of the last byte of an isolation key that was made with a salt of the client. */
#define ISOLATION_SALTED 1u

/* A picture with rows in block @block of the published ones: its first row is at token @at of the
 * block, below 0 if it is in an earlier block. */
struct msg_block_picture {
    uint32_t block;
    int32_t at;
    uint8_t digest[32];
};

/* Tier that holds the blocks, and the kind of data: the keys of layers without a window, or the
 * additional data that a sequence needs to continue behind a block (the keys of layers with a
 * window, the recurrent state). */
enum block_tier { BLOCKS_DEVICE, BLOCKS_HOST, BLOCKS_DISK, BLOCK_TIERS };
enum block_kind { BLOCKS_FULL, BLOCKS_LATENT, BLOCKS_WINDOW, BLOCKS_STATE, BLOCK_KINDS };

/* Changes of one tier and kind: the freed blocks, then the published blocks, each with page_tokens
 * tokens, and the pictures in the order of the blocks; @window in tokens, 0 except for
 * BLOCKS_WINDOW. A row of a picture whose content was forgotten has a negative token. */
struct msg_blocks {
    uint32_t page_tokens, tier, kind, window;
    uint32_t n_gone, n_came, n_pictures;
    const uint64_t *gone;
    const struct msg_block *came;
    const int32_t *tokens;
    const struct msg_block_picture *pictures;
};

#define BLOCKS_MAX_PAGE 256u /* most tokens of a block */

#define SUBMIT_PICTURES_MAX 256u
#define PICTURE_DIGEST 32u             /* bytes of a digest */
#define PICTURE_BYTES_MAX (192u << 20) /* most bytes of the pixels of one picture */
#define PICTURE_PART (1u << 20)        /* most bytes of pixels in one PICTURE */
#define PICTURE_SENT (64u << 10)       /* bytes of pixels in a PICTURE that this front sends */

/* A picture in a prompt: tokens [at, at + n_rows) stand for its rows; they are all the same token,
 * and only their number counts. SUBMIT has no pixels: a worker that has neither pages nor rows of
 * the picture asks for them with NEED_PICTURE. */
struct submit_picture {
    /* in tokens and rows; see struct picture_layout */
    uint32_t at, n_rows, n_columns, n_lines, n_positions;
    /* of the resized picture in pixels, as the encoder gets it */
    uint32_t width, height;
    /* hash of the resized pixels, their size and the projector */
    uint8_t digest[PICTURE_DIGEST];
};

/* Asks for the pixels of picture @index of request @id; the worker may ask again after a preemption
 * of the request. All requests of one isolation key with this digest have the same picture; the
 * message names one of them. */
struct msg_need_picture {
    uint64_t id;
    uint32_t index, zero;
};

/* Pixels that the worker asked for: rows from the top, three bytes a pixel. Consecutive messages
 * carry parts of them, so that other messages can be sent in between: bytes [offset, offset +
 * rgb.len) of @total, which is 3 * width * height. total 0: there are no pixels, and requests that
 * need them end with @status (400 to 599), @code and @why, as struct err. */
struct msg_picture {
    /* id of the request in NEED_PICTURE */
    uint64_t id;
    uint32_t index, offset, total;
    /* HTTP status; 0 with pixels */
    uint16_t status;
    struct str rgb, why, code;
};

/* A generation to be made. The front assigns ids, each once in the life of a worker.
 * msg_submit_parse() guarantees: 0 < n_prompt <= n_tokens, n_tokens - n_prompt <= max_new, max_new
 * > 0, counts within their limits, parameters in their ranges. The scheduler checks that tokens are
 * in the vocabulary and fit the context. */
struct submit {
    /* group: the first id of the choices of one prompt */
    uint64_t id, group, seed, session;
    /* clock_monotonic; deadline 0: none */
    int64_t arrived_ns, deadline_ns;
    /* tokens[0, n_prompt) is the prompt; the rest is output of a resumed request */
    uint32_t tenant, n_prompt;
    /* limits of the number of output tokens, including those of a resumed request */
    uint32_t max_new, min_new;
    /* n_faults: number of worker deaths at which the request was present */
    uint16_t choice, n_faults, flags;
    /* priority among the requests of one tenant, lower first */
    int16_t priority;
    /* the tenant's weight in thousandths; 0 counts as 1000 */
    uint32_t weight_milli;
    /* the tenant's class: 0 normal, 1 interactive, 2 batch */
    uint8_t class;
    /* caches are shared only between requests with equal keys */
    uint8_t isolation_key[16];
    uint8_t n_top;
    /* with SUBMIT_PROMPT_LOGPROBS */
    uint8_t n_prompt_top;
    struct sampling sampling;
    uint32_t n_tokens, n_stop_ids, n_bias, n_stops;
    /* stop_ids: tokens that end the generation and are not part of its text */
    const int32_t *tokens, *stop_ids;
    const struct submit_bias *bias;
    /* compared with the bytes of tokens; the front cuts the text */
    struct str stops[SUBMIT_STOPS_MAX];
    /* grammar, triggers: as grammar/constraint.h takes them. prediction: the probable output as
     * token ids, int32_t of this machine; used for drafts only. */
    struct str grammar, triggers, prediction;
    /* Token ids, as int32_t. allowed: the allowed tokens; empty: all tokens. bad_words: words that
     * must not occur, each as its length and its ids. All are int32_t. */
    struct str allowed, bad_words;
    /* token ids as int32_t that end a repetition for DRY */
    struct str breakers;
    /* name of the tenant for another front, which numbers tenants itself
     * (daemon/models/guests.h) */
    struct str tenant_name;
    /* pictures of the prompt in the order of their places; they do not overlap */
    uint32_t n_pictures;
    const struct submit_picture *pictures;
};

#define SUBMIT_WHOLE (64u << 10) /* most bytes of a SUBMIT, or of a part, in one frame */

extern uint32_t msg_submit_whole; /* SUBMIT_WHOLE; the front's simulator makes it smaller */

/* Head of a part: of bytes [at, at + n) of the @total bytes of request @id's SUBMIT, where n is
 * what is left of the frame. */
struct msg_submit_part {
    uint64_t id;
    uint32_t at, total;
};

/* A SUBMIT of which parts have come. Zeroed: none. */
struct submit_parts {
    uint64_t id;
    /* 0: none */
    uint32_t total;
    struct buf text;
};

/* Tells the worker the kind of end of generation @id, which ended normally: only the front parses
 * tool calls. A request that still runs ends, because the front has found a stop string; its pages
 * are kept as after any other turn. The message only improves decisions: it may be lost, or come
 * after the session's next turn. */
struct turn_end {
    uint64_t id, session;
    /* 1: the client will run tools and return; 0: the answer is final */
    uint32_t calls;
    uint32_t zero;
};

/* Device time of a tenant at a worker since the last report. */
struct msg_served {
    uint32_t tenant, zero;
    uint64_t ns;
};

#define SERVED_MAX 256u

/* Events of a request: ACCEPTED, any number of TOKENS, then FINISH; or REJECTED alone. */
enum event_kind { EVENT_ACCEPTED, EVENT_REJECTED, EVENT_TOKENS, EVENT_FINISH };
enum finish_reason {
    FINISH_NONE,
    /* an end token or a stop id, which is the last token, or a stop string */
    FINISH_STOP,
    /* max_new or the end of the context */
    FINISH_LENGTH,
    /* cancelled by the front */
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    /* status and text give the reason */
    FINISH_ERROR,
};

/* An alternative token and its log probability (natural logarithm). */
struct event_top {
    int32_t token;
    float logprob;
};

/* An event of a request. REJECTED and FINISH end it; a FINISH may carry the last tokens. */
struct event {
    uint64_t id;
    /* status: HTTP status of REJECTED and FINISH_ERROR */
    uint16_t kind, finish, status;
    uint8_t n_top, n_prompt_top;
    uint32_t from, n_tokens;
    /* n_cached, n_drafted, n_accepted: totals so far */
    uint32_t n_cached, n_drafted, n_accepted, retry_ms;
    /* the part of n_drafted and n_accepted from submit.prediction */
    uint32_t n_predicted, n_predicted_accepted;
    /* time when the request was first in a step; 0: not yet */
    int64_t first_step_ns;
    /* Times when the worker had computed the prompt and the latest token; 0: not yet. The step that
     * does both is divided evenly among the prompt's rows in it and the token. */
    int64_t prompt_end_ns, computed_ns;
    /* [n_tokens] */
    const int32_t *tokens;
    /* [n_tokens] or NULL */
    const float *logprobs;
    /* [n_tokens][n_top] or NULL */
    const struct event_top *top;
    /* [n_tokens] or NULL */
    const uint64_t *digests;
    /* FINISH or first TOKENS with SUBMIT_PROMPT_LOGPROBS: log probabilities of tokens 1 .. n_prompt
     * - 1 of the prompt, in this order. */
    uint32_t n_prompt_lp;
    const float *prompt_lp;
    /* [n_prompt_lp][n_prompt_top] or NULL */
    const struct event_top *prompt_top;
    /* reason of REJECTED and FINISH_ERROR, as in struct err */
    struct str text, code, param;
    /* FINISH_STOP with SUBMIT_POOL_*: n_embd numbers; SUBMIT_POOL_NONE: n_embd for each token;
     * SUBMIT_SCORE: 1 */
    uint32_t n_vector;
    const float *vector;
};

/* x_pack() appends the payload of a frame to @out. Returns 0, or -errno of buf_add() with nothing
 * appended. Its struct must satisfy the conditions that x_parse() checks. x_parse() reads @len
 * bytes at @data, which is 8-byte aligned. Returns 0, or -EPROTO with *m unchanged. */
int msg_open_pack(struct buf *out, const struct msg_open *m);
int msg_open_parse(const void *data, uint32_t len, struct msg_open *m);
int msg_progress_pack(struct buf *out, const struct msg_progress *m);
int msg_progress_parse(const void *data, uint32_t len, struct msg_progress *m);
int msg_ready_pack(struct buf *out, const struct msg_ready *m);
int msg_ready_parse(const void *data, uint32_t len, struct msg_ready *m);
int msg_submit_pack(struct buf *out, const struct submit *m);
int msg_submit_parse(const void *data, uint32_t len, struct submit *m);
/* Returns the length of the SUBMIT that msg_submit_pack() makes of @m. */
uint32_t msg_submit_len(const struct submit *m);
/* Appends the payload of the SUBMIT_PART that begins at byte @at < msg_submit_len() of the SUBMIT;
 * it has the next msg_submit_whole bytes, or the rest. @m is the same for all parts, except that
 * its numbers count as they are when the first part is made. Returns the number of bytes of the
 * SUBMIT in it, or -errno with nothing appended. */
int msg_submit_pack_part(struct buf *out, const struct submit *m, uint32_t at);
/* Takes a SUBMIT_PART. Returns 1 when it was the last one: then p->text is the payload of the
 * SUBMIT; 0; -EPROTO or -ENOMEM. */
int msg_submit_add_part(struct submit_parts *p, const void *data, uint32_t len);
/* Forgets the parts, if they are those of request @id. */
void msg_submit_drop(struct submit_parts *p, uint64_t id);
void submit_parts_deinit(struct submit_parts *p); /* forgets the parts; accepts a zeroed one */
int msg_cancel_pack(struct buf *out, uint64_t id);
int msg_cancel_parse(const void *data, uint32_t len, uint64_t *id);
int msg_turn_end_pack(struct buf *out, const struct turn_end *m);
int msg_turn_end_parse(const void *data, uint32_t len, struct turn_end *m);
/* Parses SERVED, whose payload is an array. Returns the number of entries, or -EPROTO. */
int msg_served_parse(const void *data, uint32_t len, const struct msg_served **out);
int msg_need_picture_pack(struct buf *out, const struct msg_need_picture *m);
int msg_need_picture_parse(const void *data, uint32_t len, struct msg_need_picture *m);
int msg_picture_pack(struct buf *out, const struct msg_picture *m);
int msg_picture_parse(const void *data, uint32_t len, struct msg_picture *m);
int msg_blocks_pack(struct buf *out, const struct msg_blocks *m);
int msg_blocks_parse(const void *data, uint32_t len, struct msg_blocks *m);

/* Appends an event to an EVENTS payload. Returns 0, or -errno with nothing appended. */
int msg_event_pack(struct buf *out, const struct event *e);
/* Position in an EVENTS payload: `at` is the next event, at <= end. */
struct event_cursor {
    const uint8_t *at, *end;
};
/* Starts at the first event of a payload. @data is 8-byte aligned and outlives the cursor and its
 * events. */
void msg_events_begin(struct event_cursor *c, const void *data, uint32_t len);
/* Reads the next event. Returns 0 with *out; 1 at the end; -EPROTO, after which the cursor must not
 * be used. */
int msg_events_next(struct event_cursor *c, struct event *out);
