// SPDX-License-Identifier: GPL-2.0-only
/*
 * screen.c - the terminal of fiberctl top
 *
 * The escape sequences are those that every terminal of today has in common with
 * xterm; there is a dozen of them. Signals are read from a descriptor, so that they
 * come between two pictures and never into one. However top ends, the terminal is as
 * it was: screen_close is called on each way out, before a signal that ends or stops
 * us is let through, and by a handler should we crash.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "screen.h"

#define ENTER	"\033[?1049h\033[?25l"	/* another page, no cursor */
#define LEAVE	"\033[0m\033[?25h\033[?1049l"

static const int read_ones[] = {
	SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH, SIGCONT,
};
static const int crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
#define EACH(a)	(int i_ = 0; i_ < (int)(sizeof(a) / sizeof(a[0])); i_++)

static struct {
	volatile sig_atomic_t open;
	struct termios before;
	sigset_t mask;			/* before */
	int signals;			/* signalfd */
	int rows, columns, line;
	char keys[64];			/* read and not yet taken */
	int key, nkeys;
} sc = { .signals = -1 };

static void put(const char *text)
{
	ssize_t r = write(STDOUT_FILENO, text, strlen(text));

	(void)r;			/* nothing can be done about it */
}

/*
 * In the background we stop until it is our turn, and can be ended meanwhile. SIGTTOU
 * does nothing in a process group that no shell looks after: hence the pause.
 */
static void wait_for_terminal(void)
{
	sigset_t set;
	pid_t owner;

	for (;;) {
		owner = tcgetpgrp(STDIN_FILENO);
		if (owner < 0 || owner == getpgrp())
			return;
		raise(SIGTTOU);
		sigprocmask(SIG_SETMASK, &sc.mask, &set);
		poll(NULL, 0, 100);
		sigprocmask(SIG_SETMASK, &set, NULL);
	}
}

static void enter(void)
{
	struct termios raw;

	wait_for_terminal();
	if (!sc.open)
		tcgetattr(STDIN_FILENO, &sc.before);
	raw = sc.before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_oflag |= OPOST | ONLCR;
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	sc.open = 1;
	tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
	put(ENTER);
}

/* Signal handlers may. */
static void leave(void)
{
	if (!sc.open)
		return;
	sc.open = 0;
	put(LEAVE);
	tcsetattr(STDIN_FILENO, TCSADRAIN, &sc.before);
}

static void crashed(int sig)
{
	leave();
	raise(sig);			/* SA_RESETHAND: by default */
}

bool screen_open(void)
{
	struct sigaction sa = { .sa_handler = crashed,
				.sa_flags = (int)SA_RESETHAND | SA_NODEFER };
	const char *term = getenv("TERM");
	sigset_t set;

	if (!isatty(STDOUT_FILENO) || !term || !*term || !strcmp(term, "dumb") ||
	    tcgetattr(STDIN_FILENO, &sc.before)) {
		fprintf(stderr, "fiberctl: top needs a terminal; for a file or a pipe there is top -b\n");
		return false;
	}
	sigemptyset(&set);
	for EACH(read_ones)
		sigaddset(&set, read_ones[i_]);
	sigprocmask(SIG_BLOCK, &set, &sc.mask);
	sigaddset(&set, SIGTTOU);	/* not while we restore the terminal */
	sigaddset(&set, SIGTTIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sigdelset(&set, SIGTTOU);
	sigdelset(&set, SIGTTIN);
	sc.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	for EACH(crashes)
		sigaction(crashes[i_], &sa, NULL);
	enter();
	return true;
}

void screen_close(void)
{
	leave();
	if (sc.signals < 0)
		return;
	close(sc.signals);
	sc.signals = -1;
	sigprocmask(SIG_SETMASK, &sc.mask, NULL);
}

/* ---- pictures ---- */

void screen_size(int *rows, int *columns)
{
	struct winsize w;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) || !w.ws_row || !w.ws_col)
		w = (struct winsize){ .ws_row = 24, .ws_col = 80 };
	*rows = w.ws_row;
	*columns = w.ws_col;
}

void screen_begin(void)
{
	screen_size(&sc.rows, &sc.columns);
	sc.line = 0;
	fputs("\033[H", stdout);
}

/* As many bytes as fit; what goes on a character of UTF-8 takes no room. */
static int fitting(const char *text)
{
	int n = 0, columns = 0;

	for (; text[n]; n++)
		if (((unsigned char)text[n] & 0xc0) != 0x80 &&
		    ++columns > sc.columns)
			break;
	return n;
}

void screen_line(const char *text, bool bright)
{
	if (sc.line >= sc.rows)
		return;
	/* A line feed behind the last line would scroll. */
	printf("%s%s%.*s%s\033[K", sc.line++ ? "\n" : "",
	       bright ? "\033[7m" : "", fitting(text), text,
	       bright ? "\033[0m" : "");
}

bool screen_end(void)
{
	fputs("\033[J", stdout);
	return !fflush(stdout) && !ferror(stdout);
}

/* ---- keys and signals ---- */

static void let_through(int sig)
{
	sigset_t set;

	leave();
	sigemptyset(&set);
	sigaddset(&set, sig);
	raise(sig);
	sigprocmask(SIG_UNBLOCK, &set, NULL);	/* here it comes */
	sigprocmask(SIG_BLOCK, &set, NULL);
	enter();
}

static int take_signal(void)
{
	struct signalfd_siginfo si;

	if (read(sc.signals, &si, sizeof(si)) != sizeof(si))
		return KEY_RESIZED;
	if (si.ssi_signo == SIGINT)
		return 'q';
	if (si.ssi_signo == SIGCONT)
		enter();		/* after a SIGSTOP */
	else if (si.ssi_signo != SIGWINCH)
		let_through((int)si.ssi_signo);
	return KEY_RESIZED;
}

static const struct {
	const char *bytes;
	int key;
} sequence[] = {
	{ "\033[A", KEY_UP }, { "\033OA", KEY_UP }, { "\033[B", KEY_DOWN },
	{ "\033OB", KEY_DOWN }, { "\033[5~", KEY_PAGE_UP },
	{ "\033[6~", KEY_PAGE_DOWN }, { "\033[H", KEY_HOME },
	{ "\033OH", KEY_HOME }, { "\033[1~", KEY_HOME }, { "\033[F", KEY_END },
	{ "\033OF", KEY_END }, { "\033[4~", KEY_END },
};

static int take_key(void)
{
	const char *at = sc.keys + sc.key;
	int left = sc.nkeys - sc.key;

	for EACH(sequence) {
		int n = (int)strlen(sequence[i_].bytes);

		if (n <= left && !memcmp(at, sequence[i_].bytes, (size_t)n)) {
			sc.key += n;
			return sequence[i_].key;
		}
	}
	if (*at == '\033') {		/* one that is not known */
		sc.key = sc.nkeys;
		return KEY_RESIZED;
	}
	sc.key++;
	return (unsigned char)*at;
}

int screen_wait(int ms)
{
	struct pollfd p[2] = {
		{ .fd = STDIN_FILENO, .events = POLLIN },
		{ .fd = sc.signals, .events = POLLIN },
	};
	ssize_t n;

	if (sc.key < sc.nkeys)
		return take_key();
	if (poll(p, 2, ms) < 0)
		return errno == EINTR ? KEY_RESIZED : KEY_GONE;
	if (p[1].revents)
		return take_signal();
	if (!p[0].revents)
		return KEY_NONE;
	n = read(STDIN_FILENO, sc.keys, sizeof(sc.keys));
	if (n <= 0)
		return n < 0 && errno == EINTR ? KEY_RESIZED : KEY_GONE;
	sc.key = 0;
	sc.nkeys = (int)n;
	return take_key();
}
