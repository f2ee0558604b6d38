// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every fiber can be seen: by fiber_walk, while all run, and by who reads the memory
 * of the process.
 */
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "../../lib/debug.h"
#include "common.h"

extern const struct fiber_debug fiber_debug_v1;

#define SEEN_MAX	4096

/* What one walk saw. */
struct seen {
	size_t n;
	struct fiber_info info[SEEN_MAX];
};

static int note(const struct fiber_info *i, void *arg)
{
	struct seen *s = arg;

	check_eq(sizeof(*i), i->size);
	if (s->n < SEEN_MAX)
		s->info[s->n] = *i;
	s->n++;
	return 0;
}

static struct seen *walk(void)
{
	static struct seen s;

	s.n = 0;
	check_eq(0, fiber_walk(note, &s));
	check(s.n <= SEEN_MAX);
	return &s;
}

/* The one with this id; how often it was seen in *times. */
static struct fiber_info *find(struct seen *s, uint64_t id, int *times)
{
	struct fiber_info *found = NULL;

	*times = 0;
	for (size_t i = 0; i < s->n; i++)
		if (s->info[i].id == id) {
			found = &s->info[i];
			++*times;
		}
	return found;
}

static struct fiber_info look_at(uint64_t id)
{
	struct fiber_info none = { .id = 0 }, *i;
	int times;

	i = find(walk(), id, &times);
	check(times <= 1);
	return i ? *i : none;
}

/* ---- all kinds of stacks, once each ---- */

enum { EACH = 50, SIZES = 5 };
static const size_t sizes[SIZES] = { 0, 2048, 20000, 300000, 1 };
static char own_memory[EACH][8192] __attribute__((aligned(64)));

struct parked {
	fiber_t *f;
	uint64_t id;
	char name[16];
	size_t stack;
};

static fiber_event_t gate = FIBER_EVENT_INIT;
static atomic_int arrived;

static void *waits(void *arg)
{
	struct parked *p = arg;

	p->id = fiber_id(fiber_self());
	atomic_fetch_add(&arrived, 1);
	check_eq(0, fiber_event_wait(&gate));
	return NULL;
}

static void start_parked(struct parked *p, int n, int kind)
{
	struct fiber_attr attr = { .size = sizeof(attr), .name = p->name };

	snprintf(p->name, sizeof(p->name), "kind%u-%u", kind % 10u, n % 1000u);
	attr.stack_size = sizes[kind];
	if (attr.stack_size == 1) {		/* the program's own */
		attr.stack = own_memory[n];
		attr.stack_size = sizeof(own_memory[n]);
	}
	p->stack = attr.stack_size / 2;
	check_eq(0, fiber_spawn_attr(&p->f, &attr, waits, p));
}

static bool all_parked(struct parked *p, size_t n)
{
	struct fiber_info *i;
	struct seen *s = walk();
	int times;

	for (size_t k = 0; k < n; k++) {
		i = find(s, p[k].id, &times);
		check_eq(1, times);
		if (!i || i->state != FIBER_PARKED)
			return false;
	}
	return true;
}

static void check_parked(struct parked *p, size_t n)
{
	struct seen *s = walk();
	int times;

	check_eq(n, s->n);
	for (size_t k = 0; k < n; k++) {
		struct fiber_info *i = find(s, p[k].id, &times);

		check_eq(1, times);
		if (!i)
			continue;
		check(!strcmp(p[k].name, i->name));
		check(!strcmp("event", i->why));
		check(!strcmp("parked", i->state_name));
		check(i->entry == waits);
		check(i->stack_bytes >= p[k].stack);
		check(i->stack_used > 0 && i->stack_used <= i->stack_bytes);
		check(i->sp && i->ip);
		check_eq(0, i->tid);
		check_eq(0, i->library);
	}
}

TEST(every_one_once)
{
	static struct parked p[EACH * SIZES];

	ASSERT_EQ(0, start(2, 0));
	for (int n = 0; n < EACH; n++)
		for (int kind = 0; kind < SIZES; kind++)
			start_parked(&p[n * SIZES + kind], n, kind);
	ASSERT_TRUE(until(atomic_load(&arrived) == EACH * SIZES));
	ASSERT_TRUE(until(all_parked(p, EACH * SIZES)));
	check_parked(p, EACH * SIZES);
	check_eq(0, fiber_event_set(&gate));
	for (int k = 0; k < EACH * SIZES; k++)
		join(p[k].f);
	EXPECT_EQ(0, walk()->n);
	EXPECT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- states ---- */

static atomic_ullong id_of[4];
static atomic_int go_on;
static int pipe_fd[2];

static void *blocks(void *arg)
{
	char byte;

	atomic_store(&id_of[0], fiber_id(fiber_self()));
	check_eq(1, read(pipe_fd[0], &byte, 1));
	return NULL;
}

/* Keeps its processor: who is ready or new stays so. */
static void *runs(void *arg)
{
	fiber_no_preempt_begin();
	atomic_store(&id_of[1], fiber_id(fiber_self()));
	while (!atomic_load(&go_on))
		;
	fiber_no_preempt_end();
	return NULL;
}

static void *nothing(void *arg)
{
	return NULL;
}

static void *yields_to_runs(void *arg)
{
	fiber_t *f;

	atomic_store(&id_of[2], fiber_id(fiber_self()));
	f = spawn(runs, NULL);		/* at once: we are ready meanwhile */
	join(f);
	return NULL;
}

TEST(states)
{
	fiber_t *blocked, *ready, *new;
	struct fiber_info i;

	ASSERT_EQ(0, pipe(pipe_fd));
	ASSERT_EQ(0, start(1, SEC));	/* no turn ends before `runs` forbids it */
	blocked = spawn(blocks, NULL);
	ASSERT_TRUE(until(look_at(id_of[0]).state == FIBER_BLOCKED));
	EXPECT_NE(0, look_at(id_of[0]).tid);
	ready = spawn(yields_to_runs, NULL);
	ASSERT_TRUE(until(atomic_load(&id_of[1])));
	new = spawn(nothing, NULL);
	EXPECT_EQ(FIBER_NEW, look_at(fiber_id(new)).state);
	EXPECT_EQ(FIBER_READY, look_at(id_of[2]).state);
	EXPECT_STREQ("ready", look_at(id_of[2]).state_name);
	ASSERT_TRUE(until(look_at(id_of[1]).state == FIBER_RUNNING));
	i = look_at(id_of[1]);
	EXPECT_EQ(NULL, i.sp);
	EXPECT_EQ(0, i.stack_used);
	EXPECT_STREQ("", i.why);
	atomic_store(&go_on, 1);
	ASSERT_EQ(1, write(pipe_fd[1], "x", 1));
	join(blocked);
	join(ready);
	join(new);
	EXPECT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- what for ---- */

static fiber_mutex_t mutex = FIBER_MUTEX_INIT;
static fiber_rwlock_t rwlock = FIBER_RWLOCK_INIT;
static fiber_event_t done = FIBER_EVENT_INIT;

static void *holds(void *arg)
{
	fiber_set_name(fiber_self(), "holder");
	check_eq(0, fiber_mutex_lock(&mutex));
	check_eq(0, fiber_rwlock_wrlock(arg));
	check_eq(0, fiber_event_wait(&done));
	check_eq(0, fiber_rwlock_unlock(arg));
	check_eq(0, fiber_mutex_unlock(&mutex));
	return arg;
}

static void *wants_mutex(void *arg)
{
	check_eq(0, fiber_mutex_lock_until(&mutex, now_ns() + 3600 * SEC));
	check_eq(0, fiber_mutex_unlock(&mutex));
	return arg;
}

static void *wants_rwlock(void *arg)
{
	check_eq(0, fiber_rwlock_rdlock(arg));
	check_eq(0, fiber_rwlock_unlock(arg));
	return arg;
}

static void *wants_its_end(void *arg)
{
	join(arg);
	return NULL;
}

static bool waits_at(fiber_t *f, const char *why, const void *object, uint64_t owner)
{
	struct fiber_info i = look_at(fiber_id(f));

	return !strcmp(i.why, why) && i.object == object && i.owner == owner;
}

TEST(whom_they_wait_for)
{
	static fiber_rwlock_t ours = FIBER_RWLOCK_INIT;
	fiber_t *h, *w[4];

	ASSERT_EQ(0, start(2, 0));
	ASSERT_EQ(0, fiber_rwlock_wrlock(&ours));
	h = spawn(holds, &rwlock);
	ASSERT_TRUE(until(!strcmp(look_at(fiber_id(h)).why, "event")));
	EXPECT_EQ(NULL, look_at(fiber_id(h)).object);
	w[0] = spawn(wants_mutex, NULL);
	w[1] = spawn(wants_rwlock, &rwlock);
	w[2] = spawn(wants_rwlock, &ours);
	w[3] = spawn(wants_its_end, h);
	EXPECT_TRUE(until(waits_at(w[0], "mutex", &mutex, fiber_id(h))));
	EXPECT_STREQ("holder", look_at(fiber_id(w[0])).owner_name);
	EXPECT_TRUE(until(waits_at(w[1], "rwlock", &rwlock, fiber_id(h))));
	EXPECT_TRUE(until(waits_at(w[2], "rwlock", &ours, FIBER_OWNER_THREAD)));
	EXPECT_TRUE(until(waits_at(w[3], "join", h, fiber_id(h))));
	EXPECT_STREQ("holder", look_at(fiber_id(w[3])).owner_name);
	check_eq(0, fiber_event_set(&done));
	ASSERT_EQ(0, fiber_rwlock_unlock(&ours));
	for (int i = 0; i < 4; i++)
		join(w[i]);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- how long ---- */

TEST(how_long)
{
	static struct parked p;
	uint64_t begin = now_ns(), for_ns;

	ASSERT_EQ(0, start(1, 0));
	p.f = spawn(waits, &p);
	ASSERT_TRUE(until(atomic_load(&arrived)));
	ASSERT_TRUE(until(look_at(p.id).state == FIBER_PARKED));
	ASSERT_TRUE(until(look_at(p.id).for_ns > 50 * MS));
	for_ns = look_at(p.id).for_ns;
	EXPECT_GE(now_ns() - begin, for_ns);
	check_eq(0, fiber_event_set(&gate));
	join(p.f);
	EXPECT_EQ(0, fiber_fini());
	EXPECT_EQ(0, failures);
}

/* ---- while they run ---- */

enum { STILL = 200, WALKS = 30 };
static struct parked still[STILL];
static atomic_int stop_churn;
static atomic_ulong churned;

static void *churns(void *arg)
{
	while (!atomic_load(&stop_churn)) {
		fiber_t *f[8];

		for (int i = 0; i < 8; i++)
			f[i] = spawn(nothing, NULL);
		check_eq(0, fiber_spawn(NULL, nothing, NULL));
		for (int i = 0; i < 8; i++)
			join(f[i]);
		atomic_fetch_add(&churned, 9);
	}
	return NULL;
}

static void check_still(void)
{
	struct seen *s = walk();
	int times;

	for (int k = 0; k < STILL; k++) {
		find(s, still[k].id, &times);
		check_eq(1, times);
	}
}

/* The walker is a fiber too: it is seen. */
static void *walks(void *arg)
{
	struct fiber_info *me;
	int times;

	for (int n = 0; n < WALKS || atomic_load(&churned) < 1000; n++) {
		check_still();
		me = find(walk(), fiber_id(fiber_self()), &times);
		check_eq(1, times);
		check(me && me->state == FIBER_RUNNING);
		fiber_yield();
	}
	return NULL;
}

TEST(while_they_run)
{
	fiber_t *c[3];

	ASSERT_EQ(0, start(2, 0));
	for (int k = 0; k < STILL; k++)
		still[k].f = spawn(waits, &still[k]);
	ASSERT_TRUE(until(atomic_load(&arrived) == STILL));
	for (int k = 0; k < 3; k++)
		c[k] = spawn(churns, NULL);
	for (int n = 0; n < WALKS; n++)
		check_still();
	join(spawn(walks, NULL));
	atomic_store(&stop_churn, 1);
	for (int k = 0; k < 3; k++)
		join(c[k]);
	check_eq(0, fiber_event_set(&gate));
	for (int k = 0; k < STILL; k++)
		join(still[k].f);
	(void)until(!walk()->n);	/* detached ones */
	EXPECT_EQ(0, walk()->n);
	EXPECT_EQ(0, fini_soon());
	EXPECT_EQ(0, failures);
}

/* ---- from outside ---- */

static pid_t target;

static void get(uint64_t from, void *to, size_t n)
{
	struct iovec local = { to, n }, remote = { (void *)from, n };

	check_eq(n, process_vm_readv(target, &local, 1, &remote, 1, 0));
}

static uint64_t word(uint64_t from)
{
	uint64_t v = 0;

	get(from, &v, sizeof(v));
	return v;
}

/* Named "waits-N" in a slab, parked; others are not to be there. */
static unsigned int count_slab(const struct fiber_debug *d, uint64_t slab)
{
	uint64_t bytes = word(slab + d->slab.bytes), n = 0, f, at, id;
	uint64_t stride = word(slab + d->slab.stride);
	uint64_t base = slab + d->slab.size - bytes;
	uint64_t end = base + word(slab + d->slab.used);
	uint32_t colours;
	uint8_t why;
	char name[16];

	get(slab + d->slab.colours, &colours, sizeof(colours));
	at = word(slab + d->slab.at);
	for (; base < end; base += stride) {
		f = base + at - base / stride % colours * d->colour_size;
		id = word(f + d->fiber.id);
		if (!id || word(f + d->fiber.join) == d->join_done)
			continue;
		get(f + d->fiber.name, name, sizeof(name));
		get(f + d->fiber.why, &why, sizeof(why));
		check(why > 0 && why < d->why_count);
		check(!strncmp(name, "kind", 4));
		n++;
	}
	return n;
}

static unsigned int count_outside(void)
{
	struct fiber_debug d;
	unsigned int n = 0;
	uint64_t slab;

	get((uintptr_t)&fiber_debug_v1, &d, sizeof(d));
	check(!memcmp(d.magic, FIBER_DEBUG_MAGIC, sizeof(d.magic)));
	check_eq(1, d.version);
	check_eq(sizeof(d), d.size);
	for (slab = word(d.slabs); slab; slab = word(slab + d.slab.next))
		n += count_slab(&d, slab);
	return n;
}

static void be_seen(int out, int in)
{
	static struct parked p[EACH * SIZES];
	char byte;

	check_eq(0, start(2, 0));
	for (int n = 0; n < EACH; n++)
		for (int kind = 0; kind < SIZES; kind++)
			start_parked(&p[n * SIZES + kind], n, kind);
	check(until(atomic_load(&arrived) == EACH * SIZES));
	check(until(all_parked(p, EACH * SIZES)));
	check_eq(1, write(out, "x", 1));
	check_eq(1, read(in, &byte, 1));
	_exit(failures != 0);
}

TEST(from_outside)
{
	int up[2], down[2], status;
	char byte;

	ASSERT_EQ(0, pipe(up));
	ASSERT_EQ(0, pipe(down));
	target = fork();
	if (!target)
		be_seen(up[1], down[0]);
	close(up[1]);
	ASSERT_EQ(1, read(up[0], &byte, 1));
	EXPECT_EQ(EACH * SIZES, count_outside());
	ASSERT_EQ(1, write(down[1], "x", 1));
	ASSERT_EQ(target, waitpid(target, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, failures);
}

/* ---- answers ---- */

static int stops(const struct fiber_info *i, void *arg)
{
	++*(int *)arg;
	return 42;
}

TEST(answers)
{
	static struct parked p[2];
	int calls = 0;

	EXPECT_EQ(-EINVAL, fiber_walk(NULL, NULL));
	EXPECT_EQ(-EPERM, fiber_walk(stops, &calls));
	ASSERT_EQ(0, start(1, 0));
	EXPECT_EQ(0, fiber_walk(stops, &calls));
	EXPECT_EQ(0, calls);
	for (int i = 0; i < 2; i++)
		p[i].f = spawn(waits, &p[i]);
	ASSERT_TRUE(until(atomic_load(&arrived) == 2));
	EXPECT_EQ(42, fiber_walk(stops, &calls));
	EXPECT_EQ(1, calls);
	check_eq(0, fiber_event_set(&gate));
	join(p[0].f);
	join(p[1].f);
	EXPECT_EQ(0, fiber_fini());
	EXPECT_EQ(-EPERM, fiber_walk(stops, &calls));
	EXPECT_EQ(0, failures);
}

TEST_HARNESS_MAIN
