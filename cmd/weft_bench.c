/*
 * weft-bench - measures the engine, and servers under the load of agents.
 */

#include "cmd/bench_cmd.h"
#include "cmd/cli.h"

static const struct cli_command commands[] = {
    {"engine", bench_cmd_engine, "prefill and decode without a server"},
#ifdef HAVE_CURL
    {"serve", bench_cmd_serve, "an OpenAI-compatible server under load: latencies and throughput"},
    {"agents", bench_cmd_agents, "the agents of a trace against a server: what each tenant sees"},
    {"identity", bench_cmd_identity, "how many answers are the same alone and under load"},
#endif
};

int main(int argc, char **argv) {
    return cli_run("weft-bench", commands, ARRAY_SIZE(commands), argc, argv);
}
