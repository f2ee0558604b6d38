// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * kern.c - the kernel backend: /dev/fiber
 *
 * The only file that knows <linux/fiber.h>; it proves that the words of
 * backend.h are the pages of the module. All the rest is one ioctl a door.
 *
 * The descriptor is moved out of the way of programs that close or count
 * theirs. If it is closed all the same, or reused for another file, nothing
 * can go on: one clear line, and abort.
 */
#include <cpuid.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/fiber.h>

#include "fb.h"

#define DEVICE		"/dev/fiber"
#define SHSTK_STATUS	0x5005		/* ARCH_SHSTK_STATUS */

#define SAME(a, fa, b, fb)						\
	_Static_assert(offsetof(struct a, fa) == offsetof(struct b, fb) && \
		       sizeof(((struct a *)0)->fa) ==			\
		       sizeof(((struct b *)0)->fb), #b "." #fb)
#define SAME_SIZE(a, b)							\
	_Static_assert(sizeof(struct a) == sizeof(struct b), #b)

SAME_SIZE(fb_info, fiber_info_page);
SAME(fb_info, avail, fiber_info_page, avail);
SAME(fb_info, waiting, fiber_info_page, waiting);
SAME(fb_info, spares, fiber_info_page, spares);
SAME(fb_info, idle, fiber_info_page, idle);
SAME(fb_info, carriers, fiber_info_page, carriers);
SAME(fb_info, dead, fiber_info_page, dead);
SAME_SIZE(fb_hint, fiber_hint_page);
SAME(fb_hint, work, fiber_hint_page, work);
SAME_SIZE(fb_ppage, fiber_processor_page);
SAME(fb_ppage, takeover, fiber_processor_page, takeover);
SAME(fb_ppage, seq, fiber_processor_page, seq);
SAME(fb_ppage, owner, fiber_processor_page, owner);
SAME_SIZE(fb_cpage, fiber_carrier_page);
SAME(fb_cpage, in_fiber, fiber_carrier_page, in_fiber);
SAME(fb_cpage, no_preempt, fiber_carrier_page, no_preempt);
SAME(fb_cpage, processor, fiber_carrier_page, processor);
SAME(fb_cpage, pending, fiber_carrier_page, pending);
SAME(fb_cpage, depth, fiber_carrier_page, depth);
SAME(fb_cpage, slot, fiber_carrier_page, slot);
SAME(fb_cpage, blocks, fiber_carrier_page, blocks);
SAME(fb_cpage, handoffs, fiber_carrier_page, handoffs);
SAME(fb_cpage, returns, fiber_carrier_page, returns);
SAME(fb_cpage, preempts, fiber_carrier_page, preempts);
SAME(fb_cpage, refused, fiber_carrier_page, refused);

_Static_assert((int)FB_WAIT_READY == FIBER_WAIT_READY &&
	       (int)FB_WAIT_SPARE == FIBER_WAIT_SPARE &&
	       (int)FB_WAIT_GIVE == FIBER_WAIT_GIVE &&
	       (int)FB_WAIT_TO_SPARE == FIBER_WAIT_TO_SPARE &&
	       (int)FB_WAIT_SURE == FIBER_WAIT_SURE, "FIBER_WAIT_*");
_Static_assert((int)FB_EVENT_NONE == FIBER_EVENT_NONE &&
	       (int)FB_EVENT_IDLE == FIBER_EVENT_IDLE &&
	       (int)FB_EVENT_BLOCK == FIBER_EVENT_BLOCK &&
	       (int)FB_EVENT_GIVEN == FIBER_EVENT_GIVEN &&
	       (int)FB_EVENT_WAKE == FIBER_EVENT_WAKE &&
	       (int)FB_EVENT_EXIT == FIBER_EVENT_EXIT, "FIBER_EVENT_*");
_Static_assert((int)FB_TAKEOVER_READY == FIBER_TAKEOVER_READY &&
	       (int)FB_TAKEOVER_WATCH == FIBER_TAKEOVER_WATCH &&
	       FB_NO_PROCESSOR == FIBER_NO_PROCESSOR &&
	       FB_SLOTS == FIBER_SLOTS, "numbers");

/* upcall.S */
extern const char fb_upcall_return[] __attribute__((visibility("hidden")));
extern const char fb_upcall_return_end[] __attribute__((visibility("hidden")));
extern const char fb_upcall_preempt[] __attribute__((visibility("hidden")));
uint32_t fb_upcall_acquire = FIBER_IOC_ACQUIRE;
/* How upcall.S saves the extended state: xsave, xsavec, or fxsave. */
enum { XSAVE, XSAVEC, FXSAVE };
uint8_t fb_upcall_xsave;
_Noreturn void fb_upcall_abort(long err);

/* fb_group.backend: its mapped pages. */
struct map {
	size_t page;
	uint32_t carriers;
	char *info, *hint, *processors, *carrier_pages;
	uint32_t nproc;
	struct fb_ppage *ppage[];
};

static long call(const struct fb_group *g, unsigned long cmd, void *arg)
{
	int err = errno;
	long r = ioctl(g->fd, cmd, arg);

	if (r < 0)
		r = -errno;
	errno = err;
	return r;
}

/*
 * The number is no descriptor, or names another file: of anything (ENOTTY), a
 * /dev/fiber without a group (ENXIO), or with another process's (EPERM). To
 * take that for "nobody was woken" would be to ask for ever.
 */
static bool not_ours(long r)
{
	return r == -EBADF || r == -ENOTTY || r == -ENXIO || r == -EPERM;
}

static _Noreturn void lost(const struct fb_group *g, long err)
{
	fb_die(DEVICE " (descriptor %d) was closed or replaced while fibers ran: error %ld",
	       g->fd, -err);
}

_Noreturn void fb_upcall_abort(long err)
{
	lost(fb_self->group, err);
}

/* What no carrier survives. */
static long call_or_die(const struct fb_group *g, unsigned long cmd, void *arg)
{
	long r = call(g, cmd, arg);

	if (not_ours(r) || (r == -ESHUTDOWN && !fb_group_ends(g)))
		lost(g, r);
	return r;
}

/* ---- setup ---- */

/* Bytes of this CPU's extended state; sets how to save it. */
static uint32_t xsave_size(void)
{
	unsigned int a, b, c, d, size;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27)))
		goto fxsave;
	if (!__get_cpuid_count(0xd, 0, &a, &b, &c, &d))
		goto fxsave;
	fb_upcall_xsave = XSAVE;
	size = b;
	if (__get_cpuid_count(0xd, 1, &a, &b, &c, &d) && (a & 2)) {
		fb_upcall_xsave = XSAVEC;
		if (b > size)
			size = b;
	}
	return (size + 63) & ~63u;
fxsave:
	/* All there is without xsave: x87 and SSE. The rest of 576 is cleared. */
	fb_upcall_xsave = FXSAVE;
	return 576;
}

static bool shadow_stack(void)
{
	unsigned long status = 0;
	int err = errno;
	bool on = !syscall(SYS_arch_prctl, SHSTK_STATUS, &status) &&
		  (status & 1);

	errno = err;
	return on;
}

static int open_device(struct fb_group *g)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	g->fd = fb_os_high(fd);
	return 0;
}

static char *map_pages(const struct fb_group *g, uint64_t off, size_t n, int prot)
{
	const struct map *map = g->backend;
	char *m = mmap(NULL, n * map->page, prot, MAP_SHARED, g->fd, (off_t)off);

	return m == MAP_FAILED ? NULL : m;
}

static void kern_close(struct fb_group *g)
{
	struct map *map = g->backend;

	if (map) {
		if (map->info)
			munmap(map->info, map->page);
		if (map->hint)
			munmap(map->hint, map->page);
		if (map->processors)
			munmap(map->processors, map->nproc * map->page);
		if (map->carrier_pages)
			munmap(map->carrier_pages, map->carriers * map->page);
		munmap(map, sizeof(*map) + map->nproc * sizeof(map->ppage[0]));
		g->backend = NULL;
	}
	if (g->fd >= 0)
		close(g->fd);
	g->fd = -1;
}

static int map_group(struct fb_group *g, struct fb_setup *s,
		     const struct fiber_setup_args *a, size_t page)
{
	struct map *map;
	size_t size = sizeof(*map) + s->processors * sizeof(map->ppage[0]);
	void *m = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		return -ENOMEM;
	g->backend = map = m;
	map->page = page;
	map->nproc = s->processors;
	map->carriers = a->max_carriers;
	map->info = map_pages(g, a->off_info, 1, PROT_READ);
	map->hint = map_pages(g, a->off_hint, 1, PROT_READ | PROT_WRITE);
	map->processors = map_pages(g, a->off_processors, map->nproc,
				    PROT_READ | PROT_WRITE);
	map->carrier_pages = map_pages(g, a->off_carriers, map->carriers,
				       PROT_READ | PROT_WRITE);
	if (!map->info || !map->hint || !map->processors || !map->carrier_pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < map->nproc; i++)
		map->ppage[i] = (struct fb_ppage *)(map->processors + i * page);
	s->info = (struct fb_info *)map->info;
	s->hint = (struct fb_hint *)map->hint;
	s->ppage = map->ppage;
	return 0;
}

static int setup_group(struct fb_group *g, struct fb_setup *s)
{
	struct fiber_query_args q = { 0 };
	struct fiber_setup_args a = { 0 };
	int r = (int)call(g, FIBER_IOC_QUERY, &q);

	if (r)
		return r;
	if (q.api != FIBER_API_VERSION)
		return -EPROTO;
	if (s->processors > q.max_processors)
		s->processors = q.max_processors;
	if (s->max_carriers > q.max_carriers)
		s->max_carriers = q.max_carriers;
	fb_rt.xsave_size = xsave_size();
	a.processors = s->processors;
	a.quantum_ns = s->quantum_ns > q.min_quantum_ns ? s->quantum_ns :
							  q.min_quantum_ns;
	a.grace_ns = s->grace_ns;
	a.max_carriers = s->max_carriers;
	a.min_spares = s->min_spares;
	a.return_ip = (uintptr_t)fb_upcall_return;
	a.return_end = (uintptr_t)fb_upcall_return_end;
	if (q.features & FIBER_FEAT_PREEMPT)
		a.preempt_ip = (uintptr_t)fb_upcall_preempt;
	r = (int)call(g, FIBER_IOC_SETUP, &a);
	if (r)
		return r;
	s->features = FIBER_FEATURE_KERNEL | FIBER_FEATURE_HANDOFF |
		      FIBER_FEATURE_EXACT | FIBER_FEATURE_NO_SIGNAL |
		      FIBER_FEATURE_CANCEL_BLOCKED;
	if (a.preempt_ip)
		s->features |= FIBER_FEATURE_PREEMPT;
	if (!a.max_carriers)
		a.max_carriers = s->max_carriers;
	return map_group(g, s, &a, q.page_size);
}

static int kern_setup(struct fb_group *g, struct fb_setup *s)
{
	int r;

	if (shadow_stack())
		return -EOPNOTSUPP;
	g->backend = NULL;
	g->fd = -1;
	r = open_device(g);
	if (!r)
		r = setup_group(g, s);
	if (r)
		kern_close(g);
	return r;
}

/* ---- carriers ---- */

static int kern_attach(struct fb_carrier *c)
{
	struct fiber_attach_args a = { 0 };
	const struct map *map = c->group->backend;
	long r = call(c->group, FIBER_IOC_ATTACH, &a);

	if (r)
		return (int)r;
	c->index = a.carrier;
	c->fd = c->group->fd;
	/* Pairs with fiber_get_stats. */
	FB_RELEASE(c->page, (struct fb_cpage *)(map->carrier_pages +
						a.carrier * map->page));
	return 0;
}

static void kern_detach(struct fb_carrier *c)
{
	call(c->group, FIBER_IOC_DETACH, NULL);
}

static int kern_wait(struct fb_carrier *c, unsigned int flags,
		     uint64_t deadline)
{
	struct fiber_wait_args a = {
		.flags = flags,
		.deadline_ns = deadline,
	};
	long r = call_or_die(c->group, FIBER_IOC_WAIT, &a);

	return r < 0 ? (int)r : (int)a.event;
}

static int kern_wake(struct fb_group *g)
{
	return call_or_die(g, FIBER_IOC_WAKE, NULL) == 1;
}

static int kern_keep(struct fb_group *g)
{
	return (int)call_or_die(g, FIBER_IOC_KEEP, NULL);
}

static int kern_stacks(struct fb_group *g, const struct fb_arena *arena)
{
	struct fiber_stacks_args a = {
		.base = (uintptr_t)arena->base,
		.stride = arena->stride,
		.count = arena->count,
		.guard = arena->guard,
	};

	return (int)call(g, FIBER_IOC_STACKS, &a);
}

static int kern_text(struct fb_group *g, uintptr_t start, uintptr_t end)
{
	struct fiber_text_args a = { .start = start, .end = end };

	return (int)call(g, FIBER_IOC_TEXT, &a);
}

/* The pages are not in the child, and the group is not the child's. */
void fb_kern_fork_child(struct fb_group *g)
{
	if (g->fd >= 0)
		close(g->fd);
	g->fd = -1;
}

const struct fb_backend fb_kern = {
	.name = "kernel",
	.setup = kern_setup,
	.attach = kern_attach,
	.detach = kern_detach,
	.wait = kern_wait,
	.wake = kern_wake,
	.keep = kern_keep,
	.stacks = kern_stacks,
	.text = kern_text,
	.close = kern_close,
};
