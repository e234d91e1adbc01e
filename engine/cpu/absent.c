#include "engine/backend.h"

/* abi 0: refused as not built. */
const struct be_ops backend_cpu = {.name = "cpu"};
