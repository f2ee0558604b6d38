// SPDX-License-Identifier: GPL-2.0-only
/*
 * calls.c - what a program can do
 *
 * File numbers and maps are slots of the process: opening or mapping fills one,
 * whoever uses an empty one gets an error from the kernel, which is fine.
 * Numbers select from tables, so that a small change of a number is a real
 * change. Memory that may be gone is touched by execute_try() only.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../module/raw.h"
#include "fuzz.h"

struct fuzz_map fuzz_map[MAPS];
int fuzz_file[FILES] = { -1, -1, -1, -1 };
int fuzz_tid[THREADS];

static struct fiber_setup_args setup_of[FILES];
static unsigned int next_map;
static __thread void *my_xsave;
extern __thread void *raw_xsave;
extern char __start_raw_text[], __stop_raw_text[];

static const uint64_t values[] = {
	0, 1, 2, 3, 4, 5, 8, 16, 63, 64, 255, 4095, 4096, 4097, 65536,
	50000, 1000000, 10000000, 1000000000, 0x7fffffff, 0x80000000, 0xffffffff,
	1ULL << 32, 0x7fffffffffff, 0x7ffffffff000, 0x800000000000,
	0x8000000000000000, 0xffff888000000000, 0xffffffff81000000, ~0ULL,
};
#define COUNT(v)	(sizeof(v) / sizeof((v)[0]))

uint64_t fuzz_value(uint32_t which)
{
	return which < COUNT(values) ? values[which] : which;
}

static int file_of(const struct call *c)
{
	return fuzz_file[c->fd % FILES];
}

/* Mostly @good; else where a copy fails, or half of it does. */
static void *pointer(uint32_t which, void *good)
{
	switch (which) {
	case 13: return NULL;
	case 14: return (void *)fuzz_map[MAP_INFO].base;	/* read only */
	case 15: return (void *)0xffff888000000000;
	default: return good;
	}
}

/* Break word @field of a struct, unless @field is 0. */
static void spoil(void *args, size_t size, uint32_t field, uint32_t which)
{
	uint64_t v = fuzz_value(which);

	if (field && field <= size / 4)
		memcpy((char *)args + (field - 1) * 4, &v,
		       field < size / 4 ? 8 : 4);
}

/* ---- ioctl ---- */

static void call_open(const struct call *c)
{
	fuzz_file[c->fd % FILES] = open("/dev/fiber", O_RDWR | O_CLOEXEC);
}

/* a: a group that works; b, c: one field of it broken */
static void call_setup(const struct call *c)
{
	static const uint64_t quanta[] = { 0, 50000, 200000, 1000000 };
	static const uint64_t graces[] = { 0, 1000, 50000, 10000000 };
	struct raw_options o = {
		.processors = 1 + (c->a & 3),
		.quantum_ns = quanta[c->a >> 2 & 3],
		.grace_ns = graces[c->a >> 4 & 3],
		.preempt = c->a >> 6 & 1,
		.min_spares = c->a >> 7 & 3,
		.max_carriers = c->a >> 9 & 1 ? 3 : 16,
	};
	struct fiber_setup_args a;

	raw_good_setup(&a, &o);
	spoil(&a, sizeof(a), c->b, c->c);
	if (!ioctl(file_of(c), FIBER_IOC_SETUP, pointer(c->c, &a))) {
		setup_of[c->fd % FILES] = a;
		raw_fd = file_of(c);
	}
}

static void call_attach(const struct call *c)
{
	struct fiber_attach_args a = { .carrier = ~0U };

	spoil(&a, sizeof(a), c->a, c->b);
	if (!my_xsave)
		my_xsave = mmap(NULL, 65536, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	raw_xsave = my_xsave;
	if (ioctl(file_of(c), FIBER_IOC_ATTACH, pointer(c->c, &a)))
		return;
	raw_index = a.carrier;
	if (fuzz_map[MAP_CARRIERS].base)
		raw_page = (void *)(fuzz_map[MAP_CARRIERS].base + a.carrier * 1024);
}

static void call_detach(const struct call *c)
{
	ioctl(file_of(c), FIBER_IOC_DETACH, 0);
}

static void call_acquire(const struct call *c)
{
	ioctl(file_of(c), FIBER_IOC_ACQUIRE, 0);
}

/* a: flags; b: deadline in us from now, or a value; c: pointer */
static void call_wait(const struct call *c)
{
	static const uint32_t flags[] = {
		FIBER_WAIT_READY, FIBER_WAIT_SPARE,
		FIBER_WAIT_READY | FIBER_WAIT_GIVE,
		FIBER_WAIT_SPARE | FIBER_WAIT_GIVE,
		FIBER_WAIT_READY | FIBER_WAIT_GIVE | FIBER_WAIT_TO_SPARE,
		FIBER_WAIT_SPARE | FIBER_WAIT_GIVE | FIBER_WAIT_SURE,
		FIBER_WAIT_SPARE | FIBER_WAIT_SURE,
	};
	struct fiber_wait_args a = {
		.flags = c->a < COUNT(flags) ? flags[c->a] : c->a,
	};

	if (a.flags & FIBER_WAIT_SPARE && c->b)
		a.deadline_ns = c->b < 4096 ? raw_now() + c->b * 1000ULL
					    : fuzz_value(c->b % 64);
	ioctl(file_of(c), FIBER_IOC_WAIT, pointer(c->c, &a));
}

static void call_wake(const struct call *c)
{
	ioctl(file_of(c), FIBER_IOC_WAKE, 0);
}

static void call_keep(const struct call *c)
{
	ioctl(file_of(c), FIBER_IOC_KEEP, 0);
}

static void call_stacks(const struct call *c)
{
	struct fiber_stacks_args a = {
		.base = 0x100000000 + (c->a & 15) * 0x100000,
		.stride = 0x10000, .count = 1 + (c->a >> 4 & 15), .guard = 4096,
	};

	spoil(&a, sizeof(a), c->b, c->c);
	ioctl(file_of(c), FIBER_IOC_STACKS, pointer(c->c, &a));
}

static void call_text(const struct call *c)
{
	struct fiber_text_args a = {
		.start = (uintptr_t)__start_raw_text,
		.end = (uintptr_t)__stop_raw_text,
	};

	spoil(&a, sizeof(a), c->a, c->b);
	ioctl(file_of(c), FIBER_IOC_TEXT, pointer(c->c, &a));
}

static void call_query(const struct call *c)
{
	struct fiber_query_args a = { 0 };

	spoil(&a, sizeof(a), c->a, c->b);
	ioctl(file_of(c), FIBER_IOC_QUERY, pointer(c->c, &a));
}

/* Numbers near ours, other sizes and directions */
static void call_ioctl(const struct call *c)
{
	static char room[4096];
	unsigned long cmd = c->b & 1 ? FIBER_IOC_SETUP + c->a
				     : 0xfb00UL | (c->a & 0xff) | c->b << 16;

	ioctl(file_of(c), cmd, pointer(c->c, room));
}

/* ---- files and memory ---- */

static void call_close(const struct call *c)
{
	close(file_of(c));
}

static void call_dup(const struct call *c)
{
	fuzz_file[c->a % FILES] = dup(file_of(c));
}

/* a: what; b: pages (0: all); c: protection */
static void call_mmap(const struct call *c)
{
	struct fiber_setup_args *s = &setup_of[c->fd % FILES];
	uint64_t offset[] = { s->off_info, s->off_hint, s->off_processors,
			      s->off_carriers };
	uint32_t all[] = { 1, 1, s->processors, s->max_carriers };
	uint32_t pages = c->b ? c->b % 2048 : 1, slot;
	int prot = PROT_READ | PROT_WRITE;
	void *p;

	if (c->a < MAP_KINDS && !c->b)
		pages = all[c->a];
	if (c->a == MAP_INFO)
		prot = PROT_READ;
	if (c->c)
		prot = c->c & 7;
	p = mmap(NULL, pages * RAW_PAGE, prot, c->c & 8 ? MAP_PRIVATE : MAP_SHARED,
		 file_of(c), c->a < MAP_KINDS ? (off_t)offset[c->a]
					      : (off_t)fuzz_value(c->a) << 12);
	if (p == MAP_FAILED)
		return;
	slot = c->a < MAP_KINDS && !fuzz_map[c->a].base ? c->a :
		MAP_KINDS + __atomic_fetch_add(&next_map, 1, __ATOMIC_RELAXED) %
		(MAPS - MAP_KINDS);
	fuzz_map[slot].pages = pages;
	fuzz_map[slot].kind = c->a;
	__atomic_store_n(&fuzz_map[slot].base, p, __ATOMIC_RELEASE);
}

static struct fuzz_map *map_of(const struct call *c)
{
	return &fuzz_map[c->a % MAPS];
}

static void call_munmap(const struct call *c)
{
	struct fuzz_map *m = map_of(c);

	if (m->base)
		munmap((void *)m->base, (c->b ? 1 : m->pages) * RAW_PAGE);
}

static void call_mremap(const struct call *c)
{
	struct fuzz_map *m = map_of(c);

	if (m->base)
		mremap((void *)m->base, m->pages * RAW_PAGE,
		       (1 + c->b % 32) * RAW_PAGE, MREMAP_MAYMOVE);
}

static void call_mprotect(const struct call *c)
{
	struct fuzz_map *m = map_of(c);

	if (m->base)
		mprotect((void *)m->base, m->pages * RAW_PAGE, c->b & 7);
}

static void call_madvise(const struct call *c)
{
	struct fuzz_map *m = map_of(c);

	if (m->base)
		madvise((void *)m->base, m->pages * RAW_PAGE, c->b % 26);
}

static void touch(const void *arg)
{
	const struct call *c = arg;
	struct fuzz_map *m = map_of(c);

	m->base[(c->b % m->pages) * 1024 + c->c % 48] = c->c;
}

static void call_touch(const struct call *c)
{
	if (map_of(c)->base && map_of(c)->pages)
		execute_try(touch, c);
}

static void call_other(const struct call *c)
{
	struct pollfd p = { .fd = file_of(c), .events = POLLIN | POLLOUT };
	char buffer[64] = "";

	switch (c->a % 6) {
	case 0: (void)!read(p.fd, buffer, sizeof(buffer)); break;
	case 1: (void)!write(p.fd, buffer, sizeof(buffer)); break;
	case 2: poll(&p, 1, 0); break;
	case 3: lseek(p.fd, c->b, SEEK_SET); break;
	case 4: fsync(p.fd); break;
	default: fcntl(p.fd, F_SETFL, O_NONBLOCK | O_ASYNC);
	}
}

static void call_fdinfo(const struct call *c)
{
	char path[64], text[1024];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", file_of(c));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	(void)!read(fd, text, sizeof(text));
	close(fd);
}

/* ---- being a fiber ---- */

static void set_in_fiber(const void *arg)
{
	const struct call *c = arg;

	raw_page->no_preempt = c->a == 1;
	raw_page->in_fiber = 1;
}

static void call_enter(const struct call *c)
{
	if (raw_page)
		execute_try(set_in_fiber, c);
}

static void clear_in_fiber(const void *arg)
{
	raw_page->in_fiber = 0;
}

static void call_leave(const struct call *c)
{
	if (raw_page)
		execute_try(clear_in_fiber, c);
}

static void call_block(const struct call *c)
{
	raw_sleep(c->a % 2000);
}

static RAW_TEXT void spin(uint64_t n)
{
	while (n--)
		asm volatile("");
}

static void call_spin(const struct call *c)
{
	spin(c->a < 16 ? c->a * 100000ULL : c->a % 1000000);
}

static void call_yield(const struct call *c)
{
	sched_yield();
}

static void publish(const void *arg)
{
	const struct call *c = arg;

	if (fuzz_map[MAP_HINT].base)
		fuzz_map[MAP_HINT].base[0] = c->b;
	for (uint32_t i = 0; i < fuzz_map[MAP_PROCESSORS].pages; i++)
		fuzz_map[MAP_PROCESSORS].base[i * 1024] = c->a & 3;
}

static void call_publish(const struct call *c)
{
	if (fuzz_map[MAP_PROCESSORS].base)
		execute_try(publish, c);
}

/* ---- threads and processes ---- */

static void call_kick(const struct call *c)
{
	syscall(SYS_tgkill, getpid(), fuzz_tid[c->a % THREADS],
		c->b & 1 ? SIGUSR1 : SIGUSR2);
}

static void call_exit(const struct call *c)
{
	syscall(SYS_exit, 0);
}

static void in_child(const struct call *c)
{
	struct call again = *c;
	char *quick[] = { "true", NULL };

	switch (c->a % 4) {
	case 0: break;
	case 1:
		call_wake(c);
		call_attach(&(struct call){ .fd = c->fd });
		call_acquire(c);
		break;
	case 2:
		again.a = c->b;
		call_mmap(&again);
		call_setup(&(struct call){ .fd = c->fd });
		break;
	default:
		execv("/bin/true", quick);
	}
	_exit(0);
}

static void call_fork(const struct call *c)
{
	pid_t child = c->c & 1 ? vfork() : fork();

	if (!child) {
		if (c->c & 1)
			_exit(0);
		in_child(c);
	}
	if (child > 0)
		waitpid(child, NULL, 0);
}

/* The whole process becomes another program: that ends this one. */
static void call_exec(const struct call *c)
{
	char *quick[] = { "true", NULL };

	if (c->a == 1)
		execv("/bin/true", quick);
}

static void call_affinity(const struct call *c)
{
	unsigned long mask = c->a % 16;

	syscall(SYS_sched_setaffinity, 0, sizeof(mask), &mask);
}

const struct op fuzz_op[] = {
	{ "open", call_open, 2 }, { "setup", call_setup, 4 },
	{ "attach", call_attach, 8 }, { "detach", call_detach, 2 },
	{ "acquire", call_acquire, 6 }, { "wait", call_wait, 20 },
	{ "wake", call_wake, 8 }, { "keep", call_keep, 3 },
	{ "stacks", call_stacks, 3 }, { "text", call_text, 3 },
	{ "query", call_query, 2 }, { "ioctl", call_ioctl, 2 },
	{ "close", call_close, 2 }, { "dup", call_dup, 2 },
	{ "mmap", call_mmap, 5 }, { "munmap", call_munmap, 2 },
	{ "mremap", call_mremap, 2 }, { "mprotect", call_mprotect, 2 },
	{ "madvise", call_madvise, 2 }, { "touch", call_touch, 4 },
	{ "other", call_other, 1 }, { "fdinfo", call_fdinfo, 2 },
	{ "enter", call_enter, 10 }, { "leave", call_leave, 4 },
	{ "block", call_block, 10 }, { "spin", call_spin, 6 },
	{ "yield", call_yield, 2 }, { "publish", call_publish, 6 },
	{ "kick", call_kick, 5 }, { "exit", call_exit, 1 },
	{ "fork", call_fork, 1 }, { "exec", call_exec, 1 },
	{ "affinity", call_affinity, 2 },
};
const unsigned int fuzz_ops = COUNT(fuzz_op);

int fuzz_op_find(const char *name)
{
	for (unsigned int i = 0; i < fuzz_ops; i++)
		if (!strcmp(fuzz_op[i].name, name))
			return (int)i;
	return -1;
}
