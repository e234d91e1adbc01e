#pragma once

/*
 * models - all models that the daemon serves: the one of the option model, which is loaded at the
 * start, and those of presets and of a folder, which are loaded when a request names them. This
 * file decides which models have workers.
 *
 *      ABSENT ──wanted──> OPENING ──> QUEUED ──> LOADING ──> READY ──> LEAVING ──> ENDING
 *         ^                  └───────────┴──────────┴──> FAILED                      │
 *         └──────────────────────────────────────────────────────────────────────────┘
 *
 * An unload takes a model that is QUEUED or LOADING, and that no request waits for, back to ABSENT.
 * OPENING: a thread reads metadata and tokens, once; before later loads it looks whether a file of
 * a folder was replaced, which begins a swap. QUEUED: the model waits for memory. LEAVING:
 * running requests continue, new ones are not accepted. ENDING: the process has not ended yet.
 * FAILED: a request that arrives after a pause makes weftd try again.
 *
 * Memory: what a model needs (weights, buffers, KV: by engine_fit() once its file was opened) is
 * counted from LOADING to ENDING, and the sum stays below models-memory. To make room for a QUEUED
 * model, the least recently used model without a running request leaves; if all have running
 * requests, the model that has been loaded longest accepts no new ones and leaves when they have
 * ended. A model does not leave for a tenant that has used more of the memory than the model's own
 * tenants (model_share.h), and pinned models never leave. No running request is ended, no model
 * waits for ever, and no tenant waits longer because another tenant's requests name many models.
 *
 * A daemon that has only the option model keeps that model loaded; keep-alive-s or the operator can
 * unload it.
 */

#include "api/api.h"
#include "daemon/config/config.h"
#include "daemon/models/kv_events.h"
#include "daemon/workers/workers.h"

struct models;

struct models_opts {
    uv_loop_t *loop;
    const struct config *config;
    struct clock *clock;
    struct kept *kept;
    /* NULL: events of the prefix caches are not published */
    struct kv_events *kv_events;
    /* Another daemon runs beside this one: memory in use will not be free soon, and the disk tier
     * is not used before models_use_disk(). */
    bool beside;
    /* models_start() follows when the workers of the other daemon have ended */
    bool waits;
    /* File of the disk tier of the option model; -1: none. Other models have files beside it. */
    int disk_fd;
    void *ctx;
    /* called when models_hand_over() is done */
    void (*on_away)(void *ctx);
    /* called for each answer to models_offer(), one for each model */
    void (*on_answer)(void *ctx);
    /* Called once, when the first model is served; at once if none is loaded at the start. */
    void (*on_ready)(void *ctx);
    /* Reports that the model of the option model cannot be served (workers_opts.on_refused). */
    void (*on_refused)(void *ctx, const char *why, int error);
};

/* Returns 0 or -ENOMEM; models_open() follows. */
int models_new(struct models **out, const struct models_opts *o);
/* Reads presets and folder, and opens the model of the option model. Returns 0, or -errno with
 * @err. */
int models_open(struct models *m, struct err *err);
/* Returns the bytes of memory that the model takes which is loaded at the start; 0: there is none,
 * or a device has memory of its own. */
uint64_t models_bytes_at_start(const struct models *m);
/* Creates the api that serves the models. Returns 0 or -errno. */
int models_open_api(struct models *m, const struct api_opts *o, struct api **out);
/* Implements api_opts.rescan for a daemon with folders: adds new presets and files and withdraws
 * removed ones, at most every two seconds. @wait may be NULL. */
bool models_rescan(void *models, struct api_rescan *wait);
/* Operations on models for clients with the right to use them, in a daemon with folders; the
 * context is struct models. */
extern const struct api_manage models_manage;
/* Implements api_opts.sleep by models_unload() of the model @id. */
int models_sleep(void *models, const char *id, struct err *err);
/* Starts the workers of the models that are loaded at the start. Returns 0 or -errno. */
int models_start(struct models *m);
/* Releases the files of the disk tier for another daemon: workers write the missing pages while
 * they serve, and then do not use the files any more. @left is called once, possibly before this
 * returns, when that is done or takes too long. */
void models_release_disk(struct models *m, void (*left)(void *ctx));
/* Uses the files of the disk tier as soon as no other daemon has them. */
void models_use_disk(struct models *m);
/* In an upgrade: ends the workers on a device; no worker is started before models_come_back().
 * Returns true if on_away() will be called when the workers have ended; false: there are none. */
bool models_hand_over(struct models *m);
/* Asks the next daemon to take the requests of each model that has requests and has not asked yet:
 * @send passes it a socket for the requests of @name. Calls on_answer() at each answer. */
void models_offer(struct models *m, void (*send)(void *ctx, const char *name, int fd));
/* Returns how many models have got the answer @answer. */
uint32_t models_asked(const struct models *m, enum workers_answer answer);
/* Moves the requests that the next daemon has accepted, and ends their workers here. */
void models_move(struct models *m);
/* Serves all models again, because there is no next daemon. */
void models_come_back(struct models *m);
/* In the next daemon: asks for the requests of model @name over the socket @fd, which is taken
 * over. */
void models_accept_guests(struct models *m, const char *name, int fd);
void models_stop(struct models *m);           /* kills all workers, after which none is started */
struct models *models_free(struct models *m); /* needs the end of the loop and api_free() before */

/* ---- functions for the admin socket ---- */

struct models_info {
    /* state: "absent", "opening", "queued", "loading", ... */
    const char *name, *state;
    /* reason, if the state is "failed" */
    const char *why;
    const char *file;
    /* bytes that it uses or would need, and those that it uses now */
    uint64_t bytes, memory;
    float progress;
    bool pinned;
    uint32_t n_running, n_waiting, n_loads;
    /* time since its last request; -1: there was none */
    int64_t idle_ms;
    /* time until it is unloaded if no request arrives; -1: it is not unloaded for this */
    int64_t unload_ms;
    /* State of a swap, during which several models share a name: "next" for the new model, "old"
     * for the replaced one; the served one has "under way", "done", "failed: ...", or "". */
    const char *swap;
    const struct api_model *info;
    const struct workers *workers;
};

/* Returns how many models models_info() describes, retired ones included. */
uint32_t models_n(const struct models *m);
/* Returns the name of preset @i of those that could not be read at the last scan of the folder,
 * with the reason in *@why. NULL: there are no more. */
const char *models_bad_preset(const struct models *m, size_t i, const char **why);
/* Describes model @i, in the order of /v1/models; model 0 serves requests without a name. */
void models_info(const struct models *m, uint32_t i, struct models_info *out);
/* Returns the memory limit of all loaded models in bytes; 0: there is one model and no limit. */
uint64_t models_budget(const struct models *m);
/* Returns the index of the model named @name, or -ENOENT with @err. */
int models_index(const struct models *m, const char *name, struct err *err);
/* Load model @i if it is not loaded; unload it once its requests have ended, until the next request
 * loads it again. Unloading ends a load that no request waits for. Return 0, -EBUSY with @err: it
 * is pinned, or -EINVAL with @err: the daemon has not started yet. */
int models_load(struct models *m, uint32_t i, struct err *err);
int models_unload(struct models *m, uint32_t i, struct err *err);
/* Returns the name of a swap, pull or change of presets that is under way; NULL: there is none. */
const char *models_changing(const struct models *m);
/* Returns the name of a model that is being loaded; NULL: there is none. */
const char *models_loading(const struct models *m);
/* Returns the backend of the first worker that computes on a device; NULL: none does. */
const char *models_device(const struct models *m);
/* Replaces model @i by the current content of @file (NULL: its own file), under its name and
 * options. If there is room, the new worker starts beside the old one, which then finishes its
 * requests; otherwise the old one ends first, and requests wait. If the file cannot be loaded, the
 * old model stays. Returns 0, or a negative errno with @err: another change is under way. */
int models_swap(struct models *m, uint32_t i, const char *file, struct err *err);
