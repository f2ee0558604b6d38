// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * guard.c - the end of a stack: guard pages, canaries, and the report
 *
 * The best guard there is, block by block, in this order:
 *   install   MADV_GUARD_INSTALL (Linux 6.13): a page without a mapping of its
 *             own
 *   mprotect  costs the process two mappings a block, so at most half of
 *             vm.max_map_count goes there
 *   canary    a line of known words at the low end, checked at each switch out
 *             of the fiber and at its end (fiber.canary)
 * Small stacks and the program's own memory have a canary from the start, of words that
 * depend on their address. Other blocks have the zeros of new memory for it: to write
 * there would commit one page more of each, twice what a small fiber needs, while to
 * read maps the kernel's page of zeros. So the same check looks at sp, too: a fiber
 * that is below its stack when it stops has overflowed, whatever it wrote. (What was
 * there before, left nothing but zeros, and is back is not found.) But sp elsewhere is
 * no overflow: a coroutine has a stack of its own, and the program may. When a page was
 * wanted and not to be had, one line on stderr says so, and FIBER_FEATURE_CANARY is set
 * in place of FIBER_FEATURE_GUARD.
 * FIBER_STACK_GUARD=mprotect or canary begins further down.
 *
 * A fault on the guard page of the fiber that runs is reported on the carrier's
 * alternate stack: then the default action follows, by the same instruction
 * again, so that a core file shows it. Any other fault goes where it would go
 * without us. A sanitizer reports overflows by itself, and keeps the signal.
 *
 * The handler names the function as a dump does (symbol.c): without a lock.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "stack.h"
#include "symbol.h"
#include "trace.h"

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ	51
#endif
#define GUARD_INSTALL	102	/* MADV_GUARD_INSTALL, Linux 6.13 */
#define CANARY		0x5ca1ab1edeadfa11ull
#define NEAR		(1u << 20)	/* a frame so large is still an overflow */

enum guard { INSTALL, MPROTECT, CANARIES };

static struct {
	size_t page;
	uint32_t kind;			/* enum guard, atomic */
	size_t left;			/* atomic: mprotect ones still allowed */
	size_t max_maps;
	bool installed;			/* the handler */
	struct sigaction previous;
} gd;

/* Its canary is damaged: for the handler, which the same thread enters next. */
static __thread const struct fiber *broken
	__attribute__((tls_model("initial-exec")));

/* ---- canaries ---- */

void fb_guard_canary(struct fiber *f, void *low)
{
	uint64_t *word = low;

	for (size_t i = 0; i < FB_CANARY_SIZE / sizeof(*word); i++)
		word[i] = CANARY ^ (uintptr_t)word;
	f->canary = FB_F_CANARY;
}

static __attribute__((no_sanitize("address"))) bool intact(const struct fiber *f)
{
	const uint64_t *word = f->base;
	uint64_t want = fb_klass_packed(f->klass) ? CANARY ^ (uintptr_t)word : 0;

	for (size_t i = 0; i < FB_CANARY_SIZE / sizeof(*word); i++)
		if (word[i] != want)
			return false;
	return true;
}

/* sp is below the stack of f: in its own block, or not far away in one of others. */
static bool below(const struct fiber *f, const char *sp)
{
	const char *base = f->base;

	return sp < fb_stack_low(f) &&
	       (sp >= base || (f->klass != FB_KLASS_OWN && sp + NEAR > base &&
			       fb_stack_is_block(sp)));
}

/* ---- the report ---- */

/* Another thread may be about to tell something with names: then without. */
static void say_where(const char *how, uintptr_t ip)
{
	if (!fb_symbol_take()) {
		fb_say("the overflow %s %#lx", how, (unsigned long)ip);
		return;
	}
	fb_say("the overflow %s %s", how, fb_symbol(ip));
	fb_symbol_give();
}

static void report(const struct fiber *f, const char *sp, void *ip,
		   const char *found)
{
	fb_say("stack overflow in fiber %llu \"%s\": %zu bytes of stack, depth %zu%s; raise fiber_attr.stack_size",
	       (unsigned long long)f->id, f->name,
	       (size_t)(fb_stack_high(f) - fb_stack_low(f)),
	       (size_t)(fb_stack_high(f) - sp), found);
	say_where(*found ? "is below the entry function" : "is in",
		  (uintptr_t)ip);
}

static _Noreturn void report_broken(const struct fiber *f, const char *sp)
{
	report(f, sp, (void *)f->fn, " now, more before");
	fb_last_words();
	abort();
}

/* ---- guard pages ---- */

static size_t read_max_map_count(void)
{
	char buf[24] = "";
	int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, buf, sizeof(buf) - 1) < 0)
			buf[0] = 0;
		close(fd);
	}
	return buf[0] ? strtoul(buf, NULL, 10) : 65530;
}

/* From now on canaries. False: it was so already. */
static bool use_canaries(void)
{
	if (__atomic_exchange_n(&gd.kind, CANARIES, __ATOMIC_RELAXED) ==
	    CANARIES)
		return false;
	__atomic_fetch_and(&fb_rt.features, ~FIBER_FEATURE_GUARD,
			   __ATOMIC_RELAXED);
	__atomic_fetch_or(&fb_rt.features, FIBER_FEATURE_CANARY,
			  __ATOMIC_RELAXED);
	return true;
}

static void no_pages(const char *why, size_t number)
{
	if (use_canaries())
		fb_say("no more guard pages for stacks: %s %zu; further stacks are checked at each switch instead",
		       why, number);
}

/* One of those that vm.max_map_count leaves to us. */
static bool take_one(void)
{
	size_t left = FB_READ(gd.left);

	while (left)
		if (__atomic_compare_exchange_n(&gd.left, &left, left - 1,
						true, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return true;
	return false;
}

void fb_guard_block(struct fiber *f)
{
	int err = errno;

	if (FB_READ(gd.kind) == INSTALL) {
		if (!madvise(f->base, gd.page, GUARD_INSTALL))
			goto out;
		/* Locked memory, say: the next best, from here on. */
		FB_WRITE(gd.kind, MPROTECT);
	}
	if (FB_READ(gd.kind) == MPROTECT) {
		if (!take_one())
			no_pages("half of vm.max_map_count is used up,",
				 gd.max_maps / 2);
		else if (!mprotect(f->base, gd.page, PROT_NONE))
			goto out;
		else
			no_pages("mprotect: error", (size_t)errno);
	}
	f->canary = FB_F_CANARY;
out:
	errno = err;
}

/* ---- the fault ---- */

static void default_action(int sig, const siginfo_t *si)
{
	struct sigaction sa = { .sa_handler = SIG_DFL };

	sigaction(sig, &sa, NULL);
	/* A fault happens again by itself, a signal that was sent does not. */
	if (si->si_code <= 0)
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), sig);
}

static void chain(int sig, siginfo_t *si, void *context)
{
	const struct sigaction *sa = &gd.previous;

	if (sa->sa_flags & SA_SIGINFO)
		sa->sa_sigaction(sig, si, context);
	else if (sa->sa_handler != SIG_DFL && sa->sa_handler != SIG_IGN)
		sa->sa_handler(sig);
	else
		default_action(sig, si);
}

static bool is_overflow(const struct fiber *f, const char *addr, const char *sp)
{
	const char *base = f->base;

	if (addr >= base && addr < base + gd.page)
		return true;
	return sp < fb_stack_low(f) && sp + NEAR > base &&
	       addr < base + gd.page && addr + NEAR > base;
}

static void on_fault(int sig, siginfo_t *si, void *context)
{
	const ucontext_t *u = context;
	const char *sp = (const char *)u->uc_mcontext.gregs[REG_RSP];
	struct fb_carrier *c = fb_self;
	int err = errno;

	if (broken)
		report_broken(broken, sp);
	if (!c || !c->cur || si->si_code <= 0 ||
	    !is_overflow(c->cur, si->si_addr, sp)) {
		chain(sig, si, context);
		errno = err;
		return;
	}
	report(c->cur, sp, (void *)u->uc_mcontext.gregs[REG_RIP], "");
	fb_last_words();
	default_action(sig, si);
	errno = err;
}

static bool is_ours(void)
{
	struct sigaction now;

	return gd.installed && !sigaction(SIGSEGV, NULL, &now) &&
	       (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault;
}

/*
 * f is about to leave the carrier: has it kept to its stack? If not there is
 * no room to report it: the signal brings us to the alternate stack.
 */
__attribute__((noinline)) void fb_guard_check(const struct fiber *f)
{
	const char *sp = __builtin_frame_address(0);

	if (fb_likely(intact(f) && !below(f, sp)))
		return;
	if (is_ours()) {
		broken = f;
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGSEGV);
	}
	report_broken(f, sp);
}

/* ---- the alternate stack of a carrier ---- */

static size_t altstack_size(void)
{
	size_t size = getauxval(AT_MINSIGSTKSZ);

	if (size < 2048)
		size = 2048;
	return (size + 32768 + gd.page - 1) & ~(gd.page - 1);
}

/* The user backend has one already, for SIGURG: that serves both. */
int fb_guard_attach(struct fb_carrier *c)
{
	stack_t ss = { .ss_size = altstack_size() }, now;
	int err = errno;

	c->altstack = NULL;
	if (!gd.installed || sigaltstack(NULL, &now) ||
	    !(now.ss_flags & SS_DISABLE))
		return 0;
	ss.ss_sp = mmap(NULL, ss.ss_size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	errno = err;
	if (ss.ss_sp == MAP_FAILED)
		return -ENOMEM;
	c->altstack = ss.ss_sp;
	sigaltstack(&ss, NULL);
	errno = err;
	return 0;
}

void fb_guard_detach(struct fb_carrier *c)
{
	stack_t off = { .ss_flags = SS_DISABLE }, now;
	int err = errno;

	if (!c->altstack)
		return;
	if (!sigaltstack(NULL, &now) && now.ss_sp == c->altstack)
		sigaltstack(&off, NULL);
	munmap(c->altstack, altstack_size());
	c->altstack = NULL;
	errno = err;
}

/* ---- start and end ---- */

static void handler_init(void)
{
	struct sigaction sa = {
		.sa_sigaction = on_fault,
		.sa_flags = SA_SIGINFO | SA_ONSTACK,
	};

#ifdef FB_SAN
	return;
#endif
	sigemptyset(&sa.sa_mask);
	gd.installed = !sigaction(SIGSEGV, &sa, &gd.previous);
}

static bool install_works(void)
{
	char *probe = mmap(NULL, gd.page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool works;

	if (probe == MAP_FAILED)
		return false;
	works = !madvise(probe, gd.page, GUARD_INSTALL);
	munmap(probe, gd.page);
	return works;
}

int fb_guard_init(size_t page)
{
	const char *want = secure_getenv("FIBER_STACK_GUARD");
	int err = errno;

	if (want && *want && strcmp(want, "mprotect") && strcmp(want, "canary")) {
		fb_say("FIBER_STACK_GUARD=%s: mprotect or canary is wanted", want);
		return -EINVAL;
	}
	memset(&gd, 0, sizeof(gd));
	gd.page = page;
	gd.max_maps = read_max_map_count();
	gd.left = gd.max_maps / 4;
	if ((want && !strcmp(want, "mprotect")) || !install_works())
		gd.kind = MPROTECT;
	__atomic_fetch_or(&fb_rt.features, FIBER_FEATURE_GUARD,
			  __ATOMIC_RELAXED);
	if (want && !strcmp(want, "canary"))
		use_canaries();
	handler_init();
	errno = err;
	return 0;
}

/* A handler the program installed after ours stays. */
void fb_guard_fini(void)
{
	if (is_ours())
		sigaction(SIGSEGV, &gd.previous, NULL);
	gd.installed = false;
}
