#pragma once

/*
 * models_private - the structs of one model and of all models, shared by the file that decides
 * (models.c) and the files beside it.
 */

#include <uv.h>

#include "daemon/models/front_model.h"
#include "daemon/models/model_share.h"
#include "daemon/models/models.h"
#include "daemon/workers/file_work.h"

/* States of the diagram in models.h; models_set_state() has the table of legal transitions. */
enum served_state {
    SERVED_ABSENT,
    SERVED_OPENING,
    SERVED_QUEUED,
    SERVED_LOADING,
    SERVED_READY,
    SERVED_LEAVING,
    SERVED_ENDING,
    SERVED_FAILED
};

/* A preset that cannot be read. */
struct bad_preset {
    char *name, *why;
};

/* An operation that an api_task waits for (api_task.of) before the folders are read again. */
struct models_doing {
    /* cancels the operation; the end of the task is not reported then */
    void (*cancel)(struct models_doing *d);
};

/* State of reading the folders again (models_rescan.c). */
struct models_scan {
    struct file_work work;
    struct config config;
    struct found *found;
    size_t n;
    /* headers of the last scan, so that files are read once */
    struct known_header *known;
    size_t n_known;
    /* folder of the last model, on the thread */
    struct projector_folder folder;
    /* presets that cannot be read */
    struct bad_preset *bad;
    size_t n_bad;
    struct err err;
    int result;
    /* again: repeat the scan at its end */
    bool running, again;
    /* begin of the running scan, or end of the last one */
    int64_t at_ns;
    /* api_rescan.link: requests that wait for the scan */
    struct list waiting;
};

/* State of a file. id: from its path, inode, size and time; 0: there is none. */
struct model_file {
    uint64_t id;
    /* time of its last change */
    int64_t changed_unix;
};

/*
 * One model. `front` is set when the model has been opened, and stays set; `info` is the api's
 * copy. The memory of the model counts while it is LOADING, READY, LEAVING or ENDING. Invariants
 * (models_set_state()): from QUEUED to ENDING `front` is set; old->next and next->old are this
 * model; a retired model has no old and no next; `opened` belongs to the thread from OPENING on;
 * closing implies retired and model == NULL.
 */
struct served {
    struct models *of;
    /* the daemon's options, changed by the preset */
    struct config config;
    char *name;
    struct api_model info;
    /* the api's handle of the model */
    struct model *model;
    struct workers *workers;
    struct front_model *front;
    /* expert_file_read() of `opened`; -1 when its worker has taken it over, or none */
    int experts_fd;
    /* file of the disk tier; -1: none, not opened yet, or this is the first model, which uses
     * models_opts.disk_fd */
    int disk_fd;
    enum served_state state;
    bool first, wanted;
    /* header of a model that was not opened */
    struct model_header header;
    /* found in a folder, and withdrawn when it is removed there */
    bool found;
    /* the preset has changed: the model is withdrawn and found again */
    bool stale;
    /* the last scan would have withdrawn it, but a load or swap was under way */
    bool goes;
    /* model_file.id of the file */
    uint64_t file;
    /* during a swap. old: model that this one replaces; next: model that replaces this one */
    struct served *old, *next;
    /* replaced or removed; freed when it is not used any more */
    bool retired;
    /* the api has removed it */
    bool closing;
    /* reason of FAILED */
    char why[400];
    /* result of the last swap; "": none */
    char swap[400];
    uint32_t retry_ms, n_loads;
    /* used_ns: time of the last request, or of READY */
    int64_t ready_ns, used_ns;
    /* times when QUEUED and LEAVING were entered */
    int64_t queued_ns, leaving_ns;
    /* when loading began */
    int64_t loading_ns;
    /* duration of the last load */
    int64_t load_ns;
    struct model_users users;
    /* bytes: memory that the model uses or would need; the same as file_bytes until its file was
     * opened */
    uint64_t file_bytes, bytes;
    /* values of its OPEN besides the options */
    struct msg_open room;
    float progress;
    /* Reading of the file on a thread, or a look at it. */
    struct file_work work;
    struct model_file seen;
    struct front_model *opened;
    int open_result;
    struct err open_err;
};

struct models {
    struct models_opts opts;
    struct served **served;
    uint32_t n;
    /* bad presets of the last scan */
    struct bad_preset *bad;
    size_t n_bad;
    /* names of bad presets for the api: NULL-terminated, or NULL */
    const char **bad_names;
    /* there are folders, so models are added and removed */
    bool several;
    bool on_demand, ready_told, stopping;
    /* kv_bytes: memory for the pages of a model without kv-memory */
    uint64_t budget, kv_bytes;
    /* memory of the machine when the daemon started */
    uint64_t available;
    int64_t started_ns;
    struct model_share share;
    /* time up to which memory is charged */
    int64_t charged_ns;
    uv_timer_t timer;
    /* State of the disk tier (models_disk.c). disk_waits: another daemon has it; the others are
     * those of models_release_disk(). */
    bool disk_waits;
    uint32_t n_disk_leaving;
    /* callback of models_release_disk(); NULL: it is done */
    void (*disk_left)(void *ctx);
    uv_timer_t disk_timer;
    /* State of an upgrade (models_away.c). */
    /* the next daemon has the device: no worker is started */
    bool away;
    /* guest_link.link: requests of the previous daemon */
    struct list guest_links;
    struct api *api;
    struct models_scan scan;
    /* pull.link */
    struct list pulls;
    /* change.link (models_manage.c) */
    struct list changes;
};

/* Returns the time of the daemon's clock. */
static inline int64_t models_now_ns(const struct models *m) {
    return clock_now(m->opts.clock);
}

/* Returns true if the model has, or may still have, a worker process, so that served.bytes
 * count. */
static inline bool has_memory(const struct served *s) {
    return s->state == SERVED_LOADING || s->state == SERVED_READY || s->state == SERVED_LEAVING ||
           s->state == SERVED_ENDING;
}

/* Asserts that the transition is legal (the table in models.c). */
void models_set_state(struct served *s, enum served_state next);
/* Decides in the next iteration of the loop which models to load and unload. Does nothing if the
 * daemon has one model only, or while it stops. */
void models_decide_soon(struct models *m);
/* Loads the model as if a request waited for it. */
void models_want(struct served *s);
/* Returns the time in ms until the model is unloaded because of keep-alive-s; negative: never. */
int64_t models_unload_ms(const struct served *s);
/* Returns true if requests run on the model or wait for it. */
bool models_has_requests(const struct served *s);
/* Unloads the model, which is READY, or LOADING without requests: it takes no new requests, and its
 * worker ends after its last one. */
void models_drain(struct served *s);
/* Ends the load of @s, in whatever state it is, unless requests wait for the model. */
void models_call_off(struct served *s);
/* Appends a model with options @c, which are taken over (zeroed). Returns 0 or -ENOMEM. */
int models_add(struct models *m, struct config *c, const char *name, uint64_t file_bytes,
               struct model_file file);
/* Type of api_add_model() and api_new_model(). */
typedef int models_make(struct api *a, const struct api_model *info, struct api_port *port,
                        struct model **out);
/* Creates the workers and the api's model for @s, which models_add() has just added. Returns 0, or
 * -errno with @err; @s is removed then. */
int models_bring(struct served *s, models_make *make, struct err *err);
/* Initialises the use of the disk tier, before a model has workers. */
void models_disk_init(struct models *m);

/* models_room.c: decides when not all requested models fit. */

/* Returns the time of the model's last use: a request named it, it became ready, or its last
 * request ended. */
int64_t models_idle_since(const struct served *s);
/* Returns true if @s may make room for @other: a pinned model only for its successor. */
bool models_may_unload(const struct served *s, const struct served *other);
/* Returns the model to unload for @for_it, among the models that are not held: the least recently
 * used one without running requests or, after a while, the one that has been loaded longest. NULL:
 * none yet. */
struct served *models_choose_victim(const struct served *for_it);
/* Returns the QUEUED model whose users have used the least memory; of several, the one that has
 * waited longest. NULL: there is none. */
struct served *models_first_queued(const struct models *m);
/* Charges the models in memory to their users while a model waits for room. */
void models_charge_memory(struct models *m);

/* models_disk.c, models_away.c */

/* Opens the file of the disk tier of a model other than the first, once it is loaded. After a
 * failure the model is served without a disk tier. */
void models_open_disk(struct served *s);
void models_disk_left(void *served); /* implements workers_opts.on_disk_left */
void models_away(void *served);      /* implements workers_opts.on_away */
void models_answered(void *served);  /* implements workers_opts.on_answer */
/* Tells the old daemon whether this one accepts its requests for @s, which is READY or cannot be
 * loaded. */
void models_answer_guests(struct served *s);
/* Frees a model that was replaced and has no worker, when its last request has ended. A request
 * that still waits for admission fails, because its prompt was made for this model, which is not
 * loaded again. */
void models_remove_retired(struct served *s);
/* Returns the requests for @s (NULL: for all models) to the old daemon. */
void models_close_guests(struct models *m, const struct served *s);
void models_free_guests(struct models *m); /* needs the end of the loop before */

/* models_rescan.c, models_manage.c, models_pull.c */

/* Returns the state of the file at @path, which may wait for a disk. */
struct model_file models_file_state(const char *path);
/* Reads the folders like models_rescan(), with a scan that starts after this call. Returns false if
 * memory is short. */
bool models_rescan_now(struct models *m, struct api_rescan *wait);
/* Ends @t, whose operation has succeeded, once the folders have been read again. Returns false if
 * memory is short. */
bool models_task_done(struct models *m, struct api_task *t);
/* Implement api_manage.pull, .cancel of every kind of task, and the removal of a file of the
 * folder. */
int models_pull(void *models, const char *name, struct api_task *t, struct err *err);
void models_cancel(void *models, struct api_task *t);
int models_remove_file(struct models *m, const char *name, struct api_task *t, struct err *err);
void models_pull_stop(struct models *m); /* kills the children of all pulls */
/* Returns how many models requests can find. */
uint32_t models_n_live(const struct models *m);
/* Lets requests that wait for a scan continue if it takes too long. */
void models_rescan_tick(struct models *m);
/* needs the end of the loop before, so that no scan is under way */
void models_rescan_deinit(struct models *m);
