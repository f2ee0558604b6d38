// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * sigurg.c - preemption by SIGURG, on the carrier itself
 *
 * The monitor sends SIGURG to a thread that runs too long, or that runs fiber
 * code without a processor. The handler stops the fiber where it is: it calls
 * the scheduler, which gives the processor away and sleeps until this carrier
 * has one again; then the handler returns. So a preempted fiber keeps thread,
 * registers and signal frame; its alternate stack serves this handler alone.
 *
 * Why that is safe in a signal handler: it goes on only if in_fiber == 1 (the
 * runtime is not active on this thread: none of its locks is held here) and
 * the interrupted instruction lies in preemptible text, that is in the
 * program's own code, never in libc, ld.so, the vdso or this library: none of
 * their locks is held by that frame. fb_preempted uses only the runtime's
 * queues, the group lock and futexes, and keeps errno. If the fiber's own frame
 * below is a signal handler that interrupted libc, its lock stays held while we
 * wait; who wants it blocks in a futex, is retaken, and we get our turn.
 *
 * Else page->pending is set and the next runtime entry yields. A SIGURG that
 * the monitor did not send goes to the handler that was there before. If the program
 * puts its own in our place nobody is preempted any more, which FIBER_CHECK=1 tells:
 * the keeper does, as the monitor has no descriptors.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "fb.h"
#include "user.h"

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

static struct sigaction previous;

static uintptr_t ip_of(const ucontext_t *u)
{
#if defined(__x86_64__)
	return u->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	return u->uc_mcontext.pc;
#endif
}

static void chain(int sig, siginfo_t *si, void *uc)
{
	if (previous.sa_flags & SA_SIGINFO)
		previous.sa_sigaction(sig, si, uc);
	else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
		previous.sa_handler(sig);
}

/* Runtime active, a critical section, or foreign code: later. */
static bool preemptible(struct fb_user_group *g, struct fb_user_carrier *uc,
			uintptr_t ip)
{
	struct fb_cpage *page = &uc->page;

	if (fb_load(&page->in_fiber) != 1 || fb_load(&page->no_preempt))
		return false;
	/* There blocking is the handshake: no runtime entry in between. */
	if (!g->membarrier && fb_load(&page->blocking))
		return false;
	return fb_preempt_text_ok(ip);
}

static void on_sigurg(int sig, siginfo_t *si, void *context)
{
	struct fb_carrier *c = fb_self;
	struct fb_user_carrier *uc = c ? c->backend : NULL;
	struct fb_user_group *g = uc ? uc->group : NULL;
	int saved = errno;

	/* kicked pairs with the release in fb_sigurg_send. */
	if (!uc || si->si_code != SI_TKILL || si->si_pid != g->pid ||
	    !__atomic_exchange_n(&uc->kicked, 0, __ATOMIC_ACQUIRE)) {
		chain(sig, si, context);
	} else if (!preemptible(g, uc, ip_of(context))) {
		fb_store(&uc->page.pending, 1);
		uc->page.refused++;
	} else {
		fb_store(&uc->page.preempts, uc->page.preempts + 1);
		fb_preempted(c);
		fb_san_release(c->proc);
		/* Pairs with step c of RETAKE, group.c. */
		fb_store_rel(&uc->page.in_fiber, 1);
	}
	errno = saved;
}

/* Is the handler not ours? Any thread. */
static bool taken(void)
{
	struct sigaction now;
	int saved = errno;
	bool yes;

	yes = !sigaction(SIGURG, NULL, &now) &&
	      (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_sigurg);
	errno = saved;
	return yes;
}

static uint32_t told;			/* fb_rt.epoch then; atomic */

void fb_sigurg_tell(void)
{
	if (fb_likely(!fb_rt.checks) || FB_READ(told) == fb_rt.epoch || !taken() ||
	    __atomic_exchange_n(&told, fb_rt.epoch, __ATOMIC_RELAXED) ==
	    fb_rt.epoch)
		return;
	fb_say("the program has taken SIGURG: fibers are not preempted any more (a handler set before the runtime starts is called for the program's own SIGURG)");
}

/* Monitor only. The thread may be gone or another one by now: harmless. */
void fb_sigurg_send(struct fb_user_group *g, struct fb_user_carrier *uc)
{
	if (fb_unlikely(fb_rt.checks) && FB_READ(told) != fb_rt.epoch && taken())
		fb_group_stir_keeper(g);
	/* Pairs with the exchange in on_sigurg. */
	__atomic_store_n(&uc->kicked, 1, __ATOMIC_RELEASE);
	syscall(SYS_tgkill, g->pid, fb_load(&uc->tid), SIGURG);
}

/* ---- the alternate stack of the calling carrier ---- */

static size_t altstack_size(void)
{
	size_t size = getauxval(AT_MINSIGSTKSZ);

	if (size < 2048)
		size = 2048;
	return (size + 32768 + 4095) & ~(size_t)4095;
}

int fb_sigurg_attach(struct fb_user_carrier *uc)
{
	stack_t ss = { .ss_size = altstack_size() };
	int saved = errno;

	fb_store(&uc->kicked, 0);
	ss.ss_sp = mmap(NULL, ss.ss_size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (ss.ss_sp == MAP_FAILED) {
		errno = saved;
		return -ENOMEM;
	}
	sigaltstack(&ss, &uc->old_altstack);
	uc->altstack = ss.ss_sp;
	errno = saved;
	return 0;
}

/* Still ours: then what was there before comes back. */
void fb_sigurg_detach(struct fb_user_carrier *uc)
{
	int saved = errno;
	stack_t now;

	if (!sigaltstack(NULL, &now) && now.ss_sp == uc->altstack)
		sigaltstack(&uc->old_altstack, NULL);
	munmap(uc->altstack, altstack_size());
	uc->altstack = NULL;
	errno = saved;
}

/* ---- setup, close ---- */

int fb_sigurg_setup(void)
{
	struct sigaction sa = {
		.sa_sigaction = on_sigurg,
		.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK,
	};

	sigemptyset(&sa.sa_mask);
	return sigaction(SIGURG, &sa, &previous) ? -errno : 0;
}

/* A handler the program installed after ours stays. */
void fb_sigurg_close(void)
{
	fb_sigurg_tell();
	if (!taken())
		sigaction(SIGURG, &previous, NULL);
}
