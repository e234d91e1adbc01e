/*
 * Presets that clients make and remove. Disks may be slow, and a template may be long. So files are
 * changed on a thread of file_work.h, one change after the other: changes of one name cannot mix,
 * and no more than one thread waits for the disk. A change whose client leaves before it has begun
 * is left out; one that has begun is completed.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/result.h"
#include "base/try.h"
#include "daemon/models/models_presets.h"
#include "daemon/models/models_private.h"

#define CHANGES_MAX 16 /* most changes that wait or are under way */

struct change {
    /* api_task.of */
    struct models_doing doing;
    /* in models.changes, whose first is being made */
    struct list link;
    struct models *of;
    /* NULL: cancelled */
    struct api_task *task;
    struct file_work work;
    struct preset_change preset;
    bool began;
    int result;
    struct err err;
};

static void manage_change_free(struct change *c) {
    struct preset_change *p = &c->preset;

    list_remove(&c->link);
    config_deinit(&p->own);
    config_deinit(&p->base);
    free(p->name);
    free(p->from);
    free(p->sampling);
    free(p->template);
    free(p->system);
    free(c);
}

/* Implements models_doing.cancel. */
static void manage_cancel(struct models_doing *d) {
    struct change *c = CONTAINER_OF(d, struct change, doing);

    assert(c->task);
    c->task = NULL;
    if (!c->began)
        manage_change_free(c);
}

/* ---- end of a change ---- */

/* Checks that no other model is made of the file of @s; else names it in @err. */
static int check_unused(const struct served *s, struct err *err) {
    const struct models *m = s->of;

    for (uint32_t i = 0; i < m->n; i++) {
        const struct served *o = m->served[i];

        if (o != s && !o->old && !o->retired && strcmp(o->config.model, s->config.model) == 0)
            return err_set_code(err, 400, "in_use", "model",
                                "model '%.100s' uses its file; delete that model first", o->name);
    }
    return 0;
}

/* Removes a file of models-dir, since no preset has the name. Returns 0, and then @t was taken
 * over, or -errno with @err. */
static int remove_file(struct models *m, const char *name, struct api_task *t, struct err *err) {
    int i = models_index(m, name, err);

    if (i < 0)
        return i;
    TRY(check_unused(m->served[i], err));
    return models_remove_file(m, name, t, err);
}

/* Updates the models after the files have been changed. */
static void apply_change(struct change *c) {
    const struct preset_change *p = &c->preset;
    struct err none;
    int i = models_index(c->of, p->name, &none);

    if (p->from) {
        if (i >= 0)
            c->of->served[i]->stale = true;
        log_event(WLOG_INFO, "preset_made", "model=%s from=%s", quoted(p->name).s,
                  quoted(p->from).s);
    } else {
        log_event(WLOG_INFO, "preset_removed", "model=%s", quoted(p->name).s);
    }
}

/* Ends @t after the change of @c. Returns 0, and then @t was taken over, or -errno. */
static int change_end_task(struct change *c, struct api_task *t) {
    if (c->result == PRESET_NONE)
        return remove_file(c->of, c->preset.name, t, &c->err);
    TRY(c->result);
    return enomem_unless(models_task_done(c->of, t));
}

static void manage_end(struct change *c) {
    struct api_task *t = c->task;

    if (c->result == 0)
        apply_change(c);
    if (!t) {
        models_rescan_now(c->of, NULL);
        return;
    }
    t->of = NULL;
    int r = change_end_task(c, t);
    if (r == 0)
        return;
    if (!*c->err.message)
        err_set(&c->err, 500, "model", "%s", strerror(-r));
    t->over(t, &c->err);
}

/* ---- begin of a change ---- */

static void manage_on_thread(struct file_work *w) {
    struct change *c = CONTAINER_OF(w, struct change, work);

    if (c->preset.from)
        c->result = preset_make(&c->preset, &c->err);
    else
        c->result = preset_remove(&c->preset, &c->err);
}

static void begin_next(struct models *m);

static void manage_on_changed(struct file_work *w) {
    struct change *c = CONTAINER_OF(w, struct change, work);
    struct models *m = c->of;

    api_mark_loop("a preset that was changed");
    assert(c->began && m->changes.next == &c->link);
    if (!m->stopping)
        manage_end(c);
    manage_change_free(c);
    begin_next(m);
}

static void begin_next(struct models *m) {
    struct list *node;

    while ((node = m->stopping ? list_pop_front(&m->changes) : NULL))
        manage_change_free(LIST_ENTRY(node, struct change, link));
    if (list_empty(&m->changes))
        return;
    struct change *c = LIST_ENTRY(m->changes.next, struct change, link);
    assert(!c->began);
    c->began = true;
    c->work =
        (struct file_work){.run = manage_on_thread, .done = manage_on_changed, .kind = FILE_PRESET};
    file_work_submit(&c->work, m->opts.loop);
}

static struct change *change_new(struct models *m, const char *name) {
    struct change *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->doing.cancel = manage_cancel;
    c->of = m;
    list_init(&c->link);
    c->preset.name = strdup(name);
    if (c->preset.name && config_clone(&c->preset.own, m->opts.config) == 0)
        return c;
    manage_change_free(c);
    return NULL;
}

static int manage_submit(struct models *m, struct change *c, struct api_task *t) {
    bool first = list_empty(&m->changes);

    c->task = t;
    t->of = &c->doing;
    list_push_back(&m->changes, &c->link);
    if (first)
        begin_next(m);
    return 0;
}

static int manage_check_room(const struct models *m, struct err *err) {
    uint32_t n = 0;

    LIST_FOREACH(node, &m->changes)
    n++;
    if (n >= CHANGES_MAX)
        return err_set_code(
            err, 429, "too_many_changes", NULL,
            "%u presets are being made or removed, which is the limit; try again later", n);
    return 0;
}

/* Copies @s; NULL stays NULL. Returns false without memory. */
static bool manage_copy(char **out, const char *s) {
    return !s || (*out = strdup(s));
}

/* Implements api_manage.create. */
static int manage_create(void *ctx, const struct api_preset *p, struct api_task *t,
                         struct err *err) {
    struct models *m = ctx;
    struct err none;
    int base = models_index(m, p->from, err);

    TRY(base);
    TRY(manage_check_room(m, err));
    if (!*m->opts.config->models)
        return err_set_code(err, 400, "not_managed", NULL,
                            "models: this server has no folder for presets; its operator can set "
                            "the option models");
    struct change *c = change_new(m, p->name);
    if (!c)
        return -ENOMEM;
    struct preset_change *to = &c->preset;
    to->max_context = p->max_context;
    to->served = models_index(m, p->name, &none) >= 0;
    if (manage_copy(&to->from, p->from) && manage_copy(&to->sampling, p->sampling) &&
        manage_copy(&to->template, p->template) && manage_copy(&to->system, p->system) &&
        config_clone(&to->base, &m->served[base]->config) == 0)
        return manage_submit(m, c, t);
    manage_change_free(c);
    return -ENOMEM;
}

/* Implements api_manage.remove. */
static int manage_remove_model(void *ctx, const char *name, struct api_task *t, struct err *err) {
    struct models *m = ctx;
    int i = models_index(m, name, err);

    TRY(i);
    TRY(manage_check_room(m, err));
    if (models_n_live(m) == 1 || !m->served[i]->found)
        return err_set_code(err, 400, "not_removed", "model",
                            "model '%.100s' cannot be removed: it is %s", name,
                            m->served[i]->found ? "the last one" : "the operator's");
    struct change *c = change_new(m, name);
    if (!c)
        return -ENOMEM;
    return manage_submit(m, c, t);
}

void models_cancel(void *ctx, struct api_task *t) {
    struct models_doing *d = t->of;

    if (d)
        d->cancel(d);
    else
        list_remove(&t->rescan.link);
}

const struct api_manage models_manage = {models_pull, manage_create, manage_remove_model,
                                         models_cancel};
