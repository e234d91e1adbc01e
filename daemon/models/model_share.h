#pragma once

/*
 * model_share - divides the memory for models among tenants when not all requested models fit, by
 * start-time fair queueing. A tenant's virtual time is the memory that its models have used, times
 * the duration, while another model waited for room, divided by the tenant's weight. The model of
 * the tenant with the least virtual time is loaded next. A model is only unloaded for a tenant that
 * is at least a quantum behind all of the model's users. A tenant whose requests name many models
 * thus gets the share of one tenant, and another tenant finds its model loaded for its share of the
 * time.
 *
 * All functions are pure: the caller passes the time.
 */

#include <stdbool.h>
#include <stdint.h>

#define MODEL_USERS 16
#define MODEL_USE_NS 60000000000  /* time after its last request that a tenant uses a model */
#define MODEL_HOLD_NS 10000000000 /* time that an idle model is kept while another waits for room */
/* most virtual time by which a tenant may be ahead of virtual_ns */
#define MODEL_LEAD_NS 30000000000

/* Users of a model, the latest first. The latest always counts, the others if they used the model
 * within the last MODEL_USE_NS. No tenant is listed twice; each is known to the model_share. */
struct model_users {
    struct model_user {
        uint32_t tenant;
        int64_t at_ns;
    } user[MODEL_USERS];
    uint32_t n;
};

/* The users of all models; zeroed: it knows no tenant. virtual_ns never decreases; no tenant is
 * more than MODEL_LEAD_NS ahead of it. */
struct model_share {
    struct share_tenant {
        /* weight 0: the tenant is not known */
        double weight, virtual_ns;
    } * tenant; /* [n] tenants by number */
    uint32_t n;
    /* start value of a tenant that has used no model lately */
    double virtual_ns;
};

void model_share_deinit(struct model_share *s); /* leaves a share that knows no tenant */
/* Notes that a request of @tenant names the model of @u. If memory is short, the tenant is not
 * counted separately. */
void model_share_use(struct model_share *s, struct model_users *u, uint32_t tenant, double weight,
                     int64_t now);
/* Charges the users of @u in equal parts for the use of @part (0 to 1) of the memory during @ns. */
void model_share_charge(struct model_share *s, const struct model_users *u, double part, int64_t ns,
                        int64_t now);
/* Returns the least virtual time of the model's users, or that of a new user if there are none. */
double model_share_least(const struct model_share *s, const struct model_users *u, int64_t now);
/* Advances the virtual time of new users. @least: the least virtual time of all models that are
 * loaded or that requests wait for. */
void model_share_advance(struct model_share *s, double least);
/* Returns true if the model of @u, which has had no request for @idle_ns, stays while the model of
 * @other waits for room: one of its users does not wait, is less than @quantum_ns ahead of a user
 * of @other, and may soon send the next request. */
bool model_share_holds(const struct model_share *s, const struct model_users *u,
                       const struct model_users *other, double quantum_ns, int64_t idle_ns,
                       int64_t now);
