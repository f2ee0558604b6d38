// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * signal.c - signals as values of channels
 *
 *	handler, any thread		our thread		stop
 *	inside++; on?			poll the pipe		asked++
 *	write a record to the pipe	a = asked		write a record of none
 *	  full: missed |= it,		read what there is,	wait until answered
 *	  write a record of none	  lock, send, unlock	  has come to asked
 *	inside--			missed = 0, send	lock, take it out, unlock
 *				mask; answered = a
 *
 * Values are sent under the lock, so a channel that was taken out gets none. What was
 * written before `asked` is sent before `answered`: a pipe is in order and holds no
 * more than BATCHES of records. A write that fails has found it full: then our thread
 * has yet to read, and looks at `missed` and `asked` after that. So nothing is needed
 * to wake it.
 *
 * Masks. No thread's is touched but our own, which has unblocked what is wanted: so a
 * signal that all others block is taken too, and children inherit nothing. Rejected:
 * signalfd, for which all threads must block the signal, those made before by others
 * and all children too.
 *
 * The handler runs with all signals blocked, on the alternate stack where the thread
 * has one (carriers do: a fiber's own may be small). It takes no lock and keeps errno.
 * In the child of a vfork, which has our memory, it does nothing: another pid.
 *
 * The end: on = 0, then dispositions back, then wait until nobody is inside, then
 * close. A handler that comes late sees `on`. Back goes only what is still ours.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chan.h"
#include "sys.h"

#define BATCH		64			/* records read at once */
#define BATCHES		(65536 / (BATCH * sizeof(struct fiber_signal)) + 1)
#define BIT(sig)	(1ull << ((sig) - 1))

_Static_assert(NSIG <= 65, "bits of a word");
_Static_assert(sizeof(struct fiber_signal) == 32, "records fill pages of a pipe");

struct want {
	struct want *next;
	fiber_chan_t *ch;
};

static struct {
	pthread_mutex_t lock;			/* of these, and while sending */
	struct want *want[NSIG];
	struct sigaction previous[NSIG];
	uint64_t ours;				/* signals that have our handler */
	bool runs;
	pthread_t thread;
	/* atomic */
	uint32_t on;				/* the handler may write */
	uint32_t inside;			/* handlers */
	uint64_t missed;
	uint32_t asked, answered;		/* the latter a futex */
	uint32_t quit;
	/* constant while on */
	int in, out;
	int pid;
} sg = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- the handler ---- */

static bool put(const struct fiber_signal *s)
{
	return fb_sys(SYS_write, sg.out, s, sizeof(*s)) == sizeof(*s);
}

/* Our thread is to look, if it sleeps. */
static void rouse(void)
{
	const struct fiber_signal none = { 0 };

	put(&none);
}

static struct fiber_signal value_of(int sig, const siginfo_t *si)
{
	struct fiber_signal s = { .signo = sig, .code = si->si_code };
	bool child = sig == SIGCHLD && si->si_code > 0;

	if (child || si->si_code == SI_USER || si->si_code == SI_QUEUE ||
	    si->si_code == SI_TKILL || si->si_code == SI_MESGQ) {
		s.pid = si->si_pid;
		s.uid = si->si_uid;
	}
	if (child)
		s.status = si->si_status;
	else if (si->si_code == SI_QUEUE || si->si_code == SI_TIMER ||
		 si->si_code == SI_MESGQ || si->si_code == SI_ASYNCIO)
		s.value = (uintptr_t)si->si_value.sival_ptr;
	return s;
}

static void on_signal(int sig, siginfo_t *si, void *context)
{
	struct fiber_signal s = value_of(sig, si);

	(void)context;
	/* Before the look at `on`. Pairs with the wait in close_all. */
	__atomic_add_fetch(&sg.inside, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&sg.on, __ATOMIC_SEQ_CST) &&
	    fb_sys(SYS_getpid, 0) == sg.pid) {
		if (!put(&s)) {
			/* Before the write. Pairs with the exchange in send_missed. */
			__atomic_or_fetch(&sg.missed, BIT(sig), __ATOMIC_SEQ_CST);
			rouse();
		}
		fb_dump_signalled(sig);
	}
	/* Pairs with the wait in close_all. */
	__atomic_sub_fetch(&sg.inside, 1, __ATOMIC_RELEASE);
}

/* ---- our thread ---- */

static void send_to_all(const struct fiber_signal *s)
{
	struct want *w;

	for (w = s->signo ? sg.want[s->signo] : NULL; w; w = w->next)
		fiber_chan_try_send(w->ch, s);
}

/* False: there was not as much as can be read at once. */
static bool send_some(void)
{
	struct fiber_signal s[BATCH];
	long n = fb_sys(SYS_read, sg.in, s, sizeof(s));

	if (n <= 0)
		return n == -EINTR;
	pthread_mutex_lock(&sg.lock);
	for (size_t i = 0; i < (size_t)n / sizeof(s[0]); i++)
		send_to_all(&s[i]);
	pthread_mutex_unlock(&sg.lock);
	return true;
}

static void send_missed(void)
{
	struct fiber_signal s = { 0 };
	uint64_t bits;

	/* Pairs with the or in on_signal. */
	bits = __atomic_exchange_n(&sg.missed, 0, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&sg.lock);
	for (s.signo = 1; s.signo < NSIG; s.signo++)
		if (bits & BIT(s.signo))
			send_to_all(&s);
	pthread_mutex_unlock(&sg.lock);
}

/* All is blocked here but what is wanted. */
static void set_mask(void)
{
	sigset_t set;

	sigfillset(&set);
	pthread_mutex_lock(&sg.lock);
	for (int sig = 1; sig < NSIG; sig++)
		if (sg.want[sig])
			sigdelset(&set, sig);
	pthread_mutex_unlock(&sg.lock);
	pthread_sigmask(SIG_SETMASK, &set, NULL);
}

static void *go_round(void *arg)
{
	struct pollfd p = { .fd = sg.in, .events = POLLIN };
	uint32_t a;

	pthread_setname_np(pthread_self(), "fiber-signals");
	do {
		/* Before what is read. Pairs with the add in ask. */
		a = __atomic_load_n(&sg.asked, __ATOMIC_SEQ_CST);
		for (size_t i = 0; i < BATCHES && send_some(); i++)
			;
		send_missed();
		set_mask();
		/* Pairs with the acquire in ask. */
		FB_RELEASE(sg.answered, a);
		fb_os_wake(&sg.answered, INT32_MAX);
		/*
		 * Both after what was read, which may be all that was to wake us.
		 * Pairs with the add in ask, and with the release in close_all.
		 */
		if (__atomic_load_n(&sg.asked, __ATOMIC_SEQ_CST) == a &&
		    !FB_ACQUIRE(sg.quit))
			fb_sys(SYS_poll, &p, 1, -1);
	} while (!FB_ACQUIRE(sg.quit));		/* Pairs with close_all. */
	return arg;
}

/* Until what came before is sent, and its mask is what the lists say. */
static void ask(void)
{
	/* Pairs with the loads in go_round. */
	uint32_t mine = __atomic_add_fetch(&sg.asked, 1, __ATOMIC_SEQ_CST), seen;

	rouse();
	fiber_blocking_begin();
	/* Pairs with the release in go_round. */
	while ((int32_t)((seen = FB_ACQUIRE(sg.answered)) - mine) < 0)
		fb_os_sleep(&sg.answered, seen, 0);
	fiber_blocking_end();
}

/* ---- the first, the last: the lock is held ---- */

static int open_pipe(void)
{
	int fd[2];
	long r = fb_sys(SYS_pipe2, fd, O_CLOEXEC | O_NONBLOCK);

	if (r)
		return (int)r;
	sg.in = fb_os_high(fd[0]);
	sg.out = fb_os_high(fd[1]);
	return 0;
}

static int open_all(void)
{
	int r = open_pipe();

	if (r)
		return r;
	sg.pid = getpid();
	sg.missed = sg.asked = sg.answered = sg.quit = 0;
	r = fb_os_thread(&sg.thread, go_round, NULL);
	if (r) {
		fb_sys(SYS_close, sg.in);
		fb_sys(SYS_close, sg.out);
		return r;
	}
	__atomic_fetch_add(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
	/* Pairs with the load in on_signal. */
	__atomic_store_n(&sg.on, 1, __ATOMIC_SEQ_CST);
	sg.runs = true;
	return 0;
}

/* Another handler that the program has put in its place stays. */
static void put_back(int sig)
{
	struct sigaction now;

	if (!sigaction(sig, NULL, &now) && (now.sa_flags & SA_SIGINFO) &&
	    now.sa_sigaction == on_signal)
		sigaction(sig, &sg.previous[sig], NULL);
	sg.ours &= ~BIT(sig);
}

/* What nobody wants. */
static void put_all_back(void)
{
	for (int sig = 1; sig < NSIG; sig++)
		if ((sg.ours & BIT(sig)) && !sg.want[sig])
			put_back(sig);
}

/* Of all channels if ch is NULL. */
static void take_out(int sig, const fiber_chan_t *ch)
{
	struct want **at = &sg.want[sig], *w;

	while ((w = *at)) {
		if (ch && w->ch != ch) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		free(w);
	}
}

/* ---- notify ---- */

static bool may_be_wanted(int sig)
{
	switch (sig) {
	case SIGKILL: case SIGSTOP: case SIGURG: case SIGSEGV: case SIGBUS:
	case SIGFPE: case SIGILL: case SIGTRAP: case SIGSYS:
		return false;
	}
	return sig > 0 && sig < NSIG;
}

/* Does nothing, and says so, if it is there. */
static int add(struct want *w, int sig)
{
	struct sigaction sa = { .sa_sigaction = on_signal,
				.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
	struct want **end = &sg.want[sig];
	int r = sg.runs ? 0 : open_all();

	for (; !r && *end; end = &(*end)->next)
		if ((*end)->ch == w->ch)
			return -EEXIST;
	if (r)
		return r;
	sigfillset(&sa.sa_mask);
	if (!(sg.ours & BIT(sig))) {
		if (sigaction(sig, &sa, &sg.previous[sig]))
			return -errno;
		sg.ours |= BIT(sig);
	}
	*end = w;
	return 0;
}

/* A plain thread keeps the runtime on meanwhile, as a fiber does. */
static bool enter(void)
{
	return fb_current() || fb_visit();
}

static int leave(int r, int err)
{
	errno = err;
	if (!fb_current())
		fb_visit_end();
	return r;
}

FB_EXPORT int fiber_signal_notify(fiber_chan_t *ch, int sig)
{
	int err = errno, r = -ENOMEM;
	struct want *w;

	if (!ch || ch->elem != sizeof(struct fiber_signal) || !may_be_wanted(sig))
		return -EINVAL;
	if (!enter())
		return -EPERM;
	w = calloc(1, sizeof(*w));
	if (!w)
		return leave(r, err);
	w->ch = ch;
	pthread_mutex_lock(&sg.lock);
	r = add(w, sig);
	pthread_mutex_unlock(&sg.lock);
	if (r)
		free(w);
	else
		ask();
	return leave(r == -EEXIST ? 0 : r, err);
}

/* ---- stop ---- */

static bool running(void)
{
	bool runs;

	pthread_mutex_lock(&sg.lock);
	runs = sg.runs;
	pthread_mutex_unlock(&sg.lock);
	return runs;
}

/* What has come is sent; then it is blocked again in our thread; then put back. */
static int end(int first, int last, const fiber_chan_t *ch)
{
	int err = errno;

	if (!enter())
		return -EPERM;
	if (!running())
		return leave(0, err);
	ask();
	pthread_mutex_lock(&sg.lock);
	for (int sig = first; sig <= last; sig++)
		take_out(sig, ch);
	pthread_mutex_unlock(&sg.lock);
	ask();
	pthread_mutex_lock(&sg.lock);
	put_all_back();
	pthread_mutex_unlock(&sg.lock);
	return leave(0, err);
}

FB_EXPORT int fiber_signal_stop(fiber_chan_t *ch)
{
	return ch ? end(1, NSIG - 1, ch) : -EINVAL;
}

FB_EXPORT int fiber_signal_reset(int sig)
{
	if (sig && !may_be_wanted(sig))
		return -EINVAL;
	return sig ? end(sig, sig, NULL) : end(1, NSIG - 1, NULL);
}

/* ---- the runtime ---- */

/* Our thread is in no call meanwhile, so that none keeps the runtime from ending. */
void fb_signal_hold(void)
{
	pthread_mutex_lock(&sg.lock);
}

void fb_signal_let_go(void)
{
	pthread_mutex_unlock(&sg.lock);
}

/* Something may come from outside. */
bool fb_signal_wanted(void)
{
	return FB_READ(sg.ours);
}

static void close_all(void)
{
	/* Pairs with the load in on_signal. */
	__atomic_store_n(&sg.on, 0, __ATOMIC_SEQ_CST);
	/* Our thread may be sending what has come before. */
	pthread_mutex_lock(&sg.lock);
	for (int sig = 1; sig < NSIG; sig++)
		take_out(sig, NULL);
	put_all_back();
	pthread_mutex_unlock(&sg.lock);
	/* Pairs with the acquire in go_round. */
	FB_RELEASE(sg.quit, 1);
	rouse();
	pthread_join(sg.thread, NULL);
	/* A handler is short. Pairs with its add and its sub. */
	while (__atomic_load_n(&sg.inside, __ATOMIC_SEQ_CST))
		sched_yield();
	sg.runs = false;	/* first: the child of a fork closes them otherwise */
	fb_sys(SYS_close, sg.in);
	fb_sys(SYS_close, sg.out);
	__atomic_fetch_sub(&fb_rt.helpers, 1, __ATOMIC_RELAXED);
}

/* No fiber is left, nobody is inside a call. */
void fb_signal_stop(void)
{
	if (sg.runs)
		close_all();
}

/* The thread, and who waits for signals, are the parent's. */
void fb_signal_fork_child(void)
{
	if (!sg.runs)
		return;
	sg.on = sg.inside = 0;
	sg.runs = false;
	fb_sys(SYS_close, sg.in);
	fb_sys(SYS_close, sg.out);
	memset(sg.want, 0, sizeof(sg.want));
	put_all_back();
	sg.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
