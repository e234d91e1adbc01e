#pragma once

/*
 * api - the HTTP side of the front: connections, endpoints, streams. It turns requests into `struct
 * submit` for the worker through a port that daemon/ implements, and the worker's events into JSON
 * and SSE. Everything runs on one libuv loop, except long work, which a pool of threads does
 * (limits/job_pool.h).
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/generation/picture_fetch.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "base/list.h"
#include "proto/messages.h"
#include "text/template.h"
#include "text/tokenizer.h"
#include "vision/fit.h"

struct api;
struct auth; /* keys of clients that were read */
struct flight_record;
struct http;
struct tls_config;
struct model; /* a served model, and the handle by which its worker calls the api */

/* Port through which the api reaches a model's worker. While the worker is down, submit() queues
 * or answers -EAGAIN; the port calls api_worker_up() when a new one is ready and api resubmits
 * every live generation itself. */
struct api_port {
    /* Sends the request, or of a large one the next part, from its byte *@sent on. Returns 0: it is
     * sent; 1: *@sent has moved, and the rest follows in other calls, which cancel() ends; -EAGAIN;
     * -errno. A request of which a part is sent is the only one; others wait if they are larger
     * than SUBMIT_WHOLE. */
    int (*submit)(struct api_port *p, const struct submit *m, uint32_t *sent);
    void (*cancel)(struct api_port *p, uint64_t id);
    void (*turn_end)(struct api_port *p, const struct turn_end *m);
    /* Sends a part of a picture that the worker asked for: 0; -EAGAIN: later, while much is
     * unsent; -errno. NULL: the model takes no pictures. */
    int (*picture)(struct api_port *p, const struct msg_picture *m);
    /* Called when a request waits for the model: loads it, unless that is under way.
     * api_model_set() and then api_worker_up() or api_worker_failed() follow, the last one
     * possibly at once. NULL: the model is always loaded. */
    void (*want)(struct api_port *p);
    /* Called for a model that is loaded on demand when a request of @tenant needs it. */
    void (*use)(struct api_port *p, uint32_t tenant, double weight);
    /* Returns the decisions about request @id, like flight_story(). NULL: they are unknown. */
    uint32_t (*story)(struct api_port *p, uint64_t id, struct flight_record *out, uint32_t max);
};

/* A served model in the front. All pointers outlive the api. A model that is loaded on demand may
 * have no tokenizer and no template before api_model_opened(). */
struct api_model {
    /* the name that clients use */
    const char *id;
    /* NULL-terminated */
    const char *const *aliases;
    /* NULL-terminated: words for lists; NULL: none */
    const char *const *tags;
    const struct tokenizer *tokenizer;
    /* NULL: the model has none */
    const struct template *template;
    /* formats of tool calls and reasoning are detected in it */
    const char *template_source;
    size_t template_len;
    /* The model's image encoder; NULL: the model takes no pictures. projector_id: [32], a digest of
     * its file. */
    const struct projector *projector;
    const uint8_t *projector_id;
    struct picture_budget picture_budget;
    /* pictures keep their aspect and get black borders */
    bool picture_pads;
    enum picture_background picture_background;
    /* the system message of chats that have none; NULL: none */
    const char *system;
    /* Set from each worker that becomes ready, while the pool's threads read them. Before that,
     * max_context is what the file and the options allow; 0: unknown. */
    _Atomic uint32_t max_context, page_tokens, n_pages, n_embd;
    uint32_t n_vocab;
    /* the file's context; 0: its header was not read */
    uint32_t n_ctx_train;
    /* llama.cpp's number of the vocabulary's kind */
    uint8_t vocab_type;
    /* an embedding model: computes vectors, generates no text */
    bool encoder;
    /* a reranker: scores how well documents answer a query */
    bool ranks;
    /* Known before the model is opened: its template has a form of reasoning; a projector lies
     * beside its file. */
    bool reasons, sees;
    /* With ranks: the texts before, between and behind query and document in the prompt; they
     * may contain special tokens. */
    struct {
        const char *before, *between, *behind;
    } pair;
    /* SUBMIT_POOL_* of its vectors unless the request says otherwise; 0: LAST */
    uint16_t pool;
    /* the time of the file */
    int64_t created_unix;
    /* default of requests: enum thinking_switch */
    uint8_t thinking;
    /* reasoning stays in the content of chats that do not set it */
    bool inline_reasoning;
    /* Variables of the template for requests that do not set them: an object that
     * api_read_kwargs() has read; NULL: none. */
    struct yyjson_val *template_kwargs;
    /* an output ends when this many last tokens repeat; 0: never */
    uint32_t loop_tokens;
    /* loop_tokens is a default: not for ignore_eos, tools, schemas */
    bool loops_of_chats;
    /* defaults of requests; NULL: those of params_init() */
    const struct sampling *sampling;
    /* the source of these values, for clients; NULL: unknown */
    const char *sampling_source;
    /* default seed of requests; NULL: a random one */
    const uint64_t *seed;
    /* architecture named by the file, or NULL */
    const char *arch;
    /* the file's name without folders, or NULL */
    const char *file;
    /* size of the file */
    uint64_t n_bytes;
    /* number of weights, and bytes of the tensors; 0: not known */
    uint64_t n_params, tensor_bytes;
    /* unloaded after this long without a request; 0: not for this reason */
    uint32_t keep_alive_s;
    /* Fingerprint of file and program: equal ones give equal tokens. NULL: it was never loaded. It
     * comes with the first worker. */
    const char *_Atomic fingerprint;
};

/* States of a model that is loaded on demand: api/generation/model.h. */
enum api_model_state {
    API_MODEL_ABSENT,
    API_MODEL_LOADING,
    API_MODEL_READY,
    API_MODEL_UNLOADING,
    API_MODEL_FAILED
};

/* Waits until the folders of models have been read again; list_remove(&link) ends the wait. */
struct api_rescan {
    struct list link;
    /* called once, later, after removal from the list */
    void (*over)(struct api_rescan *r);
};

/* A long operation on the models; embedded in the object that waits for it. */
struct api_task {
    /* the daemon's, as `of` */
    struct api_rescan rescan;
    void *of;
    /* Reports the progress of a pull: a JSON object, as weftctl pull --json prints it. May be
     * NULL. */
    void (*line)(struct api_task *t, const char *json, size_t len);
    /* Reports the end: success (@err NULL), after the folders of models were read again, or the
     * error. Called once, never from within the call that began the task. */
    void (*over)(struct api_task *t, const struct err *err);
};

/* A preset to make; NULL and 0 stand for the values of its base. */
struct api_preset {
    /* from: of a served model */
    const char *name, *from;
    /* NAME=VALUE,... */
    const char *sampling;
    const char *template, *system;
    uint32_t max_context;
};

/* Operations on models for clients with the right. Returns 0, or negative with @err and @t not
 * taken. */
struct api_manage {
    int (*pull)(void *ctx, const char *name, struct api_task *t, struct err *err);
    int (*create)(void *ctx, const struct api_preset *p, struct api_task *t, struct err *err);
    int (*remove)(void *ctx, const char *name, struct api_task *t, struct err *err);
    /* over() is not called; a pull ends */
    void (*cancel)(void *ctx, struct api_task *t);
};

/* KV events (daemon/models/kv_events.h): published batches, times that a subscriber fell so far
 * behind that it missed batches, and batches that were sent again on request. */
struct api_kv_counts {
    uint64_t n_published, n_overruns, n_replayed;
};

struct api_opts {
    uint32_t max_connections, max_running, max_queued, max_n;
    uint32_t max_body_bytes, max_header_bytes;
    uint32_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, keepalive_ms, stall_timeout_ms;
    uint32_t stream_buffer_bytes, default_max_tokens, request_timeout_ms;
    uint32_t max_header_count;
    /* longest time that a request waits for its model to be loaded */
    uint32_t load_wait_ms;
    /* stored responses; 0: none */
    uint32_t max_stored, stored_ttl_s;
    uint64_t stored_bytes;
    /* memory that the model takes which is loaded at the start; 0: it is not known */
    uint64_t model_bytes;
    /* NULL: none needed */
    const char *api_keys_file;
    /* the database of what outlives the process; NULL: nothing does */
    const char *state_file;
    /* starts while another daemon with this database has requests */
    bool beside;
    /* usage of an earlier version, which is added to it; or NULL */
    const char *usage_file;
    /* the time of day for usage and quotas; NULL: the machine's */
    int64_t (*unix_s)(void *ctx);
    const char *const
        *hosts; /* allowed Host names besides loopback ones; NULL-terminated, or NULL */
    /* origins whose pages may use the service; ends with NULL; "*": all */
    const char *const *cors_origins;
    const char *owned_by;
    /* "logits_digest": true is allowed */
    bool digests;
    /* constrained output is complete when a limit cuts it */
    bool complete_output;
    /* requests are answered whatever model they name */
    bool any_model_name;
    /* GET / gives a browser the page */
    bool web_page;
    /* /slots is served */
    bool slots;
    /* log lines per second for the requests of one client; 0: no limit */
    uint32_t log_lines;
    /* the beginning of a chat's next turn is computed ahead */
    bool prewarm;
    const uint64_t
        *share_secret; /* [2] keys of sharing come from it; NULL: from one of this process */
    /* Reads the folders of models again and adds or withdraws models before @r->over() is
     * called. Returns false if that was done just now; then @r is not used. NULL: the models
     * never change. */
    bool (*rescan)(void *ctx, struct api_rescan *r);
    /* NULL: nothing */
    const struct api_manage *manage;
    /* Unloads the model @id once its requests have ended; the next request loads it. 0, or
     * negative with @err: it stays. */
    int (*sleep)(void *ctx, const char *id, struct err *err);
    /* context of rescan, manage and sleep */
    void *models_ctx;
    /* receives spans; accepted by api_check_otlp(); NULL, "": none */
    char *otlp_endpoint;
    /* reported with the others; NULL: there are none */
    const struct api_kv_counts *kv_events;
    /* Called with each request's salt and the isolation key made with it; may be NULL. */
    void (*on_salt)(void *ctx, const uint8_t isolation_key[16], struct str salt);
    void *salt_ctx;
    /* Decodes a picture like picture_decode_fit(), possibly in another process; called on any
     * thread but the loop's. NULL: no model takes pictures. */
    picture_decode_fn decode;
    void *decode_ctx;
    /* of a file */
    uint32_t picture_max_megapixels;
    /* addresses of pictures; zeroed: none is fetched */
    struct picture_fetch_opts picture_fetch;
    /* tenants with the right to manage; "*": all; or NULL */
    const char *const *managers;
};

/* A row of the tenants file. 0 means no limit, except for the weight. "default" applies to tenants
 * without a row, and to the values that a row leaves out. */
#define API_TENANT_KEYS 16
#define API_TENANT_UIDS 16
#define API_TENANT_MODELS 32
#define API_TENANTS_MAX 1024
struct api_tenant {
    /* share: name of the group that shares prefixes; "": none */
    char name[64], share[64];
    /* names of its API keys, besides its own name */
    char keys[API_TENANT_KEYS][64];
    /* users at the other end of a UNIX socket */
    uint32_t uids[API_TENANT_UIDS];
    /* Names of the models that it may use; "*" at the end matches every ending; n_models 0: all. */
    char models[API_TENANT_MODELS][128];
    uint32_t n_keys, n_uids, n_models;
    double weight;
    /* 0 normal, 1 interactive, 2 batch */
    uint32_t class;
    uint32_t requests_per_minute, max_running, max_queued, max_context;
    /* in place of api_model.loop_tokens; 0: the model's */
    uint32_t loop_tokens;
    uint64_t tokens_per_minute, kv_tokens;
    uint64_t requests_per_day, requests_per_month, tokens_per_day, tokens_per_month;
};

/* State that /health, /metrics and the admin socket show. */
enum api_health { API_STARTING, API_SERVING, API_REPLACING, API_FAILED, API_DRAINING };

struct api_tenant_info { /* for the admin socket */
    char name[64];
    double weight;
    uint32_t class;
    struct tenant_stats stats;
};

struct api_request_info { /* one live generation, for the admin socket */
    uint64_t id;
    char request_id[64];
    /* "queued", "running" */
    const char *endpoint, *state;
    /* the session it belongs to; 0: none is known */
    uint64_t session;
    /* source: a header, a field, "conversation", or NULL */
    const char *session_from;
    uint32_t n_prompt, n_output, n_cached, max_new;
    /* "prompt", "pages", "place", ...: proto/flight.h */
    const char *waits_for;
    /* until the first token or its place in the batch; < 0: unknown */
    int64_t expect_ms;
    /* tokens of the prompt that are computed or cached; a lower bound */
    uint32_t n_done;
    int64_t age_ms;
};

/* A generating request that has ended. Times from its receipt; 0: not reached. */
struct api_ended_info {
    char request_id[64], tenant[64];
    const char *endpoint, *finish;
    int status;
    uint32_t n_prompt, n_cached, n_output;
    /* since its end */
    int64_t ago_ms;
    int64_t queue_ms, ttft_ms, total_ms;
};

/* Selects ended requests: of @tenant ("": of all), at most @oldest_s and at least @newest_s ago;
 * the slowest or the last first. */
struct api_ended_filter {
    char tenant[64];
    uint64_t oldest_s, newest_s;
    bool slowest;
};

/* Every function runs on the loop's thread. Makes an api without listeners; copies @opts, but the
 * objects to which it and the other arguments point must outlive the api. Returns 0 or -errno. */
int api_new(struct api **out, uv_loop_t *loop, const struct api_opts *opts,
            const struct api_model *model, struct api_port *port, struct clock *clock);
/* Checks that spans can be sent to @endpoint; "" is valid. Returns 0, or -EINVAL with @err. */
int api_check_otlp(const char *endpoint, struct err *err);
/* Reads variables of chat templates, a JSON object as in a request. Returns 0 with *out, which the
 * caller frees, or -errno with @err. */
int api_read_kwargs(const char *text, struct yyjson_doc **out, struct err *err);
/* Checks that @file is a file of API keys; "" is valid. Returns 0, or -errno with @err. */
int api_check_keys(const char *file, struct err *err);
/* Returns true if no transaction is under way, so that the state can be written. */
bool api_can_save_state(const struct api *a);
/* Writes the state that is not in the database yet, after api_close(), when the loop has run out or
 * api_can_save_state(). Returns 0, or -errno: a part is lost, which is logged. */
int api_save_state(struct api *a);
struct api *api_free(struct api *a); /* after api_close() and the loop has run out */

/* Takes over the certificate of listeners with TLS; open connections continue with theirs. */
void api_set_tls(struct api *a, const struct tls_config *config);
int api_listen_tcp(struct api *a, const char *host, int port, bool tls, int *bound_port,
                   struct err *err);
int api_listen_unix(struct api *a, const char *path, struct err *err);
int api_listen_fd(struct api *a, int fd, bool tls, struct err *err); /* inherited, listening */
int api_last_fd(const struct api *a);                                /* http_server_last_fd() */
void api_own_paths(struct api *a, bool own);                         /* http_server_own_paths() */

/* Returns the model that api_new() got, which serves requests that name none. */
struct model *api_first_model(const struct api *a);
/* Adds a model. While the service listens, only from the loop's thread. Returns 0 or -ENOMEM. */
int api_add_model(struct api *a, const struct api_model *info, struct api_port *port,
                  struct model **out);
/* api_new_model() makes a model that no request finds yet. api_replace_model() puts @next, which
 * has the names of @old and is READY or becomes so now, in place of @old: requests that wait for
 * @old then wait for @next. @old finishes its own requests; when api_model_use() reports none,
 * api_remove_model() frees it. */
int api_new_model(struct api *a, const struct api_model *info, struct api_port *port,
                  struct model **out);
void api_replace_model(struct model *old, struct model *next);
void api_remove_model(struct model *m); /* a model that no request finds (any more) */
/* Returns true if the vocabulary has the tokens around the pictures of @p. */
bool api_marks_pictures(const struct projector *p, const struct tokenizer *t);
/* Returns true if a model with the chat template @source writes reasoning. */
bool api_template_reasons(const char *source, size_t len);
/* Sets the name of the loop's current activity; @what must stay valid. The event loop_busy reports
 * the activity that took longest in a long iteration. On the loop's thread. */
void api_mark_loop(const char *what);
/* Sets the presets that cannot be read, which /v1/models names: NULL-terminated, or NULL; not
 * copied. */
void api_set_bad_presets(struct api *a, const char *const *names);
/* Hides a model from new requests; it finishes its own. Not for the last model. */
void api_withdraw_model(struct model *m);
/* Notes that the model's tokenizer and template are available. */
void api_model_opened(struct model *m);
/* Sets the state of a model that is loaded on demand; @progress of loading, 0 to 1. READY comes
 * with api_worker_up(), FAILED with api_worker_failed(). */
void api_model_set(struct model *m, enum api_model_state state, float progress);
/* Use of a model, from which follow whether and when it is unloaded. */
struct api_model_use {
    /* generations that wait for its worker's tokens */
    uint32_t n_running;
    /* requests that have not been answered */
    uint32_t n_jobs;
    /* requests among n_jobs that wait for the model to be loaded */
    uint32_t n_waiting;
    int64_t last_used_ns;
    /* Time in seconds for which the last request asked to keep the model loaded; negative: for
     * ever; API_KEEP_UNSET: no request asked. */
    int64_t keep_alive_s;
};
#define API_KEEP_UNSET INT64_MIN
/* Returns the current use of @m, which was not given to api_remove_model(). */
struct api_model_use api_model_use(const struct model *m);
/* Notes that the worker was ended without a generation: the model is ABSENT, or stays FAILED. */
void api_worker_stopped(struct model *m);

/* Handle calls of the port of @m. */
void api_on_event(struct model *m, const struct event *e);
void api_on_stats(struct model *m, const struct msg_stats *s);
void api_on_served(struct model *m, const struct msg_served *s, uint32_t n);
/* Handles a worker's request for the pixels of a picture, which are sent over the port. */
void api_on_need_picture(struct model *m, const struct msg_need_picture *n);
void api_worker_down(struct model *m); /* streams wait; /health is 503 */
/* Notes that no worker is expected soon, for reason @why (a sentence without full stop): waiting
 * and new requests fail with 503 and @retry_ms until api_worker_up(). */
void api_worker_failed(struct model *m, const char *why, uint32_t retry_ms);
/* Notes that a worker is ready, and submits every live generation again with the tokens it has.
 * @n_faults(id) returns the number of deaths at which a request was present; with three it fails
 * with 500 engine_fault. */
void api_worker_up(struct model *m, uint32_t (*n_faults)(struct api_port *p, uint64_t id));
/* Reports that a worker of @m that answered -EAGAIN takes submits again. Without it the api tries
 * again after some time. */
void api_worker_room(struct model *m);
struct api_guest;
/* Adds a request of another daemon's front, which has the client; the worker of @m treats it like a
 * request of a client here. @payload is a SUBMIT (proto/messages.h) in which the id is the other
 * front's; it is taken over. @tell gets its events as a worker would send them, the last with
 * EVENT_REJECTED or EVENT_FINISH; the request is freed after that. @need asks the other front for
 * the pixels of its picture @index, for api_guest_picture(). Returns 0, -EPROTO or -ENOMEM. */
int api_guest_new(struct api_guest **out, struct model *m, struct buf *payload,
                  void (*notify)(void *ctx, struct api_guest *g, const struct event *e),
                  void (*need)(void *ctx, struct api_guest *g, uint32_t index), void *ctx);
/* Takes the next part of a picture. Returns false if the part is not the expected one. */
bool api_guest_picture(struct api_guest *g, const struct msg_picture *m);
/* Cancels the guest, which reports nothing more, and frees it. */
void api_guest_free(struct api_guest *g);
/* Returns the id by which the other front knows the guest. */
uint64_t api_guest_id(const struct api_guest *g);
void api_set_health(struct api *a, enum api_health h);
enum api_health api_health(const struct api *a); /* the state that clients see */

/* Service life. */
/* Called before api_drain() if another process keeps listening: accepts no new connections,
 * serves requests that arrive on open ones, and closes each connection after its answer. */
void api_stop_accepting(struct api *a);
/* Accepts no new connections. A new request on a connection that has been answered gets 503, and
 * the connection is closed. */
void api_drain(struct api *a);
void api_close(struct api *a);      /* everything ends now: streams get an error event */
bool api_busy(const struct api *a); /* generations or unfinished responses exist */
/* Reads the file of keys, on any thread and one at a time. Returns 0 with *out, or -errno with
 * @err. */
int api_read_keys(const struct api *a, struct auth **out, struct err *err);
void api_set_keys(struct api *a, struct auth *keys); /* takes over what api_read_keys() has read */
struct auth *api_free_keys(struct auth *keys);
/* Replaces the tenants. Returns 0 or -ENOMEM. */
int api_set_tenants(struct api *a, const struct api_tenant *rows, uint32_t n);

/* Admin. */
void api_stats(const struct api *a, struct api_stats *out);
uint32_t api_requests(const struct api *a, struct api_request_info *out, uint32_t max);
/* Reads ?tenant=NAME&oldest_s=N&newest_s=N&order=slowest, each of which may be missing. Returns 0,
 * or -EINVAL with @err, a 400. */
int api_read_ended(const struct http *h, struct api_ended_filter *out, struct err *err);
/* Writes those of the last ended requests that @f selects to @out. Returns their number; -ENOENT:
 * there is no such tenant; -ENOMEM. */
int api_ended(const struct api *a, const struct api_ended_filter *f, struct api_ended_info *out,
              uint32_t max);
/* Finds the generation of the recent request with this x-request-id, the first one if it has
 * several. Returns 0, -ENOENT, or -ENOTUNIQ: requests of several tenants have it. */
int api_find(const struct api *a, const char *request_id, uint64_t *id);
#define API_STORY_MORE 16u /* records that a story may have besides the worker's */
/* Writes the worker's @n records @r of generation @id, which may be none, to @out of
 * @n + API_STORY_MORE records, with the waits at the front; *begin_ns: its receipt. Returns their
 * number. */
uint32_t api_story(const struct api *a, uint64_t id, const struct flight_record *r, uint32_t n,
                   struct flight_record *out, int64_t *begin_ns);
/* Returns what was left out of the schemas of the tools of generation @id, "TOOL#/POINTER, ..";
 * "": nothing, or it is not known any more. */
const char *api_left_out(const struct api *a, uint64_t id);
uint32_t api_tenants(const struct api *a, struct api_tenant_info *out, uint32_t max);
/* Writes the reason why generation @id waits, and how long, to @out of @size bytes. Returns false
 * if it is not live or has tokens. */
bool api_wait_text(const struct api *a, uint64_t id, char *out, size_t size);
/* Writes the usage of all keys and the quotas of all tenants as JSON. Returns 0 or -errno. */
int api_usage(const struct api *a, struct buf *out);
bool api_cancel(struct api *a, uint64_t id);
