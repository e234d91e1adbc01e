#include "daemon/front/reload.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/tls.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "daemon/config/tenants.h"
#include "daemon/front/args.h"
#include "daemon/front/audit.h"
#include "daemon/front/front.h"
#include "daemon/front/process.h"
#include "daemon/front/service.h"
#include "daemon/workers/file_work.h"

/* Everything that a reload reads; what reload_apply() has taken over is zero or NULL. */
struct reload {
    struct file_work work;
    struct front *f;
    /* the admin socket waits for the result, and not the service manager */
    bool for_admin;
    int result;
    struct err err;
    struct config config;
    struct api_tenant *tenants;
    uint32_t n_tenants;
    struct auth *keys;
    struct tls_config tls;
};

static struct reload *reload_free(struct reload *r) {
    if (!r)
        return NULL;
    config_deinit(&r->config);
    free(r->tenants);
    api_free_keys(r->keys);
    tls_config_deinit(&r->tls);
    free(r);
    return NULL;
}

static void reload_freep(struct reload **r) {
    reload_free(*r);
}

/* ---- reading ---- */

static int reload_read_options(struct reload *r) {
    const struct front *f = r->f;

    TRY(config_init(&r->config));
    TRY(args_read(&r->config, f->argc, f->argv, NULL, &r->err));
    return config_check(&r->config, &r->err);
}

/* Reads the files that the present options name: their names need a restart. */
static int reload_read_files(struct reload *r) {
    const struct config *c = &r->f->config;

    audit_key_file(c->api_keys);
    if (*c->tenants) {
        int n = tenants_read(c->tenants, &r->tenants, &r->n_tenants, &r->err);

        TRY(process_name_key(n, "tenants", &r->err));
    }
    TRY(process_name_key(api_read_keys(r->f->api, &r->keys, &r->err), "api-keys", &r->err));
    if (!*c->tls_certificate)
        return 0;
    return tls_config_init(&r->tls, c->tls_certificate, c->tls_key, &r->err);
}

static void reload_on_thread(struct file_work *work) {
    struct reload *r = CONTAINER_OF(work, struct reload, work);

    r->result = reload_read_options(r);
    if (r->result == 0)
        r->result = reload_read_files(r);
    if (r->result < 0)
        config_add_place(&r->config, &r->err);
}

/* ---- taking over ---- */

static int reload_apply_files(struct reload *r) {
    struct front *f = r->f;

    TRY(api_set_tenants(f->api, r->tenants, r->n_tenants));
    api_set_keys(f->api, STEAL(r->keys));
    if (r->tls.ctx)
        api_set_tls(f->api, &r->tls);
    r->tls = (struct tls_config){0};
    return 0;
}

/* Takes over option @o if it has another value, and says so in the log. Returns 1 if its new value
 * needs a restart, 0, or -ENOMEM. */
static int reload_apply_option(struct reload *r, const struct option *o) {
    char was[CONFIG_VALUE_MAX], is[CONFIG_VALUE_MAX];

    config_value(&r->f->config, o, was, sizeof(was));
    config_value(&r->config, o, is, sizeof(is));
    if (strcmp(was, is) == 0)
        return 0;
    if (!o->reloads) {
        log_event(WLOG_WARN, "reload_needs_restart", "key=%s", o->key);
        return 1;
    }
    log_event(WLOG_INFO, "reloaded", "key=%s", o->key);
    return config_copy(&r->f->config, &r->config, o);
}

/* Takes over what was read. The keys of the options that need a restart go to @later, which has
 * room for all, their number to *@n. */
static int reload_apply(struct reload *r, const char **later, uint32_t *n) {
    *n = 0;
    for (uint32_t i = 0; i < config_table_n; i++) {
        int needs_restart = reload_apply_option(r, &config_table[i]);

        TRY(needs_restart);
        if (needs_restart)
            later[(*n)++] = config_table[i].key;
    }
    log_set_level(config_log_level(&r->f->config));
    return reload_apply_files(r);
}

/* Tells the service manager that the front serves, or why a part of the reload has failed, since a
 * reload by signal has no other answer. */
static void reload_notify_manager(const struct reload *r) {
    const struct front *f = r->f;
    char status[500];

    if (!f->was_ready || f->draining)
        return;
    snprintf(status, sizeof(status), "%.200s; reload refused: %.250s", f->status,
             printable(r->err.message).s);
    service_status(r->result < 0 ? status : f->status);
    if (!r->for_admin)
        service_ready();
}

/* Ends a reload whose files were read, or could not be. */
static void reload_end(struct reload *r) {
    CLEANUP(freep) const char **later = calloc(config_table_n, sizeof(*later));
    uint32_t n = 0;

    if (r->result == 0 && !later)
        r->result = -ENOMEM;
    if (r->result == 0)
        r->result = reload_apply(r, later, &n);
    if (r->result < 0 && !*r->err.message)
        err_set(&r->err, 0, NULL, "the configuration cannot be read again: %s",
                strerror(-r->result));
    if (r->result < 0)
        log_event(WLOG_ERROR, "reload_refused", "reason=%s", quoted(r->err.message).s);
    reload_notify_manager(r);
    if (r->for_admin)
        admin_reload_over(r->f->admin, r->result < 0 ? NULL : later, n, &r->err);
}

static void reload_on_read(struct file_work *work) {
    CLEANUP(reload_freep) struct reload *r = CONTAINER_OF(work, struct reload, work);
    struct front *f = r->f;

    api_mark_loop("a reload");
    f->reloading = false;
    if (f->closing)
        return;
    reload_end(r);
    if (f->reload_again)
        reload_for_signal(f);
}

/* ---- beginning ---- */

/* Queues the reading of the files. Returns 0 or -ENOMEM. */
static int reload_begin(struct front *f, bool for_admin) {
    struct reload *r = calloc(1, sizeof(*r));

    assert(!f->reloading);
    if (!r)
        return -ENOMEM;
    r->f = f;
    r->for_admin = for_admin;
    f->reloading = true;
    r->work =
        (struct file_work){.run = reload_on_thread, .done = reload_on_read, .kind = FILE_SETTINGS};
    file_work_submit(&r->work, &f->loop);
    return 0;
}

int reload_first(struct front *f, struct err *err) {
    CLEANUP(reload_freep) struct reload *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->f = f;
    int result = reload_read_files(r);
    *err = r->err;
    TRY(result);
    return reload_apply_files(r);
}

int reload_for_admin(void *front, struct err *err) {
    struct front *f = front;

    if (f->reloading) {
        err_set(err, 409, NULL, "another reload still reads its files; try again");
        return -EBUSY;
    }
    return reload_begin(f, true);
}

void reload_for_signal(struct front *f) {
    f->reload_again = f->reloading;
    if (f->reloading)
        return;
    bool is_told = f->was_ready && !f->draining;
    if (is_told)
        service_reloading();
    if (reload_begin(f, false) == 0)
        return;
    log_event(WLOG_ERROR, "reload_refused", "reason=%s", quoted(strerror(ENOMEM)).s);
    if (is_told) /* or the service manager waits for the end of the reload */
        service_ready();
}
