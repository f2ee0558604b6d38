// SPDX-License-Identifier: GPL-2.0-only
/* stats.c - fiberctl stats: counters of the runtime */
#include "fiberctl.h"

struct number {
	const char *name;
	uint64_t value;
};

static void show(const struct number *v, size_t n, bool json)
{
	for (size_t i = 0; i < n; i++)
		if (json)
			printf("%s\"%s\": %llu", i ? ", " : "{", v[i].name,
			       (unsigned long long)v[i].value);
		else
			printf("%-12s %llu\n", v[i].name,
			       (unsigned long long)v[i].value);
	if (json)
		puts("}");
}

static void sum_processors(const struct target *t, uint64_t *sum, uint32_t n)
{
	uint64_t p = target_word(t, t->d.runtime + t->d.runtime_at.processors);

	for (uint32_t i = 0; i < n && i < 65536; i++, p += t->d.processor.size) {
		uint64_t ended = target_word(t, p + t->d.processor.ended);
		uint32_t step = target_half(t, p + t->d.processor.id_step);

		sum[ENDED] += ended;
		if (step)
			sum[SPAWNED] += (target_word(t, p + t->d.processor.id_next) -
					 i - 1) / step;
		sum[SWITCHES] += target_word(t, p + t->d.processor.pass) + ended -
				 target_word(t, p + t->d.processor.idle_passes);
		sum[STEALS] += target_word(t, p + t->d.processor.steals);
		sum[PREEMPTIONS] +=
			target_word(t, p + t->d.processor.preemptions);
	}
}

static void sum_carriers(const struct target *t, uint64_t *sum)
{
	uint64_t c = target_word(t, t->d.runtime + t->d.runtime_at.carriers);

	for (int n = 0; c && n < 100000; n++) {
		uint64_t page = target_word(t, c + t->d.carrier.page);

		sum[HANDOFFS] += target_word(t, page + t->d.carrier_page.handoffs);
		sum[RETURNS] += target_word(t, page + t->d.carrier_page.returns);
		c = target_word(t, c + t->d.carrier.next);
	}
}

void stats_sum(const struct target *t, uint64_t sum[SUMS])
{
	uint64_t rt = t->d.runtime;

	sum[SPAWNED] = target_word(t, rt + t->d.runtime_at.plain_spawned);
	sum_processors(t, sum, target_all_processors(t));
	sum_carriers(t, sum);
}

static int count_one(const struct seen *s, void *arg)
{
	(void)s;
	++*(uint64_t *)arg;
	return 0;
}

static int stats(pid_t pid, bool json)
{
	uint64_t sum[SUMS] = { 0 }, alive = 0, rt;
	struct target t;
	uint32_t nproc;

	if (target_open(&t, pid) || fibers_walk(&t, count_one, &alive))
		return complain();
	rt = t.d.runtime;
	nproc = target_processors(&t);
	stats_sum(&t, sum);
	show((struct number[]){
		{ "fibers", alive },
		{ "processors", nproc },
		{ "carriers", target_info(&t, t.d.info.carriers) },
		{ "spares", target_info(&t, t.d.info.spares) },
		{ "idle", target_info(&t, t.d.info.idle) },
		{ "waiting", target_info(&t, t.d.info.waiting) },
		{ "spawned", sum[SPAWNED] }, { "ended", sum[ENDED] },
		{ "switches", sum[SWITCHES] }, { "steals", sum[STEALS] },
		{ "preemptions", sum[PREEMPTIONS] },
		{ "handoffs", sum[HANDOFFS] }, { "returns", sum[RETURNS] },
		{ "quantum_ns",
		  target_word(&t, rt + t.d.runtime_at.quantum_ns) },
	}, 14, json);
	target_close(&t);
	return EXIT_FINE;
}

int cmd_stats(int argc, char **argv, bool json)
{
	pid_t pid;

	if (argc != 2)
		return usage("stats [--json] PID");
	pid = parse_pid(argv[1]);
	return pid < 0 ? EXIT_USAGE : stats(pid, json);
}
