// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * splice.c - move bytes from one descriptor to another inside the kernel
 *
 * splice has a flag against waiting, but for pipes alone, and sendfile none. So both
 * ends are asked whether they are ready, and the call is made when they are, with the
 * turns of both numbers (io.h), first in's, then out's: no other fiber takes meanwhile
 * what poll saw. Then the call waits for nobody:
 *
 *	a pipe		the flag
 *	a socket	read: has something. Written: is given half of what it has room
 *			for (SO_MEMINFO), or a page, for which "ready" is enough
 *	a disk		waits as ever: a blocking call (file.c)
 *
 * Who waits for one end is queued at the other too, for nothing but its close.
 *
 * What is wrong with the arguments the system says at once, however unready the ends
 * are: so before a first wait it is found out, and the call made to hear it.
 */
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <sys/stat.h>

#include "iov.h"

#define LEAST		4096u
#define RETRY_NS	500000

struct move {
	struct fb_io in, out;		/* their numbers are held */
	off_t *in_at, *out_at;
	unsigned int flags;
	bool sendfile;
	bool checked, pipe_in, pipe_out, nonblock;
	int unready;			/* POLLIN: in is, else POLLOUT: out; or 0 */
	size_t done;
};

/* ---- the call ---- */

static long make(struct move *k, size_t n)
{
	struct fb_os_quiet q;
	long r;

	fb_os_quiet_begin(&q, SIGPIPE);
	fiber_blocking_begin();
	if (k->sendfile)
		r = fb_sys(SYS_sendfile, k->out.fd, k->in.fd, k->in_at, n);
	else
		r = fb_sys(SYS_splice, k->in.fd, k->in_at, k->out.fd, k->out_at,
			   n, k->flags | SPLICE_F_NONBLOCK);
	fiber_blocking_end();
	fb_os_quiet_end(&q, r == -EPIPE);
	return r;
}

/* As much as out takes without waiting. */
static size_t fitting(const struct move *k, size_t n)
{
	uint32_t m[SK_MEMINFO_VARS] = { 0 }, used, most = LEAST;
	unsigned int size = sizeof(m);
	long r = fb_sys(SYS_getsockopt, k->out.fd, SOL_SOCKET, SO_MEMINFO, m,
			&size);

	if (r == -ENOTSOCK)
		return n;
	used = m[SK_MEMINFO_WMEM_QUEUED];
	if (used < m[SK_MEMINFO_WMEM_ALLOC])
		used = m[SK_MEMINFO_WMEM_ALLOC];
	if (!r && used < m[SK_MEMINFO_SNDBUF] &&
	    (m[SK_MEMINFO_SNDBUF] - used) / 2 > LEAST)
		most = (m[SK_MEMINFO_SNDBUF] - used) / 2;
	return n < most ? n : most;
}

/*
 * What poll said of one end: > 0: the call would not wait for it; 0: it is not ready;
 * else an error. What has been moved comes first: that is for the next call to tell.
 * POLLERR may be a notice of the kernel: then the call would wait.
 */
static int is_ready(const struct move *k, const struct fb_io *end, int r)
{
	if (!(r & POLLERR))
		return r;
	if (k->done)
		return fb_io_next(end);
	return r == POLLERR ? fb_io_error(end->fd) : r;
}

/* What sendfile reads is on a disk. > 0: both are ready. */
static long ask(struct move *k)
{
	struct pollfd p[2] = { { k->out.fd, POLLOUT, 0 },
			       { k->in.fd, POLLIN, 0 } };
	int r = fb_io_poll_all(p, k->sendfile ? 1 : 2);

	if (r < 0)
		return r;
	k->unready = POLLIN;
	r = k->sendfile ? 1 : is_ready(k, &k->in, p[1].revents);
	if (r <= 0)
		return r ? r : -EAGAIN;
	k->unready = POLLOUT;
	r = is_ready(k, &k->out, p[0].revents);
	if (r <= 0)
		return r ? r : -EAGAIN;
	k->unready = 0;
	return r;
}

static long with_turns(struct move *k, size_t n)
{
	long r = ask(k);

	return fb_io_turn_end(&k->out, r > 0 ? make(k, n) : r);
}

/* -EAGAIN: see k->unready. */
static long try(struct move *k, size_t n)
{
	long r = k->sendfile ? 0 : fb_io_turn(&k->in);

	if (r)
		return r;
	r = fb_io_turn(&k->out);
	if (!r)
		r = with_turns(k, n);
	return k->sendfile ? r : fb_io_turn_end(&k->in, r);
}

/* ---- wait ---- */

/* Whether the system would say so, ready or not; what else must be known to wait. */
static bool is_wrong(struct move *k)
{
	long in = fb_sys(SYS_fcntl, k->in.fd, F_GETFL);
	long out = fb_sys(SYS_fcntl, k->out.fd, F_GETFL);
	struct stat i = { 0 }, o = { 0 };

	fb_sys(SYS_fstat, k->in.fd, &i);
	fb_sys(SYS_fstat, k->out.fd, &o);
	k->pipe_in = S_ISFIFO(i.st_mode);
	k->pipe_out = S_ISFIFO(o.st_mode);
	k->nonblock = ((in | out) & O_NONBLOCK) && k->pipe_in && k->pipe_out;
	if (in < 0 || out < 0 || (in & O_ACCMODE) == O_WRONLY ||
	    (out & O_ACCMODE) == O_RDONLY || (out & O_APPEND))
		return true;
	if (k->sendfile)
		return !S_ISREG(i.st_mode) && !S_ISBLK(i.st_mode);
	return !(k->pipe_in || k->pipe_out) || (k->flags & ~15u) ||
	       (k->pipe_in && k->in_at) || (k->pipe_out && k->out_at);
}

/* It was ready, and was not: somebody else's. */
static long wait_a_while(const struct move *k)
{
	uint64_t now = fiber_now(), until = now + RETRY_NS;

	if (now >= k->in.deadline)
		return -ETIMEDOUT;
	return fiber_sleep_until(until < k->in.deadline ? until : k->in.deadline);
}

/* 0: try again; else the call's end. */
static long wait_ready(struct move *k, size_t n)
{
	bool pipe;

	if (!k->checked) {
		k->checked = true;
		if (is_wrong(k))
			return make(k, n);
	}
	if (!k->unready)
		return wait_a_while(k);
	pipe = k->unready == POLLIN ? k->pipe_in : k->pipe_out;
	if (k->nonblock || (pipe && (k->flags & SPLICE_F_NONBLOCK)))
		return -EAGAIN;
	return fb_io_wait(k->unready == POLLIN ? &k->in : &k->out);
}

/* ---- all of it ---- */

/* More is to come: sendfile moves all; splice what is there, however full out is. */
static bool goes_on(const struct move *k, size_t some, size_t left, long r)
{
	return left && (k->sendfile || (size_t)r == some) &&
	       !(k->in.deadline && fiber_cancelled());
}

static long transfer(struct move *k, size_t n)
{
	size_t some;
	long r;

	for (;;) {
		some = fitting(k, n - k->done);
		r = try(k, some);
		if (r > 0) {
			k->done += (size_t)r;
			k->in.vain = k->out.vain = 0;
			if (!goes_on(k, some, n - k->done, r))
				return (long)k->done;
		} else if (r != -EAGAIN ||
			   (k->done && !k->sendfile && k->unready != POLLOUT) ||
			   (r = wait_ready(k, some))) {
			return k->done ? (long)k->done : r;
		}
	}
}

/* Both are held; who holds one waits for none: see fdtab.c. */
static int begin(struct move *k, int in, int out, uint64_t deadline)
{
	struct fb_fd *e = fb_fd_get(out);
	int r;

	for (;;) {
		r = fb_io_begin(&k->in, in, POLLIN, deadline);
		if (r || !e || fb_fd_try_hold(e))
			break;
		fb_io_end(&k->in, 0);
		r = fb_fd_wait_closed(e, deadline);
		if (r)
			break;
	}
	k->out = k->in;
	k->out.e = e;
	k->out.fd = out;
	k->out.events = POLLOUT;
	k->out.also = k->in.e;
	k->in.also = e;
	return r;
}

static long move(struct move *k, int in, int out, size_t n, uint64_t deadline)
{
	long r = begin(k, in, out, deadline);

	if (r)
		return r;
	r = transfer(k, n < FB_IO_MOST ? n : FB_IO_MOST);
	return fb_io_end(&k->in, fb_io_end(&k->out, r));
}

FB_EXPORT ssize_t fiber_splice_until(int in, off_t *in_at, int out,
				     off_t *out_at, size_t n,
				     unsigned int flags, uint64_t deadline)
{
	struct move k = { .in_at = in_at, .out_at = out_at, .flags = flags };

	if (!n)
		return fb_sys(SYS_splice, in, in_at, out, out_at, 0, flags);
	return move(&k, in, out, n, deadline);
}

FB_EXPORT ssize_t fiber_splice(int in, off_t *in_at, int out, off_t *out_at,
			       size_t n, unsigned int flags)
{
	return fiber_splice_until(in, in_at, out, out_at, n, flags, FB_NEVER);
}

FB_EXPORT ssize_t fiber_sendfile_until(int out, int in, off_t *at, size_t n,
				       uint64_t deadline)
{
	struct move k = { .in_at = at, .sendfile = true };

	if (!n)
		return fb_sys(SYS_sendfile, out, in, at, 0);
	return move(&k, in, out, n, deadline);
}

FB_EXPORT ssize_t fiber_sendfile(int out, int in, off_t *at, size_t n)
{
	return fiber_sendfile_until(out, in, at, n, FB_NEVER);
}
