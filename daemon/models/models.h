#pragma once

/*
 * models - all models that the daemon serves: the one of the option model, which is loaded at the
 * start, and those of presets and of a folder, which are loaded when a request names them. It
 * decides which workers there are.
 *
 *      ABSENT ──wanted──> OPENING ──> QUEUED ──> LOADING ──> READY ──> LEAVING ──> ENDING
 *         ^                  └───────────┴──────────┴──> FAILED                      │
 *         └──────────────────────────────────────────────────────────────────────────┘
 *
 * OPENING reads metadata and tokens on a thread, once; QUEUED waits for memory; LEAVING is READY
 * for requests that run, and takes no new ones; ENDING until the process is gone. FAILED is tried
 * again for a request that comes after a pause.
 *
 * Memory: what a model needs (weights, buffers, KV: by engine_fit() once its file was opened) is
 * counted from LOADING to ENDING, and the sum stays below models-memory. For one that is
 * QUEUED the least recently used model without a running request leaves; where all have some, the
 * one that has been there longest takes no new requests until its own have ended. A model does not
 * leave for a tenant that has had more of the memory than its own (model_share.h), and pinned ones
 * never do. So no running request is ended, no model waits for ever, and no tenant waits longer
 * because another's requests name many models.
 *
 * A daemon with the option model alone has one model that is always loaded, and none of this,
 * until keep-alive-s or the operator unloads that model.
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
    struct kv_events *kv_events; /* NULL: events of the prefix caches are not published */
    /* Another daemon runs beside this one: memory that is in use will not be free soon, and the
     * disk tier is not used before models_use_disk(). */
    bool beside;
    bool waits; /* the workers of the other daemon end before models_start() */
    /* File of the disk tier of the option model; -1: none. Other models have files beside it. */
    int disk_fd;
    void *ctx;
    void (*on_away)(void *ctx);   /* models_give_way() is done */
    void (*on_answer)(void *ctx); /* an answer to models_offer(), for one model */
    /* Called once, when the first model is served; at once if none is loaded at the start. */
    void (*on_ready)(void *ctx);
    /* The model of the option model cannot be served: workers_opts.on_refused. */
    void (*on_refused)(void *ctx, const char *why, int error);
};

/* Reads presets and folder, and opens the model of the option model. 0 or -errno with @err. */
int models_new(struct models **out, const struct models_opts *o, struct err *err);
/* Makes the api that serves them. 0 or -errno. */
int models_open_api(struct models *m, const struct api_opts *o, struct api **out);
/* api_opts.rescan, of a daemon with folders: adds new presets and files and withdraws those that
 * are gone, at most every two seconds. @wait may be NULL. */
bool models_rescan(void *models, struct api_rescan *wait);
/* Operations on models that clients with the right may use, for a daemon with folders; the context
 * is struct models. */
extern const struct api_manage models_manage;
/* api_opts.sleep: models_unload() of the model @id. */
int models_sleep(void *models, const char *id, struct err *err);
/* Starts the workers of the models that are loaded at the start. 0 or -errno. */
int models_start(struct models *m);
/* Releases the files of the disk tier for another daemon: workers write the missing pages while
 * they serve, and then do not use the files any more. @left is called once, possibly before this
 * returns, when that is done or takes too long. */
void models_leave_disk(struct models *m, void (*left)(void *ctx));
/* Uses the files of the disk tier as soon as no other daemon has them. */
void models_use_disk(struct models *m);
/* In an upgrade: ends the workers on a device; none is started before models_come_back().
 * Returns true if on_away() will be called when they are gone; false: there are none. */
bool models_give_way(struct models *m);
/* Asks the next daemon to take the requests of each model that has some and has not asked: @send
 * hands it a socket for those of @name. on_answer() for each answer. */
void models_offer(struct models *m, void (*send)(void *ctx, const char *name, int fd));
/* Returns how many models have been given this answer. */
uint32_t models_asked(const struct models *m, enum workers_answer answer);
/* Moves the requests that the next daemon has accepted, and ends the workers that had them. */
void models_move(struct models *m);
/* Serves all models again, because there is no next daemon. */
void models_come_back(struct models *m);
/* For the next daemon: asks for the requests of model @name over the socket @fd, which is taken
 * over. */
void models_take_guests(struct models *m, const char *name, int fd);
void models_stop(struct models *m);           /* kills all workers; no new one is started */
struct models *models_free(struct models *m); /* after the loop has run out and api_free() */

/* ---- for the admin socket ---- */

struct models_info {
    const char *name, *state; /* "absent", "opening", "queued", "loading", ... */
    const char *why;          /* "failed": the reason */
    const char *file;
    uint64_t bytes; /* memory that it has, or would need */
    float progress;
    bool pinned;
    uint32_t n_running, n_waiting, n_loads;
    int64_t idle_ms;   /* since its last request; -1: there was none */
    int64_t unload_ms; /* until it is unloaded without another request; -1: it is not for that */
    /* State of a swap. Two models share a name: "next" is the one that comes and "old" the one that
     * goes; the one that is served has "under way", "done", "failed: ...", or "". */
    const char *swap;
    const struct api_model *info;
    const struct workers *workers;
};

/* Returns how many models models_info() describes, retired ones included. */
uint32_t models_n(const struct models *m);
/* Returns the name of the preset @i among those that could not be read when the folder was last
 * read, and its reason in *@why. NULL: there are no more. */
const char *models_bad_preset(const struct models *m, size_t i, const char **why);
/* Describes model @i, in the order of /v1/models; model 0 serves requests without a name. */
void models_info(const struct models *m, uint32_t i, struct models_info *out);
/* Returns the memory limit of all loaded models in bytes; 0: there is one model and no limit. */
uint64_t models_budget(const struct models *m);
/* Returns the index of the model named @name, or -ENOENT with @err. */
int models_index(const struct models *m, const char *name, struct err *err);
/* Loads model @i, if it is not; or unloads it once its requests have ended: the next request loads
 * it again. 0, or -EBUSY with @err: it is pinned. */
int models_load(struct models *m, uint32_t i, struct err *err);
int models_unload(struct models *m, uint32_t i, struct err *err);
/* Names a swap, pull or change of presets that is under way; NULL: there is none. */
const char *models_changing(const struct models *m);
/* Names a model that is being loaded; NULL: there is none. */
const char *models_loading(const struct models *m);
/* Returns the backend of the first worker that computes on a device; NULL: none does. */
const char *models_device(const struct models *m);
/* Replaces model @i by the present content of @file (NULL: its own file), under its name and
 * options. If there is room, the new worker starts beside the old one, which then finishes its
 * requests; otherwise the old one ends first, and requests wait. If the file cannot be loaded,
 * the old model stays. 0, or an error in @err: another change is under way. */
int models_swap(struct models *m, uint32_t i, const char *file, struct err *err);
