#include "daemon/front/audit.h"

#include <string.h>
#include "api/http/exchange.h"
#include "base/log.h"
#include "base/printable.h"

int audit_admin(const struct exchange *x, const char *action, const char *target,
                const char *detail, int r, const struct err *err) {
    const char *why = r == 0 ? "" : *err->message ? err->message : strerror(-r);

    log_event(WLOG_NOTICE, "audit",
              "action=%s target=%s detail=%s by=admin client=%s result=%s reason=%s", action,
              quoted(target ? target : "").s, quoted(detail ? detail : "").s, x->client,
              r == 0 ? "accepted" : "refused", quoted(why).s);
    return r;
}

void audit_signal(const char *action) {
    log_event(WLOG_NOTICE, "audit", "action=%s by=signal result=accepted", action);
}
