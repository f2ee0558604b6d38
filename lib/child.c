// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * child.c - to wait for children
 *
 * A child is waited for by the descriptor that stands for it (pidfd), which tells its
 * end. Nothing tells of any of many, of one that stops, and of one that a tracer is
 * to be told of first: then we look again and again, less and less often.
 */
#include <sys/wait.h>

#include "io.h"

#define FIRST_NS	200000ULL	/* between looks, doubled up to */
#define LAST_NS		20000000ULL

/* Until the end of pid. -EAGAIN: there is no such descriptor, or room for it. */
static int wait_ended(pid_t pid, uint64_t deadline)
{
	struct pollfd p = { .events = POLLIN };
	int r;

	p.fd = (int)fb_sys(SYS_pidfd_open, pid, 0);
	if (p.fd < 0)
		return -EAGAIN;
	fb_fd_born(p.fd);
	r = fiber_poll_until(&p, 1, deadline);
	fiber_close(p.fd);
	return r < 0 ? r : 0;
}

static int wait_a_while(uint64_t *ns, uint64_t deadline)
{
	uint64_t now = fiber_now(), until = now + *ns;

	if (now >= deadline)
		return -ETIMEDOUT;
	*ns = *ns < LAST_NS / 2 ? *ns * 2 : LAST_NS;
	return fb_io_nap(until < deadline ? until : deadline);
}

FB_EXPORT pid_t fiber_waitpid_until(pid_t pid, int *status, int options,
				    uint64_t deadline)
{
	bool tells = pid > 0 && !(options & (WUNTRACED | WCONTINUED));
	uint64_t ns = FIRST_NS;
	long r;

	fb_caller_heed();
	if (deadline && fiber_cancelled())
		return -ECANCELED;
	for (;;) {
		r = fb_sys(SYS_wait4, pid, status, options | WNOHANG, 0);
		if (r || (options & WNOHANG))
			return (pid_t)r;
		if (!deadline)
			return -ETIMEDOUT;
		r = tells ? wait_ended(pid, deadline) : -EAGAIN;
		tells = false;
		if (r == -EAGAIN)
			r = wait_a_while(&ns, deadline);
		if (r)
			return (pid_t)r;
	}
}

FB_EXPORT pid_t fiber_waitpid(pid_t pid, int *status, int options)
{
	return fiber_waitpid_until(pid, status, options, FB_NEVER);
}
